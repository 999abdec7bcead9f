"""Incremental decoding: the same tokens in pieces, with a cache, give the outputs of the full pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tfblock_cli.probes.causality.first_pair import first_input, where
from tfblock_cli.probes.causality.pieces import fed, last, schedules, up_to, without_first
from tfblock_cli.probes.causality.rounding import reference
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.stage import Pass, first_difference
from tfblock_cli.probes.causality.verdict import Finding, Tally, same_shape, skipped
from tfblock_cli.probes.change import change_T, size
from tfblock_cli.results.causality import Leak


@dataclass(frozen=True, slots=True)
class _Wrong:
    """The first piece whose outputs are not those of the full pass.

    Attributes:
        schedule: The name of the schedule.
        pieces: Those of it up to this one.
        out: The first output that differs.
        magnitude: By how much, relative to the largest output.
    """

    schedule: str
    pieces: Sequence[int]
    out: int
    magnitude: float


def incremental(session: Session) -> Finding:
    """One full pass; then each schedule of pieces from an empty cache.

    A cache that holds what it should not, that counts positions anew, or a mask that is left away when there is a
    cache, shows in some schedule.
    """
    mutual = session.declared.mutual
    if mutual is None or mutual >= session.seq_len:
        return skipped("every output may see the future, as it was declared: it cannot be made in pieces")
    try:
        if session.subject.new_cache(1) is None:
            return skipped("the model keeps no key-value cache, or none that is known here")
    except ValueError as error:  # a pattern of ours that forbids one
        return skipped(str(error))
    x = session.draw("input")
    right = reference(session, x)
    if isinstance(right, str):
        return skipped(right)
    plans = schedules(session.seq_len, session.declared.reach, mutual)
    if session.subject.single_steps:
        plans = {name: pieces for name, pieces in plans.items() if set(pieces[1:]) <= {1}}
    session.progress.start(f"incremental, {session.mode_name}", sum(map(len, plans.values())))
    largest, limit, tally = size(right.y), right.tolerance.noise, Tally(right.tolerance)
    wrong: _Wrong | None = None
    for name, pieces in plans.items():
        for start, y in fed(session, x, pieces):
            stop = start + y.shape[1]
            moved_T = change_T(y, right.y[:, start:stop], largest)
            if tally.add(float(moved_T.max())) == "LEAK" and wrong is None:
                i = int((moved_T > limit).nonzero()[0])
                wrong = _Wrong(name, up_to(pieces, stop), start + i, float(moved_T[i]))
    leak = None
    match tally.verdict:
        case "LEAK":
            assert wrong is not None
            leak = _leak(session, x, wrong, tally, largest)
            message = (
                f"output {leak.out} differs from that of the full pass by {leak.magnitude:.1e}, {wrong.schedule}; "
                f"the input that makes it differ is {leak.in_} {where(leak)}"
            )
        case "inconclusive":
            message = "the output holds nan, which no comparison can judge"
        case "noise":
            message = f"with a cache outputs change by {tally.worst:.1e} of the largest one: more than rounding should"
        case _:
            message = f"with a cache all outputs are those of the full pass ({'; '.join(plans)})"
    return Finding(verdict=tally.verdict, worst=tally.worst, limit=limit, message=message, leak=leak)


def _leak(session: Session, x: Tensor, wrong: _Wrong, tally: Tally, largest: float) -> Leak:
    """The output, and the input that makes it differ: one ahead of it in either pass, else one in the cache."""
    pieces, out, limit = wrong.pieces, wrong.out, tally.tolerance.noise
    stop = sum(pieces)
    start, tokens = stop - pieces[-1], x[:, :stop]
    y = last(session, tokens, pieces).run()
    whole = session(x)
    other = torch.cat((x[:, : out + 1], session.redraw(x[:, out + 1 :], "ahead")), dim=1)
    mutual = session.declared.mutual or 0
    prefix = mutual if mutual > 1 else 0  # it has to come in one piece

    def ahead(j: int) -> bool:
        """Whether the output of the full pass changes when the inputs behind it, up to j, are replaced."""
        z = torch.cat((other[:, : j + 1], x[:, j + 1 :]), dim=1)
        return float(change_T(session(z), whole, largest)[out]) > same_shape(session.dtype).noise

    def ahead_in_chunk(j: int) -> bool:
        """Whether that of the chunk does."""
        z = torch.cat((other[:, : j + 1], x[:, j + 1 :]), dim=1)
        moved_T = change_T(last(session, z, pieces).run(), y, largest)
        return float(moved_T[out - start]) > same_shape(session.dtype).noise

    def behind(n: int) -> bool:
        """Whether the output still differs from that of a full pass when the cache holds n tokens."""
        since = start - n
        y = last(session, tokens[:, since:], without_first(pieces, since, max(prefix, 1))).run()
        moved = change_T(y, session(tokens[:, since:])[:, n:], largest)[out - start]
        return float(moved) > limit

    T = session.seq_len
    if out + 1 < T and ahead(T - 1):
        shape, in_ = "ahead without a cache", first_input(out + 1, T, ahead)
    elif out + 1 < stop and ahead_in_chunk(stop - 1):
        shape, in_ = "ahead in its chunk", first_input(out + 1, stop, ahead_in_chunk)
    else:
        n = first_input(min(prefix, start), start + 1, behind)
        shape, in_ = "behind a cache", start - n if n else out
    return Leak(
        probe="incremental",
        mode=session.mode_name,
        out=out,
        in_=in_,
        magnitude=wrong.magnitude,
        cuts=tally.leaks,
        cuts_total=tally.tried,
        counted="chunks",
        stage=first_difference(
            session, Pass(partial(session, x), T, slice(start, stop)), last(session, tokens, pieces), limit
        ),
        shape=shape,
    )
