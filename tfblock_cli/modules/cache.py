"""Cache: the keys and values of the tokens so far, so that the next ones need not compute them again."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tfblock_cli.spec.attention import Pattern


class Cache:
    """What every layer keeps of the tokens that a batch has been fed, chunk after chunk.

    It grows with the tokens; a layer whose pattern reaches back W tokens keeps the last W alone.

    Args:
        patterns: Of each layer.
        batch_size: B.

    Attributes:
        n_tokens: How many tokens of each sequence it has been fed, padding included.
        padding: How many of them are padding, on the left; None: none.

    Raises:
        ValueError: A pattern under which later tokens change what earlier ones have computed.
    """

    def __init__(self, patterns: Sequence[Pattern], batch_size: int) -> None:
        for index, pattern in enumerate(patterns):
            if pattern.mutual is None:
                raise ValueError(
                    f"no cache for the pattern {pattern.kind} of layer {index}: every new token would change what the "
                    "earlier ones have seen"
                )
        self.patterns = tuple(patterns)
        self.batch_size = batch_size
        self.n_tokens = 0
        self.padding: Tensor | None = None
        self._kept: list[tuple[Tensor, Tensor] | None] = [None] * len(patterns)
        self._next: list[tuple[Tensor, Tensor] | None] = [None] * len(patterns)

    @property
    def bytes(self) -> int:
        """Of all keys and values that it keeps."""
        return sum(part.untyped_storage().nbytes() for kept in self._kept if kept for part in kept)

    def expect(self, batch_size: int, padding_B: Tensor | None) -> None:
        """Raise ValueError unless a chunk of so many sequences, with this padding, may come next."""
        if batch_size != self.batch_size:
            raise ValueError(f"this cache is for a batch of {self.batch_size}, not of {batch_size}")
        if self.n_tokens and padding_B is not None:
            raise ValueError("the padding is told with the first chunk; the cache remembers it")
        first = max(pattern.mutual or 0 for pattern in self.patterns)
        if first > 1 and self.padding is not None:
            first += int(self.padding.max())
        if 0 < self.n_tokens < first:
            raise ValueError(
                f"the first chunk must hold the whole prefix, {first} tokens, which see each other: it had "
                f"{self.n_tokens}"
            )

    def extend(self, layer: int, k_BSKE: Tensor, v_BSKE: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values that a layer has kept, with those of the new tokens behind them.

        They are kept for the next chunk only once ``advance`` is called: a pass that fails half-way leaves no trace.
        """
        reach, kept = self.patterns[layer].reach, self._kept[layer]
        pairs = zip(kept, (k_BSKE, v_BSKE), strict=True) if kept else ((k_BSKE,), (v_BSKE,))
        k_BSKE, v_BSKE = (torch.cat(tuple(pair), dim=1) for pair in pairs)
        if reach is None or reach >= k_BSKE.shape[1]:
            self._next[layer] = k_BSKE, v_BSKE
        else:  # copies, since views would keep all the rest alive
            self._next[layer] = k_BSKE[:, -reach:].clone(), v_BSKE[:, -reach:].clone()
        return k_BSKE, v_BSKE

    def advance(self, n_tokens: int, padding_B: Tensor | None) -> None:
        """Keep what a whole pass over so many tokens has brought."""
        if padding_B is not None:
            self.padding = padding_B
        self.n_tokens += n_tokens
        self._kept = list(self._next)
