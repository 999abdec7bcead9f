"""Documents: what is packed into one sequence is as if it were alone."""

from collections.abc import Iterator
from contextlib import contextmanager

from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.probes.causality.own_attention import attentions
from tfblock_cli.probes.causality.session import Session, change_T, size
from tfblock_cli.probes.causality.verdict import Finding, other_shape, same_shape, skipped, worst_of
from tfblock_cli.results.causality import ProbeVerdict
from tfblock_cli.spec.attention import Causal, Documents
from tfblock_cli.spec.position import Learned


def documents(session: Session) -> Finding:
    """Replace one document after the other: all other outputs keep their bits. Then each alone: the same outputs.

    The second only for a decoder of ours whose positions are relative: a learned table tells a document where it is.
    """
    starts = boundaries(session)
    if len(starts) == 1:
        return skipped("no documents were declared")
    x = session.draw("input")
    session.progress.start(f"documents, {session.mode_name}", 1 + 2 * len(starts))
    y = session(x)
    largest, limits = size(y), same_shape(session.dtype)
    verdict: ProbeVerdict = "clean"
    worst, message = 0.0, f"{len(starts)} documents leave every bit of each other"
    for start, stop in zip(starts, (*starts[1:], session.seq_len), strict=True):
        z = x.clone()
        z[:, start:stop] = session.redraw(x[:, start:stop], f"document.{start}")
        moved_T = change_T(session(z), y) / largest
        moved_T[start:stop] = 0
        change = float(moved_T.max())
        found = limits.judge(change)
        if found not in ("clean", verdict):
            message = (
                f"output {int(moved_T.argmax())} changes by {change:.1e} when tokens {start}..{stop - 1} are replaced"
            )
        verdict = worst_of(verdict, found)
        worst = change if not change <= worst else worst
    if verdict == "clean" and _is_relative(session):
        limits = other_shape(session.dtype)
        for start, stop in zip(starts, (*starts[1:], session.seq_len), strict=True):
            with _one_document(session):
                alone = session(x[:, start:stop])
            change = float(change_T(alone, y[:, start:stop]).max()) / largest
            found = limits.judge(change)
            if found not in ("clean", verdict):
                message = (
                    f"tokens {start}..{stop - 1} alone give outputs that differ by {change:.1e} from those in the pack"
                )
            verdict = worst_of(verdict, found)
            worst = change if not change <= worst else worst
        if verdict == "clean":
            message += ", and give the same outputs alone"
    return Finding(verdict=verdict, worst=worst, limit=limits.noise, message=message)


def boundaries(session: Session) -> tuple[int, ...]:
    """Where documents start: no token from there on sees one before, and none before sees one behind."""
    reach_TT = session.reach | session.reach.T
    return (0, *(b for b in range(1, session.seq_len) if not bool(reach_TT[b:, :b].any())))


@contextmanager
def _one_document(session: Session) -> Iterator[None]:
    """The decoder as it is for one document, wherever that would stand in the pack."""
    layers = [attention for attention in attentions(session) if isinstance(attention.pattern, Documents)]
    before = [attention.pattern for attention in layers]
    try:
        for attention in layers:
            attention.pattern = Causal()
        yield
    finally:
        for attention, own in zip(layers, before, strict=True):
            attention.pattern = own


def _is_relative(session: Session) -> bool:
    decoder = session.subject.module
    return isinstance(decoder, Decoder) and not isinstance(decoder.spec.position, Learned)
