"""Tables: what depends on the length alone, made once for all blocks, sliced, and grown when a longer input comes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tfblock_cli.modules.chunk import WHOLE
from tfblock_cli.spec.attention import Pattern
from tfblock_cli.spec.position import RoPE


class Tables:
    """The visible pairs of each pattern and the angles of each rope.

    They are no part of the weights: not saved, not cast with them. A table is made for ``length`` positions at
    first, and for the power of two above where more are asked for.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._tables: dict[tuple[Any, ...], Tensor] = {}

    def visible_TT(self, pattern: Pattern, seq_len: int, device: torch.device) -> Tensor:
        """Whether the tokens of whole sequences see each other: (T, T), bool."""

        def make(length: int) -> Tensor:
            return WHOLE.visible(pattern, length, length, device)

        return self._table((pattern, device), seq_len, make)[:seq_len, :seq_len]

    def turn_TE(self, rope: RoPE, d_head: int, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin of position · theta^(-2i/E) for i < E/2: twice (T, E/2), at least float32."""
        dtype = torch.promote_types(like.dtype, torch.float32)

        def make(length: int) -> Tensor:
            position = torch.arange(length, dtype=torch.float64)
            plane = torch.arange(d_head // 2, dtype=torch.float64)
            angles = position[:, None] * rope.theta ** (-2 * plane / d_head)
            return torch.stack((angles.cos(), angles.sin())).to(like.device, dtype).movedim(1, 0)

        cos, sin = self._table((rope, d_head, like.device, dtype), stop, make)[start:stop].unbind(1)
        return cos, sin

    def _table(self, key: tuple[Any, ...], length: int, make: Callable[[int], Tensor]) -> Tensor:
        table = self._tables.get(key)
        if table is None or len(table) < length:
            enough = self.length if length <= self.length else 1 << (length - 1).bit_length()
            table = self._tables[key] = make(enough)
        return table
