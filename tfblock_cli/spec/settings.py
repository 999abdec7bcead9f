"""The settings of single commands: the tables [causality] and [gradflow]."""

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from tfblock_cli.spec.attention import Bidirectional, Causal, Documents, Prefix, SlidingWindow
from tfblock_cli.spec.base import (
    LARGEST,
    Axis,
    Count,
    Items,
    Kind,
    Layers,
    OneOrMore,
    Spec,
    Table,
    derived,
    expand,
    fault,
    listed,
    name_of,
)
from tfblock_cli.spec.norm_placement import NormPlacement, Post, Pre
from tfblock_cli.spec.train import Outcome, Positive, Steps, Trained, TrainSettings

AtOneDepth = Literal[
    "loss",
    "grad.embedding",
    "grad.input",
    "grad.head",
    "grad.matrices",
    "grad.block.first",
    "grad.block.last",
    "grad.block.last_first",
    "grad.block.max_min",
    "grad.down.last",
    "grad.hidden.first",
    "grad.hidden.last_first",
    "grad.q_over_v.last",
    "rms.last",
    "rms.squared_growth",
    "cosine.last",
    "noise.response",
]
Slope = Literal[
    "slope.grad.embedding",
    "slope.grad.input",
    "slope.grad.head",
    "slope.grad.matrices",
    "slope.grad.block.first",
    "slope.grad.block.last",
    "slope.grad.block.last_first",
    "slope.grad.block.max_min",
    "slope.grad.down.last",
    "slope.grad.hidden.first",
    "slope.grad.hidden.last_first",
    "slope.grad.q_over_v.last",
    "slope.rms.last",
    "slope.rms.squared_growth",
    "slope.cosine.last",
    "slope.noise.response",
]
Metric = Literal[AtOneDepth, Slope, Trained]

Guard = Literal["degenerate_loss", "cloned_layers", "dropout", "no_final_norm", "non_finite_gradients", "eps_floor"]
"""Reasons for which a comparison cannot answer; docs/gradflow.md explains them."""

DEGENERATE = {
    "sum": "behind a LayerNorm every output row sums to a constant, so a sum has no gradient",
    "mean_square": "behind any norm the mean of squares is a constant, so it has no gradient",
}


def _honest(loss: Any) -> Any:
    if isinstance(loss, str) and loss in DEGENERATE:
        message = f"loss = {loss!r} cannot be used: {DEGENERATE[loss]}; what is left is rounding noise"
        raise fault(message, "")
    return loss


LossName = Literal["cross_entropy", "random_projection", "mean_squared_error"]
Loss = Annotated[LossName, BeforeValidator(_honest)]


def canonical(kind: Any) -> Any:
    """The kind that a placement's name stands for: peri is sandwich."""
    return expand(NormPlacement, kind)["kind"] if isinstance(kind, str) else kind


PlacementName = Annotated[str, BeforeValidator(canonical)]


class OfModel(Kind):
    """What the model's own patterns say, layer by layer; a bidirectional one is declared causal all the same."""

    kind: Literal["auto"] = "auto"


class SpokenAxis(Axis):
    """An axis whose kinds may also be written as text with the one key that they have: ``window=16``."""

    def expand(self, value: Any, kinds: tuple[type[Kind], ...]) -> Any:
        """The full table of ``window=16``, ``sliding_window=16`` or ``documents=5,7``; else as any axis has it."""
        if isinstance(value, str) and "=" in value:
            name, _, text = (part.strip() for part in value.partition("="))
            for kind in kinds:
                key = next((key for key in kind.model_fields if key != "kind"), None)
                if key and name in (key, name_of(kind), *kind.aliases):
                    numbers = [_number(word.strip()) for word in text.split(",")]
                    is_list = get_origin(kind.model_fields[key].annotation) is tuple
                    return {"kind": name_of(kind), key: numbers if is_list or len(numbers) > 1 else numbers[0]}
        return super().expand(value, kinds)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Table:
        forms = super().__get_pydantic_json_schema__(schema, handler)["anyOf"]
        return {"anyOf": [*forms, {"type": "string", "pattern": r"^\w+\s*=\s*\d+(\s*,\s*\d+)*$"}]}


def _number(word: str) -> int | str:
    """A whole number, or the text itself, which is refused where the key is told what it may be."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 20 else word


Declaration = Annotated[OfModel | Causal | SlidingWindow | Prefix | Documents | Bidirectional, SpokenAxis("auto")]


class CausalitySettings(Spec):
    """[causality]: what the model is declared to be, and how much is tried to find it otherwise.

    Attributes:
        declare: Which outputs may see which inputs: of every layer's attention; of a target, as a whole.
        dtypes: What the probes compute in; float64 and then the experiment's own dtype unless given.
        budget: The most forward passes spent at the experiment's own length, per dtype.
        shrink: Whether full coverage runs on a small copy; "auto" is above 20 million parameters.
        weights: "rescaled" (matrices redrawn so large that no leak is small) or "as-is"; "auto" is rescaled for a
            model whose weights are random anyway.
    """

    declare: Declaration = OfModel()
    dtypes: Items[Literal["float64", "float32", "bfloat16", "float16"]] = ()
    budget: Annotated[int, Field(ge=10, le=LARGEST)] = 64
    shrink: bool | Literal["auto"] = "auto"
    weights: Literal["auto", "rescaled", "as-is"] = "auto"


class Expect(Spec):
    """[[gradflow.expect]]: a metric of a placement, for every depth, between min and max.

    Attributes:
        metric: One of the metrics that docs/gradflow.md explains, or the slope of one over the depths.
        placement: Whose.
        over: A second placement: the ratio of the two (of slopes the difference), seed by seed, is what must be
            inside; "" for neither.
        depth: Of one depth only; 0 means of every depth.
        lr: Of training, with one learning rate only.
        warmup: Of training, with one warmup only.
        mode: "all": every seed is inside; "ci": the whole 95 % interval of the mean over the seeds is.
        min: The smallest value allowed.
        max: The largest value allowed.
        equals: For train.verdict, in place of min and max: the verdict, or verdicts, that every seed must have.
    """

    metric: Metric
    placement: PlacementName
    over: PlacementName = ""
    depth: Annotated[int, Field(ge=0)] = 0
    lr: Positive | Literal["all"] = "all"
    warmup: Steps | Literal["all"] = "all"
    mode: Literal["all", "ci"] = "all"
    min: float | None = None
    max: float | None = None
    equals: Annotated[tuple[Outcome, ...], OneOrMore()] = ()

    @model_validator(mode="after")
    def _bounded(self) -> "Expect":
        if self.metric == "train.verdict":
            return self._of_a_verdict()
        if self.equals:
            raise fault("a verdict equals something; a number has min and max", "equals", "metric")
        if self.min is None and self.max is None:
            raise fault("needs min or max", "min", "max")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise fault(f"min = {self.min} is above max = {self.max}: nothing can be inside", "min", "max")
        return self

    def _of_a_verdict(self) -> "Expect":
        if not self.equals:
            raise fault(f"train.verdict needs equals: one or more of {listed(get_args(Outcome))}", "equals")
        numeric = {"over": self.over != "", "mode": self.mode != "all", "min": self.min is not None}
        numeric["max"] = self.max is not None
        if wrong := [key for key, given in numeric.items() if given]:
            raise fault(f"a verdict is no number: leave {listed(wrong)} out", *wrong)
        return self


class GradflowSettings(Spec):
    """[gradflow]: which placements are compared, and how.

    Attributes:
        placements: Norm placements, each by its kind or as a table.
        baseline: The placement that the others are divided by; the first unless given.
        depths: Numbers of blocks; model.n_layers unless given.
        seeds: How many seeds, counted up from the experiment's seed.
        loss: cross_entropy with a vocabulary, random_projection without, unless given.
        allow: Guards that warn only: the comparison is made all the same.
        train: How the placements are trained as well.
        expect: Assertions that decide the exit code.
    """

    placements: Items[NormPlacement] = (Pre(), Post())
    baseline: PlacementName = derived("the first of placements")
    depths: Items[Layers] = derived("model.n_layers")
    seeds: Count = 5
    loss: Loss = derived("cross_entropy with a vocabulary, random_projection without")
    allow: Items[Guard] = ()
    train: TrainSettings = TrainSettings(steps=0)
    expect: Items[Expect] = ()


class TargetGradflowSettings(Spec):
    """[gradflow] beside a [target]: nothing is compared.

    Attributes:
        seeds: How many inputs, drawn from the experiment's seed and those that follow it.
        loss: "auto" is cross_entropy for a target that takes ids below V and puts out (B, T, V), else
            random_projection.
    """

    seeds: Count = 5
    loss: Annotated[Literal["auto", LossName], BeforeValidator(_honest)] = "auto"
