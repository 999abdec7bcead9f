"""Cuts: the positions k at which a sequence is split into a past x[:k] and a future x[k:]."""

from collections.abc import Sequence
from itertools import pairwise

FULL = 32
"""Up to this length a ladder is every cut."""


def every(seq_len: int) -> tuple[int, ...]:
    """1..T-1. Only the cut at j separates the pair (j-1, j), so no smaller set certifies all pairs."""
    return tuple(range(1, seq_len))


def ladder(seq_len: int) -> tuple[int, ...]:
    """Every cut of a short sequence; of a long one the ends, 1/2, 3/4, and the powers of two with their neighbours."""
    if seq_len <= FULL:
        return every(seq_len)
    powers = [2**n for n in range(seq_len.bit_length())]
    chosen = {1, 2, 3, seq_len // 2, 3 * seq_len // 4, seq_len - 2, seq_len - 1}
    chosen.update(power + step for power in powers for step in (-1, 0, 1))
    return tuple(sorted(k for k in chosen if 1 <= k < seq_len))


def pairs_covered(cuts: Sequence[int], seq_len: int) -> float:
    """The part of the pairs (i, j), i < j, that some cut k separates: i < k <= j. 0 where there is no pair."""
    edges = (0, *sorted(cuts), seq_len)
    uncovered = sum(_pairs(stop - start) for start, stop in pairwise(edges))
    return 1 - uncovered / _pairs(seq_len) if seq_len > 1 else 0.0


def _pairs(n: int) -> int:
    return n * (n - 1) // 2
