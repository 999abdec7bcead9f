"""What ``causality`` answers: which outputs see the future, and what was tried to find out."""

from dataclasses import dataclass
from typing import Literal

ProbeVerdict = Literal["clean", "noise", "LEAK", "no-flow", "inconclusive", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One probe in one mode.

    Attributes:
        name: preflight, suffix_cuts, ...
        mode: "eval", "eval, grad" or "train"; with the kernel: "eval sdpa".
        seq_len: T.
        dtype: The dtype that it ran in.
        verdict: clean (exactly 0; where the shape changes, what another shape may round), noise (of the size of
            rounding), LEAK, no-flow (what must flow does not), inconclusive, skipped (there is nothing to ask).
        worst: The largest change seen where there must be none, relative to the largest output (of a gradient map:
            to the median gradient of the past); None without one.
        forwards: Forward passes that it cost, those that name a leak's pair and stage included; a step with a cache
            is one.
        cuts_tried: Cuts k in 1..T-1 that it tried.
        cuts_total: T - 1.
        pairs_covered: Part of the pairs (i, j), i < j, that the tried cuts separate, between 0 and 1.
        message: One sentence: what was seen, or why it is inconclusive.
        vjps: Backward passes that it cost.
        limit: The largest ``worst`` that is no leak.
    """

    name: str
    mode: str
    seq_len: int
    dtype: str
    verdict: ProbeVerdict
    worst: float | None
    forwards: int
    cuts_tried: int
    cuts_total: int
    pairs_covered: float
    message: str
    vjps: int = 0
    limit: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """The first leaking pair of one probe: output ``out`` changes when input ``in_`` does, and must not.

    out < in_ where it is the future that is seen. Of a fault that is not about the future the shape says what it is
    about: "outside the window", where the input is too far back; "another document"; "another sample", whose input it
    is; "another head", by which the input comes; "padding". In two shapes the output may depend on the input, but not
    as it does: "behind a cache", where it goes wrong once that input is in the cache, and "absolute position", where
    the weight of that input changes as both are moved by as much.

    Attributes:
        probe: The probe that found it.
        mode: Its mode.
        out: The position of the output that sees the future.
        in_: The position of the input that it sees.
        magnitude: The change of that output, relative to the largest output.
        cuts: The cuts, out of ``cuts_total``, at which some earlier output changed; of a probe that cuts nothing the
            comparisons that failed.
        cuts_total: The cuts tried, or what else is counted.
        counted: What is counted: "cuts", "chunks", "comparisons", "documents", "heads", "outputs", "pairs of samples"
            or "queries".
        stage: The first module, in the order of the computation, whose inputs before the cut agree while its output
            differs; None where the outputs of two forward passes do not show the leak.
        shape: What the failing cuts have in common: "next token", "full upper triangle", "within blocks of 8",
            "one row", "one column", "last column", "ahead in its chunk", "ahead without a cache", "weights that are
            lost", one of those named above, or "other"; where it is known, how many heads of a layer have it.
    """

    probe: str
    mode: str
    out: int
    in_: int
    magnitude: float
    cuts: int
    cuts_total: int
    stage: str | None = None
    shape: str = "other"
    counted: str = "cuts"

    @property
    def may_depend(self) -> bool:
        """Whether the output may depend on the input, but not as it does."""
        return self.shape in ("behind a cache", "absolute position")


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One model of the self-test, whose causality is known.

    Attributes:
        name: What is wrong with it, or what it is.
        family: The kind of fault; "correct" for a model that must be clean.
        probe: The probe that must speak, with its mode where that matters; "every" for a correct model.
        wanted: The verdict that it must give.
        found: The verdict that it gave.
        caught: Whether that is right.
        worst: The largest change that the probe saw.
    """

    name: str
    family: str
    probe: str
    wanted: str
    found: str
    caught: bool
    worst: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalityData:
    """The answer of ``causality``: the probes in their order, the leaks, and what was not proven.

    Attributes:
        declared: Which outputs may see which inputs.
        seq_len: T of the experiment.
        probes: In their order.
        leaks: Of the future first, by output and then by input; the others in the order in which they were found.
        not_proven: What nothing of this speaks of.
        notes: On what it was tried, where that is not the very model of the experiment.
        influence: The gradient map (T, T) of the first mode, relative to the median of what may be seen.
        controls: Of ``--self-test``: the checker's own check.
    """

    declared: str
    seq_len: int
    probes: tuple[ProbeRow, ...]
    leaks: tuple[Leak, ...]
    not_proven: tuple[str, ...]
    notes: tuple[str, ...] = ()
    influence: tuple[tuple[float, ...], ...] = ()
    controls: tuple[Control, ...] = ()
