"""Chunk: which tokens of the sequences a forward pass is given: all, those that follow on a cache, padded ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tfblock_cli.modules.cache import Cache
from tfblock_cli.spec.attention import Pattern


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens start.. of B sequences, which attention asks where they stand and what they see.

    Attributes:
        start: How many tokens of each sequence came before.
        padding: How many tokens at the left of each sequence are padding: no other token sees them, and the first
            token behind them is the first of its sequence, for positions and patterns alike. None: none.
        cache: Where the keys and values of the earlier tokens are, and those of these go.
    """

    start: int = 0
    padding: Tensor | None = None
    cache: Cache | None = None

    @property
    def is_whole(self) -> bool:
        """Whether these are all tokens there are and none of them is padding."""
        return self.cache is None and self.padding is None

    def positions(self, n_tokens: int, device: torch.device) -> Tensor:
        """The positions of the tokens, (T,) or with padding (B, T); padding stands at position 0."""
        position_T = torch.arange(self.start, self.start + n_tokens, device=device)
        return position_T if self.padding is None else (position_T - self.padding[:, None]).clamp(min=0)

    def with_past(self, layer: int, k_BSKE: Tensor, v_BSKE: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, behind those that the cache has of the earlier tokens."""
        return (k_BSKE, v_BSKE) if self.cache is None else self.cache.extend(layer, k_BSKE, v_BSKE)

    def visible(self, pattern: Pattern, queries: int, keys: int, device: torch.device) -> Tensor:
        """Whether the tokens see each of the last keys up to their own end: (T, S), with padding (B, 1, T, S).

        A token of the padding sees itself alone, so that no row of weights is empty.
        """
        stop = self.start + queries
        query_T1 = torch.arange(stop - queries, stop, device=device)[:, None]
        key_S = torch.arange(stop - keys, stop, device=device)
        if self.padding is None:
            return torch.as_tensor(pattern.allows(query_T1, key_S)).expand(queries, keys)
        padding_B111 = self.padding[:, None, None, None]
        allowed = pattern.allows(query_T1 - padding_B111, key_S - padding_B111)
        visible: Tensor = allowed & (query_T1 >= padding_B111) & (key_S >= padding_B111) | (query_T1 == key_S)
        return visible


WHOLE = Chunk()
"""Whole sequences from their first token, without padding."""
