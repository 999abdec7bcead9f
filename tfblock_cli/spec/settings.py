"""The settings of single commands: the tables [causality] and [gradflow]."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tfblock_cli.spec.base import Count, Items, Layers, Spec, derived, expand, fault
from tfblock_cli.spec.norm_placement import NormPlacement, Post, Pre

Metric = Literal[
    "loss",
    "grad.embedding",
    "grad.input",
    "grad.block.first",
    "grad.block.last",
    "grad.block.last_first",
    "grad.block.max_min",
    "rms.last",
    "cosine.last",
]

DEGENERATE = {
    "sum": "behind a LayerNorm every output row sums to a constant, so a sum has no gradient",
    "mean_square": "behind any norm the mean of squares is a constant, so it has no gradient",
}


def _honest(loss: Any) -> Any:
    if isinstance(loss, str) and loss in DEGENERATE:
        message = f"loss = {loss!r} cannot be used: {DEGENERATE[loss]}; what is left is rounding noise"
        raise fault(message, "")
    return loss


Loss = Annotated[Literal["cross_entropy", "random_projection"], BeforeValidator(_honest)]


def canonical(kind: Any) -> Any:
    """The kind that a placement's name stands for: peri is sandwich."""
    return expand(NormPlacement, kind)["kind"] if isinstance(kind, str) else kind


PlacementName = Annotated[str, BeforeValidator(canonical)]


class CausalitySettings(Spec):
    """[causality]: what the model is declared to be."""

    declare: Literal["causal"] = "causal"


class Expect(Spec):
    """[[gradflow.expect]]: a metric of a placement, for every depth and seed, between min and max.

    Attributes:
        metric: One of the metrics that docs/gradflow.md explains.
        placement: Whose.
        over: A second placement: the ratio of the two, seed by seed, is what must be inside; "" for no ratio.
        depth: Of one depth only; 0 means of every depth.
        min: The smallest value allowed.
        max: The largest value allowed.
    """

    metric: Metric
    placement: PlacementName
    over: PlacementName = ""
    depth: Annotated[int, Field(ge=0)] = 0
    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _bounded(self) -> "Expect":
        if self.min is None and self.max is None:
            raise fault("needs min or max", "min", "max")
        return self


class GradflowSettings(Spec):
    """[gradflow]: which placements are compared, and how.

    Attributes:
        placements: Norm placements, each by its kind or as a table.
        baseline: The placement that the others are divided by; the first unless given.
        depths: Numbers of blocks; model.n_layers unless given.
        seeds: How many seeds, counted up from the experiment's seed.
        loss: cross_entropy with a vocabulary, random_projection without, unless given.
        expect: Assertions that decide the exit code.
    """

    placements: Items[NormPlacement] = (Pre(), Post())
    baseline: PlacementName = derived("the first of placements")
    depths: Items[Layers] = derived("model.n_layers")
    seeds: Count = 5
    loss: Loss = derived("cross_entropy with a vocabulary, random_projection without")
    expect: Items[Expect] = ()
