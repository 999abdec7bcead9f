"""Blocks with copied weights against torch's own layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.modules.models import TOLERANCE, block_of, distance, experiment, inputs, shaken
from tfblock_cli.modules.block import Block

DTYPES, KERNELS = ("float64", "float32"), ("sdpa", "eager")


def encoder_layer(block: Block, *, norm_first: bool) -> nn.TransformerEncoderLayer:
    """torch's layer with the weights of a LayerNorm, GELU, MHA block with biases."""
    heads, width = block.spec.attention.n_heads, block.spec.d_model
    layer = nn.TransformerEncoderLayer(
        width, heads, block.spec.ffn.d_ff, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first
    ).to(block.attention.qkv.weight.dtype)
    own = block.state_dict()
    names = {
        "self_attn.in_proj_": "attention.qkv.",
        "self_attn.out_proj.": "attention.out.",
        "linear1.": "ffn.up.",
        "linear2.": "ffn.down.",
        "norm1.": "norms.attention.",
        "norm2.": "norms.ffn.",
    }
    layer.load_state_dict(
        {theirs + kind: own[ours + kind] for theirs, ours in names.items() for kind in ("weight", "bias")}
    )
    return layer.eval()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_pre_and_post_equal_the_encoder_layer(placement, dtype, kernel):
    asked = experiment(
        dtype=dtype,
        kernel=kernel,
        norm="layernorm",
        norm_placement=placement,
        position="none",
        bias=True,
        ffn={"kind": "mlp"},
    )
    block, x = block_of(shaken(asked)), inputs(asked)
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
    right, wrong = (encoder_layer(block, norm_first=first) for first in (placement == "pre", placement != "pre"))
    with torch.no_grad():
        found = block(x)
        assert distance(found, right(x, src_mask=mask, is_causal=True)) < TOLERANCE[x.dtype]
        assert distance(found, wrong(x, src_mask=mask, is_causal=True)) > 1e-2
        assert distance(found, right(x)) > 1e-2  # without the mask


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_modern_block_equals_torchs_functions(dtype, kernel):
    """Pre, RMSNorm, SwiGLU, shared heads, no positions, spelled out with torch.nn.RMSNorm and torch's SDPA."""
    H, K, E, D = 4, 2, 6, 24
    asked = experiment(dtype=dtype, kernel=kernel, position="none", attention={"n_heads": H, "n_kv_heads": K})
    block, x = block_of(shaken(asked)), inputs(asked)
    own = block.state_dict()

    def norm(name: str, x: Tensor) -> Tensor:
        rms = nn.RMSNorm(D, eps=1e-6, dtype=x.dtype)
        rms.load_state_dict({"weight": own[f"norms.{name}.weight"]})
        out: Tensor = rms(x)
        return out

    with torch.no_grad():
        projected = F.linear(norm("attention", x), own["attention.qkv.weight"])
        split = torch.split(projected, [H * E, K * E, K * E], dim=-1)
        q, k, v = (part.reshape(*x.shape[:2], -1, E).transpose(1, 2) for part in split)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = x + F.linear(context.transpose(1, 2).flatten(2), own["attention.out.weight"])
        normed = norm("ffn", y)
        hidden = F.silu(F.linear(normed, own["ffn.gate.weight"])) * F.linear(normed, own["ffn.up.weight"])
        y = y + F.linear(hidden, own["ffn.down.weight"])
        assert distance(block(x), y) < TOLERANCE[x.dtype]


def test_pre_and_post_differ_at_the_reference_size():
    """(2, 16, 384), six heads, the same weights, dropout 0."""

    def output(placement: str) -> Tensor:
        asked = experiment(
            dtype="float32",
            d_model=384,
            n_layers=1,
            norm="layernorm",
            norm_placement=placement,
            position="none",
            bias=True,
            ffn={"kind": "mlp"},
            attention={"n_heads": 6},
            final_norm=False,
        )
        with torch.no_grad():
            out: Tensor = shaken(asked)(inputs(asked, 2, 16))
        return out

    pre, post = output("pre"), output("post")
    assert pre.shape == post.shape == (2, 16, 384)
    assert distance(pre, post) > 0.1
    assert torch.equal(pre, output("pre"))  # it is the placement that makes the difference
