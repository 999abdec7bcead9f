"""What ``gradflow`` answers: gradient norms and residual sizes, per placement, depth, seed and layer."""

from dataclasses import dataclass

METRICS = {
    "loss": "the loss",
    "grad.embedding": "gradient norm of the token table",
    "grad.input": "gradient norm of the stack's input",
    "grad.block.first": "gradient norm of the first block's parameters",
    "grad.block.last": "gradient norm of the last block's parameters",
    "grad.block.last_first": "gradient norm of the last block over that of the first",
    "grad.block.max_min": "largest gradient norm of a block over the smallest",
    "rms.last": "root mean square of the residual stream behind the last block",
    "cosine.last": "mean cosine between different tokens of a sequence behind the last block; 1 is a collapse",
}
"""What placements are compared by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured number, long format.

    Attributes:
        placement: The norm placement's kind.
        seed: Of the weights and the input.
        depth: Number of blocks L.
        stage: "init": at initialization.
        step: Optimizer steps taken before; 0 at initialization.
        layer: The block 0..L-1; None for the whole model, the embedding and the loss.
        group: embedding, input, block, residual, head or model.
        metric: loss, grad_norm, rms, ...
        value: The number.
    """

    placement: str
    seed: int
    depth: int
    stage: str
    step: int
    layer: int | None
    group: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A metric over the seeds: geometric mean, smallest and largest, and its ratio to the baseline placement.

    Attributes:
        placement: The norm placement's kind.
        depth: Number of blocks.
        metric: Such as ``grad.embedding``, ``grad.block.last_first``, ``rms.last``; docs/gradflow.md explains them.
        geomean: Geometric mean over the seeds; None where a value is not positive.
        low: The smallest seed.
        high: The largest seed.
        ratio: Geometric mean of the per-seed ratios to the baseline; None for the baseline itself.
        ratio_low: The smallest per-seed ratio.
        ratio_high: The largest per-seed ratio.
    """

    placement: str
    depth: int
    metric: str
    geomean: float | None
    low: float
    high: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFacts:
    """What a placement is: its formula, its norms per block, and whether the stack ends in a final norm."""

    placement: str
    formula: str
    norms_per_block: int
    final_norm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GradflowData:
    """The answer of ``gradflow``: the protocol in words, the placements, every number, and their summary."""

    loss: str
    baseline: str
    placements: tuple[PlacementFacts, ...]
    depths: tuple[int, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    summary: tuple[Summary, ...]
