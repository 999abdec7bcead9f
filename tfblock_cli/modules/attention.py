"""Attention with two kernels of equal results: SDPA, torch's fused one, and eager, which shows scores and weights."""

from math import sqrt
from typing import assert_never

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.modules.chunk import WHOLE, Chunk
from tfblock_cli.modules.initialization import Linear
from tfblock_cli.modules.norm import build_norm
from tfblock_cli.modules.position import turn
from tfblock_cli.modules.stage import Stage
from tfblock_cli.modules.tables import Tables
from tfblock_cli.spec import attention as spec
from tfblock_cli.spec.experiment import Kernel
from tfblock_cli.spec.model import BlockSpec


class Attention(nn.Module):
    """out(merge(softmax(q kᵀ / sqrt(E)) v)), with K key-value heads for H query heads.

    One fused projection makes q, k and v; query head h reads key-value head h // (H/K).
    """

    def __init__(self, block: BlockSpec, tables: Tables) -> None:
        super().__init__()
        attention = block.attention
        self.index = block.index
        self.pattern = attention.pattern
        self.position = block.position
        self.dropout = block.dropout
        self.tables = tables
        self.n_heads = (attention.n_heads, attention.n_kv_heads, attention.n_kv_heads)
        d_attention = attention.n_heads * attention.d_head
        self.qkv = Linear(block.d_model, sum(self.n_heads) * attention.d_head, bias=attention.bias)
        self.q_norm = build_norm(attention.qk_norm, attention.d_head)
        self.k_norm = build_norm(attention.qk_norm, attention.d_head)
        self.q, self.k, self.v = Stage(), Stage(), Stage()
        self.context, self.merged = Stage(), Stage()
        self.inner_norm = build_norm(attention.inner_norm, d_attention)
        self.out = Linear(d_attention, block.d_model, bias=attention.out_bias)

    def forward(self, x_BTD: Tensor, chunk: Chunk = WHOLE) -> Tensor:
        """(B, T, D) to (B, T, D); S counts the keys of these tokens and those of earlier ones that a cache has."""
        heads_BTNE = self.qkv(x_BTD).unflatten(-1, (sum(self.n_heads), -1))
        q_BTHE, k_BSKE, v_BSKE = heads_BTNE.split(self.n_heads, dim=2)
        # normed and turned before the heads move in front of the tokens: the context then has the queries' layout,
        # and the heads merge without a copy
        q_BTHE = turn(self.q_norm(q_BTHE), self.position, self.tables, chunk)
        k_BSKE = turn(self.k_norm(k_BSKE), self.position, self.tables, chunk)
        k_BSKE, v_BSKE = chunk.with_past(self.index, k_BSKE, v_BSKE)
        q_BHTE, k_BKSE = self.q(q_BTHE.transpose(1, 2)), self.k(k_BSKE.transpose(1, 2))
        context_BHTE = self.context(self.attend(q_BHTE, k_BKSE, self.v(v_BSKE.transpose(1, 2)), chunk))
        out_BTD: Tensor = self.out(self.inner_norm(self.merged(context_BHTE.transpose(1, 2).flatten(2))))
        return out_BTD

    def attend(self, q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, chunk: Chunk) -> Tensor:
        """Softmax(q kᵀ / sqrt(E)) v over the visible keys: (B, H, T, E)."""
        raise NotImplementedError

    def visible(self, queries: int, keys: int, device: torch.device, chunk: Chunk) -> Tensor:
        """Whether each query sees each key: (T, S), with padding (B, 1, T, S)."""
        if chunk.is_whole:
            return self.tables.visible_TT(self.pattern, queries, device)
        return chunk.visible(self.pattern, queries, keys, device)


class SDPAAttention(Attention):
    """The fused kernel: scores and weights are never stored."""

    def attend(self, q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, chunk: Chunk) -> Tensor:
        """As torch.nn.functional.scaled_dot_product_attention."""
        queries, keys = q_BHTE.shape[2], k_BKSE.shape[2]
        match self.pattern:
            # torch aligns is_causal at the top left, which is our pattern only where there are as many keys as queries
            case spec.Causal() if queries == keys and chunk.padding is None:
                visible, is_causal = None, True
            case spec.Bidirectional() if chunk.is_whole:
                visible, is_causal = None, False
            case _:
                visible, is_causal = self.visible(queries, keys, q_BHTE.device, chunk), False
        return F.scaled_dot_product_attention(
            q_BHTE,
            k_BKSE,
            v_BKSE,
            attn_mask=visible,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            enable_gqa=q_BHTE.shape[1] != k_BKSE.shape[1],
        )


class EagerAttention(Attention):
    """The textbook's steps, each with a stage of its own."""

    def __init__(self, block: BlockSpec, tables: Tables) -> None:
        super().__init__(block, tables)
        self.scores, self.weights = Stage(), Stage()

    def attend(self, q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, chunk: Chunk) -> Tensor:
        """Scores, mask, softmax, dropout, weighted sum."""
        group = q_BHTE.shape[1] // k_BKSE.shape[1]
        k_BHSE, v_BHSE = (part.repeat_interleave(group, dim=1) for part in (k_BKSE, v_BKSE))
        scores_BHTS = q_BHTE @ k_BHSE.transpose(-1, -2) / sqrt(q_BHTE.shape[-1])
        visible = self.visible(q_BHTE.shape[2], k_BKSE.shape[2], q_BHTE.device, chunk)
        scores_BHTS = self.scores(torch.where(visible, scores_BHTS, float("-inf")))  # keeps no mask of its own
        weights_BHTS = self.weights(scores_BHTS.softmax(dim=-1))
        return F.dropout(weights_BHTS, self.dropout, self.training) @ v_BHSE


def build_attention(block: BlockSpec, kernel: Kernel, tables: Tables) -> Attention:
    """The attention of a block, run by a kernel."""
    match kernel:
        case "sdpa":
            return SDPAAttention(block, tables)
        case "eager":
            return EagerAttention(block, tables)
        case _:
            assert_never(kernel)
