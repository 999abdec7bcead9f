"""Incremental decoding: the same tokens in pieces, with a cache, give the outputs of the full pass."""

from collections.abc import Iterator, Mapping

from tfblock_cli.probes.causality.session import Session, change_T, size
from tfblock_cli.probes.causality.verdict import Finding, other_shape, skipped, too_coarse, worst_of
from tfblock_cli.results.causality import ProbeVerdict

CHUNK = 5
"""It divides no length that is chosen here."""


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
    if coarse := too_coarse(session.rounding):
        return skipped(coarse)
    x = session.draw("input")
    plans = schedules(session.seq_len, session.declared.reach, mutual)
    if session.subject.single_steps:
        plans = {name: pieces for name, pieces in plans.items() if set(pieces[1:]) <= {1}}
    session.progress.start(f"incremental, {session.mode_name}", 1 + sum(map(len, plans.values())))
    y = session(x)
    largest, tolerance = size(y), other_shape(session.rounding)
    verdict: ProbeVerdict = "clean"
    worst, failed = 0.0, ""
    for name, pieces in plans.items():
        cache, start = session.subject.new_cache(len(x)), 0
        for piece in pieces:
            stop = start + piece
            moved_T = change_T(session.step(x[:, start:stop], cache), y[:, start:stop]) / largest
            change = float(moved_T.max())
            found = tolerance.judge(change)
            if found == "LEAK" and not failed:
                first = start + int((moved_T > tolerance.noise).nonzero()[0])
                failed = f"output {first} differs from that of the full pass by {change:.1e} ({name})"
            verdict = worst_of(verdict, found)
            worst = change if not change <= worst else worst
            start = stop
    match verdict:
        case "LEAK":
            message = failed
        case "inconclusive":
            message = "the output holds nan or inf, which no comparison can judge"
        case "noise":
            message = f"with a cache outputs change by {worst:.1e} of the largest one: more than rounding should"
        case _:
            message = f"with a cache all outputs are those of the full pass ({'; '.join(plans)})"
    return Finding(verdict=verdict, worst=worst, limit=tolerance.noise, message=message)


def schedules(seq_len: int, reach: int | None = None, mutual: int = 1) -> Mapping[str, tuple[int, ...]]:
    """The pieces of each way to come to T tokens. Tokens that see each other come together, in the first piece.

    Args:
        seq_len: T.
        reach: The inputs that an output may see, if not all.
        mutual: So many tokens from the first one see each other.
    """
    first = max(mutual, 1)
    ways = {
        "token by token": (first, 1),
        "half, then token by token": (max(seq_len // 2, first), 1),
        f"chunks of {CHUNK}": (max(CHUNK, first), CHUNK),
    }
    if reach is not None and 2 * (reach + 2) < seq_len:
        ways["chunks longer than the window"] = (max(reach + 2, first), reach + 2)
    else:
        ways["two chunks after a short one"] = (max(2, first), max((seq_len - 1) // 2, 1))
    return {name: tuple(_pieces(seq_len, *sizes)) for name, sizes in ways.items()}


def _pieces(seq_len: int, first: int, then: int) -> Iterator[int]:
    start, piece = 0, first
    while start < seq_len:
        yield min(piece, seq_len - start)
        start, piece = start + piece, then
