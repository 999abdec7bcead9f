"""Positions that act on queries and keys; a learned table is added by the decoder."""

import torch
from torch import Tensor

from tfblock_cli.modules.tables import Tables
from tfblock_cli.spec import position as spec


def turn(x_BTHE: Tensor, position: spec.Position, tables: Tables, start: int = 0) -> Tensor:
    """Queries or keys of the positions start.. as the position kind wants them: turned by rope, else as they are."""
    if not isinstance(position, spec.RoPE):
        return x_BTHE
    T, E = x_BTHE.shape[1], x_BTHE.shape[3]
    cos_T1E, sin_T1E = (table[:, None] for table in tables.turn_TE(position, E, start, start + T, x_BTHE))
    a, b = x_BTHE.chunk(2, dim=-1)
    return torch.cat((a * cos_T1E - b * sin_T1E, b * cos_T1E + a * sin_T1E), dim=-1).to(x_BTHE.dtype)
