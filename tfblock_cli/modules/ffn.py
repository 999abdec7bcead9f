"""Feed-forward networks."""

from typing import assert_never

import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.modules.initialization import Linear
from tfblock_cli.modules.norm import build_norm
from tfblock_cli.modules.stage import Stage
from tfblock_cli.spec import ffn as spec
from tfblock_cli.spec.model import BlockSpec


def activate(x: Tensor, activation: spec.Activation) -> Tensor:
    """The activation by its name."""
    match activation:
        case "relu":
            return F.relu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "silu":
            return F.silu(x)
        case _:
            assert_never(activation)


class MLP(nn.Module):
    """dropout(down(activation(up(x))))."""

    def __init__(self, d_model: int, ffn: spec.FeedForward, activation: spec.Activation, dropout: float) -> None:
        super().__init__()
        self.activation = activation
        self.dropout = dropout
        self.up = Linear(d_model, ffn.d_ff, bias=ffn.bias)
        self.hidden = Stage()
        self.inner_norm = build_norm(ffn.inner_norm, ffn.d_ff)
        self.down = Linear(ffn.d_ff, d_model, bias=ffn.bias)

    def inner(self, x_BTD: Tensor) -> Tensor:
        """The hidden tensor (B, T, F)."""
        return activate(self.up(x_BTD), self.activation)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        return F.dropout(self.down(self.inner_norm(self.hidden(self.inner(x_BTD)))), self.dropout, self.training)


class GatedMLP(MLP):
    """dropout(down(activation(gate(x)) · up(x)))."""

    def __init__(self, d_model: int, ffn: spec.FeedForward, activation: spec.Activation, dropout: float) -> None:
        super().__init__(d_model, ffn, activation, dropout)
        self.gate = Linear(d_model, ffn.d_ff, bias=ffn.bias)

    def inner(self, x_BTD: Tensor) -> Tensor:
        """The hidden tensor (B, T, F)."""
        gate_BTF = activate(self.gate(x_BTD), self.activation)
        return gate_BTF.mul(self.up(x_BTD))


def build_ffn(block: BlockSpec) -> MLP:
    """The feed-forward network of a block."""
    match block.ffn:
        case spec.MLP():
            return MLP(block.d_model, block.ffn, block.ffn.activation, block.dropout)
        case spec.SwiGLU():
            return GatedMLP(block.d_model, block.ffn, "silu", block.dropout)
        case spec.GeGLU():
            return GatedMLP(block.d_model, block.ffn, "gelu", block.dropout)
        case _:
            assert_never(block.ffn)
