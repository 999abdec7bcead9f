"""Lengths: the small one at which everything is tried, and the cuts that a budget allows at the experiment's own."""

from collections.abc import Collection
from math import prod

from tfblock_cli.probes.causality import cuts
from tfblock_cli.probes.causality.declared import Declared
from tfblock_cli.spec.model import ModelSpec

SMALLEST, LARGEST = 37, 128
"""Of the small length: prime and above the usual blocks of 16 and 32; up to 128 what every cut costs is seconds."""


def small_length(declared: Declared, dimensions: Collection[int], longest: int, chunks: Collection[int] = ()) -> int:
    """At least 37, longer than what any output may see, and equal to no other dimension.

    A leak that waits for T > window is silent below, and an axis of the same length could be mistaken for time.
    Where windows reach further than 128 through all layers, it exceeds each single one that is shorter.

    Args:
        declared: With the windows.
        dimensions: Of the model and the batch.
        longest: That the model takes.
        chunks: Numbers of tokens behind which the model computes otherwise. Two of each fit in, or one; what is longer
            than 128 does not count.
    """
    reach = declared.reach or 0
    if reach + 2 > LARGEST:
        single = [pattern.reach or 0 for pattern in declared.layers]
        reach = max((window for window in single if window + 2 <= LARGEST), default=0)
    mutual = declared.mutual or 0
    at_least = max(SMALLEST, reach + 2, min(mutual + 5, LARGEST), *(_beyond(chunk) for chunk in chunks))
    length = next(n for n in range(at_least, 10 * at_least) if n not in dimensions)
    return min(length, longest)


def _beyond(chunk: int) -> int:
    """A length at which the third chunk has begun, else the second; 0 where that is too long."""
    return next((n for n in (2 * chunk + 5, chunk + 5) if n <= LARGEST), 0)


def dimensions(model: ModelSpec) -> frozenset[int]:
    """Every length of an axis of the model's weights and heads."""
    sizes = {model.d_model, model.vocab_size}
    for block in model.blocks():
        sizes.update(size for weight in block.weights() for size in map(int, weight.shape))
        sizes.update(int(size) for size in block.attention.sizes)
        sizes.add(prod(int(size) for size in block.attention.sizes[::2]))
    return frozenset(sizes)


def affordable(seq_len: int, passes: int) -> tuple[int, ...]:
    """At most so many cuts: all of them, else a ladder, thinned out evenly where it is still too long."""
    every, some = cuts.every(seq_len), cuts.ladder(seq_len)
    if len(every) <= passes:
        return every
    if len(some) > passes:
        step = (len(some) - 1) / max(passes - 1, 1)
        return tuple(sorted({some[round(n * step)] for n in range(max(passes, 1))}))
    spread = [1 + round(n * (seq_len - 2) / passes) for n in range(passes)]
    more = [k for k in spread if k not in some][: passes - len(some)]
    return tuple(sorted({*some, *more}))
