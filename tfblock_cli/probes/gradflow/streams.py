"""What is told of residual streams."""

from collections.abc import Iterable
from math import nan, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from tfblock_cli.probes.float64 import for_float64


class Statistics(NamedTuple):
    """Of a stream (B, T, D).

    Attributes:
        rms: The square root of the mean of all squares.
        cosine: The mean cosine over all pairs of different tokens of a sequence; nan for one token. 1 is a collapse.
    """

    rms: float
    cosine: float


def statistics(streams: Iterable[Tensor]) -> list[Statistics]:
    """Of each stream, computed in float64."""
    shapes: list[torch.Size] = []
    sizes: list[Tensor] = []
    for stream_BTD in streams:
        x_BTD = for_float64(stream_BTD).double()
        lengths_BT1 = torch.linalg.vector_norm(x_BTD, dim=-1, keepdim=True)
        divisors_BT1 = lengths_BT1.clamp_min(1e-12)
        units_BTD = x_BTD / divisors_BT1
        shapes.append(x_BTD.shape)
        sizes += map(torch.linalg.vector_norm, (lengths_BT1, units_BTD.sum(-2), lengths_BT1 / divisors_BT1))
    norms = iter(torch.stack(sizes).tolist() if sizes else ())  # at once, since a device is waited for each time
    return [_statistics(shape, next(norms), next(norms), next(norms)) for shape in shapes]


def _statistics(shape: torch.Size, length: float, sum_of_units: float, units: float) -> Statistics:
    B, T, D = shape
    # |sum of unit vectors|² = the sum of their squares + the sum over ordered pairs
    pairs = sum_of_units**2 - units**2
    return Statistics(length / sqrt(B * T * D), pairs / (B * T * (T - 1)) if T > 1 else nan)
