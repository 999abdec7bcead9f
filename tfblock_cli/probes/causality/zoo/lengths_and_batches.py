"""Dependence on the length, on the rest of the batch, on calls before, on chance."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.probes.causality.zoo.parts import (
    Attention,
    D,
    Lambda,
    Net,
    Specimen,
    Specimens,
    after_attention,
    leak,
    says,
)

ONLY_LENGTH = (*leak("truncation"), *says("clean", "suffix_cuts", "gradient_map"))


def stretched_positions(x: Tensor) -> Tensor:
    """Turned by angles whose base grows with the length beyond 6, as dynamic NTK has it."""
    base = 100.0 * max(x.shape[1] / 6, 1.0)
    angle = torch.arange(x.shape[1])[:, None] * base ** (-torch.arange(D // 2) / (D // 2))
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class AxesSwapped(nn.Module):
    """torch's attention with its default layout (T, B, D), given (B, T, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class Stateful(nn.Module):
    """Remembers its last input."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        out = x + self.memory
        self.memory = x.mean((1, 2), keepdim=True).detach().mean()
        return out


class WritesIntoItsInput(nn.Module):
    """Adds in place."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        with torch.no_grad():
            x.add_(1.0)
        return x * 1.0


LENGTHS_AND_BATCHES: Specimens = (
    Specimen(
        name="positions divided by T",
        make=lambda: after_attention(lambda x: x * torch.arange(x.shape[1])[:, None] / x.shape[1]),
        wanted=ONLY_LENGTH,
    ),
    Specimen(name="base of rope by length", make=lambda: after_attention(stretched_positions), wanted=ONLY_LENGTH),
    Specimen(
        name="scores scaled by log T",
        make=lambda: after_attention(lambda x: x * torch.log(torch.tensor(float(x.shape[1])))),
        wanted=ONLY_LENGTH,
    ),
    Specimen(
        name="positions counted from the end",
        make=lambda: after_attention(lambda x: x * torch.arange(x.shape[1], 0, -1)[:, None]),
        wanted=ONLY_LENGTH,
    ),
    Specimen(
        name="batch mixed",
        make=lambda: after_attention(lambda x: x + x.mean(0, keepdim=True)),
        wanted=leak("batch_independence"),
    ),
    Specimen(
        name="scan over the batch axis",
        make=lambda: after_attention(lambda x: x.cumsum(0)),
        wanted=(*leak("batch_independence"), *says("clean", "suffix_cuts eval")),
    ),
    Specimen(
        name="batch and time swapped",
        make=lambda: Net(AxesSwapped()),
        wanted=leak("batch_independence"),
    ),
    Specimen(
        name="dropout left on",
        make=lambda: after_attention(lambda x: F.dropout(x, 0.1)),
        wanted=says("inconclusive", "preflight"),
    ),
    Specimen(
        name="state across calls",
        make=lambda: Net(Attention(), Stateful()),
        wanted=says("inconclusive", "preflight"),
    ),
    Specimen(
        name="writes into its input",
        make=lambda: nn.Sequential(WritesIntoItsInput(), Net(Attention())),
        wanted=says("inconclusive", "preflight"),
    ),
    Specimen(
        name="nan", make=lambda: after_attention(lambda x: x * torch.nan), wanted=says("inconclusive", "preflight")
    ),
    Specimen(
        name="nan for large content",
        make=lambda: nn.Sequential(Lambda(lambda x: torch.where(x.abs() > 9, torch.nan, x)), Net(Attention())),
        wanted=(*says("inconclusive", "suffix_cuts eval"), *says("clean", "preflight eval", "truncation")),
    ),
)
