"""Norms over the last dimension."""

from typing import assert_never

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.spec import norm as spec


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., width)."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class LayerNorm(nn.Module):
    """(x - mean(x)) / sqrt(var(x) + eps) · weight + bias."""

    def __init__(self, width: int, eps: float, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., width)."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Scale(nn.Module):
    """x · weight: a norm placement's own vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., width)."""
        return x * self.weight


def build_norm(norm: spec.Norm | spec.OptionalNorm, width: int) -> nn.Module:
    """The module of a norm's spec."""
    match norm:
        case spec.RMSNorm():
            return RMSNorm(width, norm.eps)
        case spec.LayerNorm():
            return LayerNorm(width, norm.eps, bias=norm.bias)
        case spec.NoNorm():
            return nn.Identity()
        case _:
            assert_never(norm)
