"""What is told of residual streams."""

from collections.abc import Sequence
from math import nan, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from tfblock_cli.probes.float64 import for_float64

SMALLEST = 1e-12
"""Shorter vectors are not made longer: one of length 0 is alike to none."""


class Statistics(NamedTuple):
    """Of a stream (B, T, D).

    Attributes:
        rms: The square root of the mean of all squares.
        cosine: The mean cosine over all pairs of different tokens of a sequence; nan for one token. 1 is a collapse.
    """

    rms: float
    cosine: float


def statistics(streams: Sequence[Tensor]) -> list[Statistics]:
    """Of each of several streams of one shape, computed in float64."""
    lengths: list[Tensor] = []
    unit_sums: list[Tensor] = []
    for stream_BTD in streams:
        (here_BTD,) = for_float64(stream_BTD.detach())
        x_BTD = here_BTD.double()
        lengths.append(torch.linalg.vector_norm(x_BTD, dim=-1, keepdim=True))
        unit_sums.append((x_BTD / lengths[-1].clamp_min(SMALLEST)).sum(-2))
    lengths_LN, sums_LN = torch.stack(lengths).flatten(1), torch.stack(unit_sums).flatten(1)
    # |sum of unit vectors|² = the sum of their squares + the sum over ordered pairs
    pairs_L = sums_LN.square().sum(1) - (lengths_LN / lengths_LN.clamp_min(SMALLEST)).square().sum(1)
    B, T, D = streams[0].shape
    rms_L = torch.linalg.vector_norm(lengths_LN, dim=1) / sqrt(B * T * D)
    found = torch.stack((rms_L, pairs_L / (B * T * (T - 1)) if T > 1 else pairs_L * nan), dim=1)
    return [Statistics(*each) for each in found.tolist()]  # at once, since a device is waited for each time
