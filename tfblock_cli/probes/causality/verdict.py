"""Verdicts: how large a change may be where there must be none, and what it is called when it is larger."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tfblock_cli.results.causality import Leak, ProbeVerdict


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Relative changes up to ``clean`` are none, up to ``noise`` rounding; what is larger leaks."""

    clean: float
    noise: float

    def judge(self, change: float) -> ProbeVerdict:
        """The verdict on one relative change."""
        if not math.isfinite(change):
            return "inconclusive"
        if change <= self.clean:
            return "clean"
        return "noise" if change <= self.noise else "LEAK"


def same_shape(dtype: torch.dtype, scale: float = 1.0) -> Tolerance:
    """Bits must agree: equal shapes at the same place in the batch are computed by the same operations.

    What is left are modules that mix all positions and subtract the future again, such as a convolution by FFT:
    some roundings of the dtype, which grow with the scale of the content. In 16 bits that would excuse a leak of
    half the output, so there the limit is a float32's.
    """
    return Tolerance(0.0, min(64 * torch.finfo(dtype).eps, 1e-5) * scale)


def other_shape(dtype: torch.dtype) -> Tolerance:
    """Another length means other block sizes inside the kernels, so that correct models differ by rounding.

    Measured on correct decoders: 3e-15 in float64, 2e-6 in float32.
    """
    return Tolerance(1e-12, 1e-10) if dtype == torch.float64 else Tolerance(1e-5, 1e-4)


_RANK: tuple[ProbeVerdict, ...] = ("skipped", "clean", "noise", "inconclusive", "no-flow", "LEAK")


def worst_of(*verdicts: ProbeVerdict) -> ProbeVerdict:
    """The one that outranks the others: a leak stays a leak, whatever else could not be judged."""
    return max(verdicts, key=_RANK.index, default="clean")


@dataclass(slots=True)
class Tally:
    """What one comparison after the other amounts to.

    Attributes:
        tolerance: Of each of them.
        verdict: The gravest so far.
        worst: The largest change so far; nan is larger than any number.
        tried: How many there were.
        leaks: How many of them leak.
    """

    tolerance: Tolerance
    verdict: ProbeVerdict = "clean"
    worst: float = 0.0
    tried: int = 0
    leaks: int = 0

    def add(self, change: float) -> ProbeVerdict:
        """The verdict on one more relative change."""
        found = self.tolerance.judge(change)
        self.verdict = worst_of(self.verdict, found)
        self.worst = self.worst if change <= self.worst or math.isnan(self.worst) else change
        self.tried += 1
        self.leaks += found == "LEAK"
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one probe found in one mode.

    Attributes:
        verdict: The verdict.
        worst: The largest relative change where there must be none.
        limit: The largest one that passes.
        message: One sentence.
        cuts: The cuts that it tried; none for a probe that does not cut.
        leak: The first leaking pair.
        influence: The gradient map (T, T), relative to the median gradient of what may be seen.
    """

    verdict: ProbeVerdict
    worst: float | None
    message: str
    limit: float = 0.0
    cuts: tuple[int, ...] = ()
    leak: Leak | None = None
    influence: Tensor | None = None


def skipped(why: str) -> Finding:
    """Of a probe that has nothing to ask here."""
    return Finding(verdict="skipped", worst=None, message=why)
