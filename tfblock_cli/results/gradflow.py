"""What ``gradflow`` answers: gradient norms and residual sizes, per placement, depth, seed and layer."""

from dataclasses import dataclass
from typing import NamedTuple

from tfblock_cli.results.training import Condition, Training


class Row(NamedTuple):  # there are thousands, and a frozen dataclass takes five times as long to make
    """One measured number, long format.

    Attributes:
        placement: The norm placement's kind.
        seed: Of the weights and the input.
        depth: Number of blocks L.
        stage: "init": at initialization; "train": in a training run.
        step: Optimizer steps taken before; 0 at initialization.
        layer: The block 0..L-1; None for the whole model, the embedding and the loss.
        group: model, embedding, input, head, embedded, block, hidden or residual, or a part of a block: q, k, v, out,
            up, gate, down (the matrices), biases, norms.
        metric: loss, grad_norm, rms, cosine, noise_response; in training loss, held_out_loss, cosine, update_ratio.
        value: The number.
        lr: Of the training run; None at initialization.
        warmup: Of the training run; None at initialization.
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
    lr: float | None = None
    warmup: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A metric over the seeds, and its ratio to the baseline placement, seed by seed.

    Attributes:
        placement: The norm placement's kind.
        depth: Number of blocks; 0 for a slope over all depths.
        metric: Such as ``grad.embedding``, ``slope.grad.down.last``; docs/gradflow.md explains them.
        geomean: Geometric mean over the seeds; None for slopes, and where a value is not positive.
        mean: Arithmetic mean over the seeds.
        low: The smallest seed.
        high: The largest seed.
        ci_low: Lower end of the 95 % t-interval: of the geometric mean where there is one, else of the mean; None for
            one seed, and where a value is not finite.
        ci_high: Its upper end.
        ratio: Geometric mean of the per-seed ratios to the baseline; None for the baseline itself and for slopes.
        ratio_low: The smallest per-seed ratio.
        ratio_high: The largest per-seed ratio.
        ratio_ci_low: Lower end of the 95 % t-interval of the ratio.
        ratio_ci_high: Its upper end.
    """

    placement: str
    depth: int
    metric: str
    geomean: float | None
    mean: float
    low: float
    high: float
    ci_low: float | None
    ci_high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    ratio_ci_low: float | None
    ratio_ci_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFacts:
    """What a placement is, and what it changes of an otherwise equal model.

    Attributes:
        placement: The norm placement's kind.
        formula: One sub-layer, or one block.
        norms_per_block: Outside attention and FFN.
        final_norm: Whether the stack ends in a final norm.
        branch_gain: How large the weaker branch comes out of its matrices at the deepest stack: the geometric mean of
            std · sqrt(fan_in) over v and out, or over up and down, with the placement's own gains.
        overrides: What its method changes of weights drawn alike: gains, vectors of its own, inner norms.
    """

    placement: str
    formula: str
    norms_per_block: int
    final_norm: bool
    branch_gain: float
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One reason for which the experiment could not answer.

    Attributes:
        name: As in ``[gradflow] allow``.
        placements: Those that it speaks of; () if it holds nothing against any.
        allowed: Whether the experiment allows it: then it is a warning, else the verdict is inconclusive.
        message: What was found.
    """

    name: str
    placements: tuple[str, ...]
    allowed: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GradflowData:
    """The answer of ``gradflow``: the protocol in words, the placements, every number, and their summary.

    ``forwards`` and ``vjps`` are what it cost: forward passes, the one under noise included, and backward passes.
    ``training`` is None where nothing was trained: no table [gradflow.train], or a guard stood against the comparison.
    """

    loss: str
    baseline: str
    placements: tuple[PlacementFacts, ...]
    depths: tuple[int, ...]
    seeds: tuple[int, ...]
    guards: tuple[Guard, ...]
    forwards: int
    vjps: int
    rows: tuple[Row, ...]
    summary: tuple[Summary, ...]
    training: Training | None = None

    def losses(self, placement: str, condition: Condition) -> dict[int, list[float]]:
        """The training loss of a placement, by step, one number per seed."""
        found: dict[int, list[float]] = {}
        for row in self.rows:
            of = (row.stage, row.metric, row.placement, row.depth, row.lr, row.warmup)
            if of == ("train", "loss", placement, *condition):
                found.setdefault(row.step, []).append(row.value)
        return found
