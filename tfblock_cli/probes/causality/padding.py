"""Padding: what stands at the left of a sequence and means nothing changes nothing, with and without a cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from tfblock_cli.probes.causality.first_pair import first_input, where
from tfblock_cli.probes.causality.pieces import CHUNKS, HALF, fed, last, schedules, up_to
from tfblock_cli.probes.causality.rounding import Reference, reference
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.stage import Pass, first_difference
from tfblock_cli.probes.causality.verdict import Finding, Tally, same_shape, skipped, worst_of
from tfblock_cli.probes.change import change_T, size
from tfblock_cli.results.causality import Leak

Pieces = Sequence[int] | None
"""Those that are fed to a cache; None: the whole sequence, without one."""


@dataclass(frozen=True, slots=True)
class _Padded:
    """Sequences behind other amounts of padding.

    Attributes:
        x: (B, T) or (B, T, D).
        z: The same, other content in the padding.
        amounts: Of padding, (B,).
    """

    x: Tensor
    z: Tensor
    amounts: Tensor

    def outputs(self, session: Session, x: Tensor, pieces: Pieces) -> Tensor:
        """For x, which is padded like these."""
        if pieces is None:
            return session(x, padding=self.amounts)
        return torch.cat([y for _, y in fed(session, x, pieces, self.amounts)], dim=1)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """The first output that padding changes.

    Attributes:
        how: The way in which the sequences were fed, in words.
        pieces: The same in numbers.
        sample: Which sequence.
        out: Which output of it, padding included.
        magnitude: Its change, relative to the largest output.
        by_content: Whether other content in the padding changes it, or only its being there.
    """

    how: str
    pieces: Pieces
    sample: int
    out: int
    magnitude: float
    by_content: bool


def padding(session: Session) -> Finding:
    """Three sequences with other amounts of padding: replacing it changes no bit behind it.

    And each sequence gives the outputs that it gives alone: as a whole, and in pieces with a cache, which has to
    remember what of it is padding. Outputs of the padding itself mean nothing, but must not be nan.
    """
    if not session.subject.takes_padding:
        return skipped(session.subject.untold)
    mutual = session.declared.mutual
    if mutual is None:
        return skipped("every output may see every input, as it was declared")
    T = session.seq_len
    amounts = sorted({0, min(3, T - 1), T // 2})
    x = session.draw("padding", len(amounts))
    z = session.redraw(x, "padding.other")
    for b, n in enumerate(amounts):
        z[b, n:] = x[b, n:]
    padded = _Padded(x, z, torch.tensor(amounts))
    alone: list[Reference] = []
    for b, n in enumerate(amounts):
        right = reference(session, x[b : b + 1, n:])
        if isinstance(right, str):
            return skipped(right)
        alone.append(right)
    ways = _ways(session, mutual + max(amounts) if mutual > 1 else 1)
    passes = sum(1 if pieces is None else len(pieces) for pieces in ways.values())
    session.progress.start(f"padding, {session.mode_name}", 2 * passes)
    largest = max(size(right.y) for right in alone)
    rounding = max((right.tolerance for right in alone), key=lambda tolerance: tolerance.noise)
    is_counted = not session.subject.tells_positions and _is_counted(session, padded, alone, largest, rounding.noise)
    content, presence = Tally(same_shape(session.dtype)), Tally(rounding)
    wrong: _Wrong | None = None
    for how, pieces in ways.items():
        y, other = (padded.outputs(session, tokens, pieces) for tokens in (x, z))
        if bool(y.isnan().any()):
            return Finding(verdict="inconclusive", worst=None, message="the output holds nan")
        if pieces is not None and _is_the_caches(session, x[:1], y[:1], pieces, alone[0]):
            continue
        for b, n in enumerate(amounts):
            for tally, right_y in ((content, other[b : b + 1, n:]), (presence, alone[b].y))[: 2 - is_counted]:
                moved_T = change_T(y[b : b + 1, n:], right_y, largest)
                if tally.add(float(moved_T.max())) == "LEAK" and wrong is None:
                    i = int((moved_T > tally.tolerance.noise).nonzero()[0])
                    wrong = _Wrong(how, pieces, b, n + i, float(moved_T[i]), tally is content)
    verdict = worst_of(content.verdict, presence.verdict)
    leak = None
    worst, limit = presence.worst, presence.tolerance.noise
    if content.verdict != "clean":
        worst, limit = content.worst, content.tolerance.noise
    match verdict:
        case "LEAK":
            assert wrong is not None
            leak = _leak(session, padded, wrong, (content, presence), largest)
            fault = "changes when the padding is replaced" if wrong.by_content else "is another one behind padding"
            message = f"output {leak.out} {fault}{wrong.how}; the padding that does it is {leak.in_} {where(leak)}"
        case "noise":
            message = f"padding changes outputs by {worst:.1e} of the largest one: more than rounding should"
        case _ if is_counted:
            message = (
                "outputs keep every bit when the padding is replaced; they are not those of the sequence alone, since "
                "it cannot be told by position_ids that its positions start behind the padding: pad it on the right"
            )
        case _:
            message = (
                "outputs keep every bit when the padding is replaced, and are those of the sequence alone, "
                f"{'with and without' if len(ways) > 1 else 'without'} a cache"
            )
    return Finding(verdict=verdict, worst=worst, limit=limit, message=message, leak=leak)


def _is_counted(session: Session, padded: _Padded, alone: Sequence[Reference], largest: float, limit: float) -> bool:
    """Whether a sequence behind padding gives other outputs than alone; no fault if its positions cannot be told."""
    y = padded.outputs(session, padded.x, None)
    amounts = padded.amounts.tolist()
    return any(float(change_T(y[b : b + 1, n:], alone[b].y, largest).max()) > limit for b, n in enumerate(amounts))


def _ways(session: Session, first: int) -> dict[str, Pieces]:
    """Of feeding padded sequences: as a whole; and to a cache in pieces, once in such as are less than the padding.

    Tokens that see each other come in the first piece, behind the padding.
    """
    ways: dict[str, Pieces] = {"": None}
    try:
        if session.subject.new_cache(1) is None:
            return ways
    except ValueError:  # a pattern of ours that forbids one
        return ways
    plans = schedules(session.seq_len, session.declared.reach, first)
    for name in (HALF, CHUNKS):
        if not session.subject.single_steps or set(plans[name][1:]) <= {1}:
            ways[f" ({name}, with a cache)"] = plans[name]
    return ways


def _is_the_caches(session: Session, x: Tensor, y: Tensor, pieces: Sequence[int], right: Reference) -> bool:
    """Whether a sequence without padding comes out wrong because it is fed to a cache: no fault of the padding."""
    largest, limit = size(right.y), right.tolerance.noise
    if float(change_T(y, right.y, largest).max()) <= limit:
        return False
    alone = torch.cat([part for _, part in fed(session, x, pieces)], dim=1)
    return float(change_T(alone, right.y, largest).max()) > limit


def _leak(session: Session, padded: _Padded, wrong: _Wrong, tallies: Sequence[Tally], largest: float) -> Leak:
    """The output, and the padding next to the sequence that is enough to change it."""
    x, b, out = padded.x, wrong.sample, wrong.out
    n = int(padded.amounts[b])
    limit = tallies[0 if wrong.by_content else 1].tolerance.noise
    y = padded.outputs(session, x, wrong.pieces)

    def replaced(m: int) -> bool:
        """Whether it changes when the last m tokens of the padding are replaced."""
        tokens = x.clone()
        tokens[b, n - m : n] = padded.z[b, n - m : n]
        moved_T = change_T(padded.outputs(session, tokens, wrong.pieces)[b : b + 1], y[b : b + 1], largest)
        return float(moved_T[out]) > limit

    def present(m: int) -> bool:
        """Whether the output there is wrong behind m tokens of padding; the rest of them stands behind the sequence."""
        tokens, amounts = x.clone(), padded.amounts.clone()
        tokens[b] = torch.cat((x[b, n - m :], x[b, : n - m]))
        amounts[b] = m
        moved = _Padded(tokens, tokens, amounts).outputs(session, tokens, wrong.pieces)[b : b + 1, m:]
        return float(change_T(moved, session(tokens[b : b + 1, m:]), largest)[out - m]) > limit

    m = first_input(0, n + 1, replaced if wrong.by_content else present)
    return Leak(
        probe="padding",
        mode=session.mode_name,
        out=out,
        in_=n - m if m else out,
        magnitude=wrong.magnitude,
        cuts=sum(tally.leaks for tally in tallies),
        cuts_total=sum(tally.tried for tally in tallies),
        counted="comparisons",
        stage=_stage(session, padded, wrong, limit),
        shape="padding",
    )


def _stage(session: Session, padded: _Padded, wrong: _Wrong, limit: float) -> str | None:
    """Where the padded sequence, in the piece that holds the output, and the same alone begin to differ."""
    x, amounts, b = padded.x, padded.amounts, wrong.sample
    T, n = x.shape[1], int(amounts[b])
    if wrong.pieces is None:
        stop, behind = T, Pass(partial(session, x, amounts), T, slice(n, T))
    else:
        stop = next(end for end in accumulate(wrong.pieces) if end > wrong.out)
        behind = last(session, x, up_to(wrong.pieces, stop), amounts)
    start = stop - behind.seq_len
    behind = behind._replace(rows=slice(max(n - start, 0), behind.seq_len), sample=b)
    alone = Pass(partial(session, x[b : b + 1, n:]), T - n, slice(max(start - n, 0), stop - n))
    return first_difference(session, alone, behind, limit)
