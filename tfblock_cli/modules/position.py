"""Positions that act on queries and keys; a learned table is added by the decoder."""

import torch
from torch import Tensor

from tfblock_cli.modules.chunk import WHOLE, Chunk
from tfblock_cli.modules.tables import Tables
from tfblock_cli.spec import position as spec


def turn(x_BTHE: Tensor, position: spec.Position, tables: Tables, chunk: Chunk = WHOLE) -> Tensor:
    """Queries or keys of a chunk's tokens as the position kind wants them: turned by rope, else as they are."""
    if not isinstance(position, spec.RoPE):
        return x_BTHE
    T, E = x_BTHE.shape[1], x_BTHE.shape[3]
    stop = chunk.start + T
    if chunk.padding is None:
        turns = tables.turn_TE(position, E, chunk.start, stop, x_BTHE)
    else:  # every sequence has positions of its own
        position_BT = chunk.positions(T, x_BTHE.device)
        cos_TE, sin_TE = tables.turn_TE(position, E, 0, stop, x_BTHE)
        turns = cos_TE[position_BT], sin_TE[position_BT]
    cos_T1E, sin_T1E = (table.unsqueeze(-2) for table in turns)
    a, b = x_BTHE.chunk(2, dim=-1)
    return torch.cat((a * cos_T1E - b * sin_T1E, b * cos_T1E + a * sin_T1E), dim=-1).to(x_BTHE.dtype)
