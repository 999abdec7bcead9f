"""Pieces: the ways to feed a sequence to a cache, and how it is done."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.stage import Pass

CHUNK = 5
"""It divides no length that is chosen here."""
HALF, CHUNKS = "half, then token by token", f"chunks of {CHUNK}"


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
        HALF: (max(seq_len // 2, first), 1),
        CHUNKS: (max(CHUNK, first), CHUNK),
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


def fed(
    session: Session, x: Tensor, pieces: Sequence[int], padding: Tensor | None = None, cache: Any = None
) -> Iterator[tuple[int, Tensor]]:
    """Feed the tokens piece by piece: where each starts, and what is put out for it.

    Args:
        session: An open one.
        x: As many tokens as the pieces have, or more.
        pieces: Their lengths.
        padding: How many tokens at the left of each sequence mean nothing, (B,).
        cache: An empty one; a new one unless given.
    """
    cache = session.subject.new_cache(len(x)) if cache is None else cache
    for start, stop in pairwise(accumulate(pieces, initial=0)):
        yield start, session.step(x[:, start:stop], cache, None if start else padding)


def last(session: Session, x: Tensor, pieces: Sequence[int], padding: Tensor | None = None) -> Pass:
    """The pass of the last piece, which can be run once. Those before it have been."""
    cache = session.subject.new_cache(len(x))
    for _ in fed(session, x, pieces[:-1], padding, cache):
        pass
    start, stop = sum(pieces[:-1]), sum(pieces)
    return Pass(partial(session.step, x[:, start:stop], cache, None if start else padding), stop - start, slice(None))


def up_to(pieces: Sequence[int], stop: int) -> tuple[int, ...]:
    """Those that end at ``stop`` or before."""
    return tuple(piece for piece, end in zip(pieces, accumulate(pieces), strict=True) if end <= stop)


def without_first(pieces: Sequence[int], n: int, first: int) -> tuple[int, ...]:
    """The same boundaries, ``n`` tokens later: the pieces of what is left, the first of which has at least ``first``.

    The last piece stays whole.
    """
    *ends, stop = accumulate(pieces)
    kept = [end for end in ends if n + first <= end < stop]
    return tuple(end - start for start, end in pairwise((n, *kept, stop)))
