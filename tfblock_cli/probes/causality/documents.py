"""Documents: what is packed into one sequence is as if it were alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from torch import Tensor

from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.probes.causality.first_pair import first_input, where
from tfblock_cli.probes.causality.own_attention import attentions
from tfblock_cli.probes.causality.rounding import reference
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.stage import Pass, first_difference
from tfblock_cli.probes.causality.verdict import Finding, Tally, same_shape, skipped
from tfblock_cli.probes.change import change_T, size
from tfblock_cli.results.causality import Leak
from tfblock_cli.spec.attention import Causal, Documents, Pattern
from tfblock_cli.spec.position import Learned


def documents(session: Session) -> Finding:
    """Replace one document after the other: all other outputs keep their bits. Then each alone: the same outputs.

    The second only for a decoder of ours whose positions are relative: a learned table tells a document where it is.
    """
    starts = boundaries(session)
    if len(starts) == 1:
        return skipped("no documents were declared")
    spans = tuple(zip(starts, (*starts[1:], session.seq_len), strict=True))
    x = session.draw("input")
    session.progress.start(f"documents, {session.mode_name}", 1 + len(spans))
    y = session(x)
    largest, tally = size(y), Tally(same_shape(session.dtype))
    leak: Leak | None = None
    message = f"{len(spans)} documents leave every bit of each other"
    for start, stop in spans:
        z = x.clone()
        z[:, start:stop] = session.redraw(x[:, start:stop], f"document.{start}")
        moved_T = change_T(session(z), y, largest)
        moved_T[start:stop] = 0
        found = tally.add(float(moved_T.max()))
        if found == "LEAK" and leak is None:
            leak = _seen(session, x, z, y, (start, stop), moved_T)
            message = (
                f"output {leak.out} changes when tokens {start}..{stop - 1} are replaced; input {leak.in_} is enough "
                f"{where(leak)}"
            )
        elif found != "clean" and leak is None:
            message = f"outputs change by {tally.worst:.1e} when another document is replaced"
    if tally.verdict == "clean" and _is_relative(session):
        for start, stop in spans:
            with _under(session, Causal()):
                alone = reference(session, x[:, start:stop])
            if isinstance(alone, str):
                return Finding(verdict="clean", worst=0.0, message=f"{message}; {alone}")
            tally.tolerance = alone.tolerance
            moved_T = change_T(alone.y, y[:, start:stop], largest)
            found = tally.add(float(moved_T.max()))
            if found == "LEAK" and leak is None:
                leak = _packed(session, x, (start, stop), moved_T, tally.tolerance.noise, largest)
                message = (
                    f"output {leak.out} is another one when tokens {start}..{stop - 1} are alone; input {leak.in_} is "
                    f"enough to change it {where(leak)}"
                )
            elif found != "clean" and leak is None:
                message = f"documents give outputs that differ by {tally.worst:.1e} from those that they give alone"
        if tally.verdict == "clean":
            message += ", and give the same outputs alone"
    if leak is not None:
        leak = replace(leak, cuts=tally.leaks, cuts_total=tally.tried)
    return Finding(verdict=tally.verdict, worst=tally.worst, limit=tally.tolerance.noise, message=message, leak=leak)


def boundaries(session: Session) -> tuple[int, ...]:
    """Where documents start: no token from there on sees one before, and none before sees one behind."""
    reach_TT = session.reach | session.reach.T
    return (0, *(b for b in range(1, session.seq_len) if not bool(reach_TT[b:, :b].any())))


def _seen(session: Session, x: Tensor, z: Tensor, y: Tensor, span: tuple[int, int], moved_T: Tensor) -> Leak:
    """The first output of another document that changes, and the first input of this one that is enough for it."""
    start, stop = span
    limit, largest = same_shape(session.dtype).noise, size(y)
    out = int((moved_T > limit).nonzero()[0])

    def moved(j: int) -> bool:
        tokens = x.clone()
        tokens[:, start : j + 1] = z[:, start : j + 1]
        return float(change_T(session(tokens), y, largest)[out]) > limit

    T = x.shape[1]
    rows = slice(start) if out < start else slice(stop, T)
    stage = first_difference(session, Pass(partial(session, x), T, rows), Pass(partial(session, z), T, rows), limit)
    return _leak(session, out, first_input(start, stop, moved), float(moved_T[out]), stage)


def _packed(session: Session, x: Tensor, span: tuple[int, int], moved_T: Tensor, limit: float, largest: float) -> Leak:
    """The first output that is another one alone, and the nearest token before or behind that makes the difference."""
    start, stop = span
    i = int((moved_T > limit).nonzero()[0])

    def alone() -> Tensor:
        with _under(session, Causal()):
            return session(x[:, start:stop])

    def after(n: int) -> bool:
        """Whether n tokens of another document in front of it are enough."""
        with _under(session, Documents(lengths=(n, stop - start))):
            packed = session(x[:, start - n : stop])[:, n:]
        return float(change_T(packed, alone(), largest)[i]) > limit

    def before(j: int) -> bool:
        """Whether the tokens behind it, up to j, are enough."""
        longer, own = (session(x[:, :end])[:, start:stop] for end in (j + 1, stop))
        return float(change_T(longer, own, largest)[i]) > limit

    in_ = start + i
    if start and after(start):
        in_ = start - first_input(1, start + 1, after)
    elif stop < x.shape[1]:
        in_ = first_input(stop, x.shape[1], before)
    packed = Pass(partial(session, x), x.shape[1], slice(start, stop))
    stage = first_difference(session, Pass(alone, stop - start, slice(None)), packed, limit)
    return _leak(session, start + i, in_, float(moved_T[i]), stage)


def _leak(session: Session, out: int, in_: int, magnitude: float, stage: str | None) -> Leak:
    """Of which the documents are still to be counted."""
    return Leak(
        probe="documents",
        mode=session.mode_name,
        out=out,
        in_=in_,
        magnitude=magnitude,
        cuts=0,
        cuts_total=0,
        counted="documents",
        stage=stage,
        shape="another document",
    )


@contextmanager
def _under(session: Session, pattern: Pattern) -> Iterator[None]:
    """The decoder with another pattern in the place of its documents, wherever they are in its layers."""
    layers = [attention for attention in attentions(session) if isinstance(attention.pattern, Documents)]
    before = [attention.pattern for attention in layers]
    try:
        for attention in layers:
            attention.pattern = pattern
        yield
    finally:
        for attention, own in zip(layers, before, strict=True):
            attention.pattern = own


def _is_relative(session: Session) -> bool:
    decoder = session.subject.module
    return isinstance(decoder, Decoder) and not isinstance(decoder.spec.position, Learned)
