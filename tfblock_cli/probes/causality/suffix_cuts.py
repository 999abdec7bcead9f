"""Suffix cuts: outputs before k keep their bits whatever x[k:] is, and outputs from k on do not."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tfblock_cli.probes.causality.first_pair import Cut, Failures, first_input, where
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.verdict import Finding, same_shape, skipped, worst_of
from tfblock_cli.probes.change import change_T, size, speaks_T
from tfblock_cli.results.causality import ProbeVerdict

TWO_SCALES = (1.0, 30.0)
RETRIES = 16
"""Fresh draws for a position whose output has not changed yet. A small model may give equal outputs by chance."""


def suffix_cuts(
    session: Session, cuts: Sequence[int], scales: Sequence[float] = TWO_SCALES, batch_size: int = 1
) -> Finding:
    """For each cut replace all of x[k:] by fresh content, at the same shape: one forward pass per cut and draw.

    Args:
        session: An open one.
        cuts: Which k.
        scales: One draw each: vectors from N(0, scale²); ids are drawn anew, each other than the old one.
        batch_size: Sequences at least, all cut at the same place: some masks are right for the first sample only.
    """
    if not any(bool(session.hidden(k).any()) for k in cuts):
        return skipped("every output may see the future, as it was declared, so no cut has anything to hide")
    x = session.draw("input", max(batch_size, session.batch_size))
    session.progress.start(f"suffix cuts, {session.mode_name}", 1 + len(cuts) * len(scales))
    y = session(x)
    largest = size(y)
    verdict: ProbeVerdict = "clean"
    worst, noisiest = 0.0, None
    silent_T = (torch.arange(session.seq_len, device=y.device) >= min(cuts)) & speaks_T(y)
    failures = Failures(cuts)
    for draw, scale in enumerate(scales):
        tolerance = same_shape(session.dtype, scale)
        for k in cuts:
            z = with_suffix(session, x, k, draw, scale)
            moved_T = change_T(session(z), y, largest)
            hidden = session.hidden(k).to(y.device)
            change = float((moved_T[:k] * hidden).max())
            found = tolerance.judge(change)
            verdict = worst_of(verdict, found, "clean" if bool(moved_T.isfinite().all()) else "inconclusive")
            silent_T[k:] &= moved_T[k:] == 0
            if change > worst:
                worst, noisiest = change, k
            if found == "LEAK":
                failures.add(Cut(k, z, moved_T[:k] * hidden, tolerance.noise))
    silent = _still_silent(session, x, y, silent_T) if verdict != "inconclusive" else []
    verdict = worst_of(verdict, "no-flow" if silent else "clean")
    leak = None
    match verdict:
        case "LEAK":
            first = failures.first(session, lambda k: _cut(session, x, y, k))
            in_ = first_input(first.k, session.seq_len, lambda j: _moved(session, x, y, first, j))
            leak = failures.leak("suffix_cuts", session, x, first, in_)
            message = f"output {leak.out} changes when input {leak.in_} is replaced {where(leak)}"
        case "no-flow":
            message = f"output {silent[0]} stays the same whatever stands at its own position and behind"
        case "inconclusive":
            message = "the output holds nan, which no comparison can judge"
        case "noise":
            message = f"outputs before position {noisiest} change by {worst:.1e} of the largest output: rounding"
        case _:
            message = f"replacing x[k:] leaves every bit of the outputs before k, at {len(cuts)} cuts"
    limit = same_shape(session.dtype, min(scales) if leak else max(scales)).noise
    return Finding(verdict=verdict, worst=worst, limit=limit, message=message, cuts=tuple(cuts), leak=leak)


def with_suffix(session: Session, x: Tensor, k: int, draw: int = 0, scale: float = 1.0) -> Tensor:
    """x[:k], then fresh content. Every cut and draw has its own, so that no single value decides."""
    return torch.cat((x[:, :k], session.redraw(x[:, k:], f"suffix.{draw}.{k}", scale)), dim=1)


def _cut(session: Session, x: Tensor, y: Tensor, k: int) -> Cut:
    """One cut more, of the first draw."""
    z = with_suffix(session, x, k)
    moved_T = change_T(session(z), y, size(y))[:k]
    return Cut(k, z, moved_T * session.hidden(k).to(y.device), same_shape(session.dtype).noise)


def _moved(session: Session, x: Tensor, y: Tensor, cut: Cut, j: int) -> bool:
    """Whether the leaking output still changes when of the failing suffix only the positions k..j are replaced."""
    z = torch.cat((cut.z[:, : j + 1], x[:, j + 1 :]), dim=1)
    moved_T = change_T(session(z), y, size(y))
    return float(moved_T[cut.out]) > cut.limit


def _still_silent(session: Session, x: Tensor, y: Tensor, silent_T: Tensor) -> list[int]:
    """The positions whose output never changes, after more draws."""
    for retry in range(RETRIES):
        if not bool(silent_T.any()):
            break
        z = with_suffix(session, x, 1, draw=-1 - retry)
        silent_T &= change_T(session(z), y, 1.0) == 0
    return [int(i) for i in silent_T.nonzero().flatten()]
