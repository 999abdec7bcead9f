"""FLOPs of the account against torch's own counter on the real modules, and against published figures.

The counter runs the eager kernel, whose multiplications are all there to be seen; behind a fused kernel it sees
nothing on the CPU.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tests.strategies import model_tables
from tfblock_cli.account.flops import flops
from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.spec.model import ModelSpec

GPT2 = {
    "d_model": 768,
    "n_layers": 12,
    "vocab_size": 50257,
    "max_seq_len": 1024,
    "norm": "layernorm",
    "position": "learned",
    "bias": True,
    "head_bias": False,
    "tie_embeddings": True,
    "attention": {"n_heads": 12},
    "ffn": {"kind": "mlp"},
}
LLAMA_3_8B = {
    "d_model": 4096,
    "n_layers": 32,
    "vocab_size": 128256,
    "max_seq_len": 8192,
    "attention": {"n_heads": 32, "n_kv_heads": 8},
    "ffn": {"d_ff": 14336},
}


def model(table: dict[str, Any], **keys: Any) -> ModelSpec:
    return ModelSpec.model_validate(table | keys)


def measured(spec: ModelSpec, batch_size: int, seq_len: int) -> tuple[int, int]:
    """What torch counts on the meta device: forward, and forward and backward (with the gradient of the input)."""
    with torch.device("meta"):
        decoder = Decoder(spec, "eager", seq_len).to(torch.float32)
        ids = torch.zeros(batch_size, seq_len, dtype=torch.long)
        vectors = torch.zeros(batch_size, seq_len, spec.d_model, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        out = decoder(ids if spec.vocab_size else vectors)
        forward = counter.get_total_flops()
        out.sum().backward()
    return forward, counter.get_total_flops()


@given(model_tables(), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=15)
def test_forward_and_backward_equal_torchs_counter(table, batch_size, seq_len):
    spec = ModelSpec.model_validate(table)
    seq_len = min(seq_len, spec.max_seq_len)
    counted = flops(spec, batch_size, seq_len)
    assert (counted.dense, counted.train_dense) == measured(spec, batch_size, seq_len)
    assert counted.train_dense == counted.dense + counted.backward_dense


@given(model_tables(), st.integers(1, 3), st.integers(1, 9))
@settings(max_examples=20)
def test_stages_add_up(table, batch_size, seq_len):
    counted = flops(ModelSpec.model_validate(table), batch_size, seq_len)
    assert sum(stage.dense for stage in counted.stages) == counted.dense
    assert sum(stage.visible for stage in counted.stages) == counted.visible
    assert counted.visible <= counted.dense
    assert counted.backward_visible == 2 * counted.visible
    assert counted.train_visible == 3 * counted.visible
    assert counted.per_token_dense == counted.dense // (batch_size * seq_len)


@pytest.mark.parametrize(
    ("table", "seq_len", "published"), [(GPT2, 1024, 291_648_307_200), (LLAMA_3_8B, 8192, 158_140_695_838_720)]
)
def test_published_figures(table, seq_len, published):
    assert flops(model(table), 1, seq_len).dense == published


def test_visible_pairs_are_counted_one_by_one():
    """4 tokens see 1 + 2 + 3 + 4 = 10 pairs: not 16, and not 8."""
    counted = flops(model(GPT2), 1, 4)
    by_stage = {stage.name: stage for stage in counted.stages}
    for name in ("attention.scores", "attention.context"):
        assert by_stage[name].dense == 12 * 2 * 16 * 768
        assert by_stage[name].visible == 12 * 2 * 10 * 768
    window = model(GPT2, attention={"n_heads": 12, "pattern": {"kind": "sliding_window", "window": 2}})
    for stage in flops(window, 1, 4).stages:
        if stage.name in ("attention.scores", "attention.context"):
            assert (stage.dense, stage.visible) == (12 * 2 * 16 * 768, 12 * 2 * 7 * 768)  # 1 + 2 + 2 + 2 pairs
    both = model(GPT2, attention={"n_heads": 12, "pattern": "bidirectional"})
    assert flops(both, 1, 4).visible == flops(both, 1, 4).dense == counted.dense


def test_what_grows_with_the_length():
    """F(2T) - 2 F(T) is the quadratic part alone: 4 D L · 2T² for scores and context."""
    counted = [flops(model(GPT2), 1, seq_len).dense for seq_len in (16, 32)]
    assert counted[1] - 2 * counted[0] == 4 * 768 * 12 * (32**2 - 2 * 16**2)
    assert flops(model(GPT2), 2, 16).dense == 2 * counted[0]


def test_a_tied_head_is_multiplied_like_any_other():
    tied, untied = (flops(model(GPT2, tie_embeddings=tie), 1, 8) for tie in (True, False))
    assert tied == untied
    assert {stage.name: stage.dense for stage in tied.stages}["head"] == 2 * 8 * 768 * 50257


def test_shared_heads_save_projections_and_no_attention():
    def stages(n_kv_heads: int) -> dict[str, int]:
        spec = model(LLAMA_3_8B, attention={"n_heads": 32, "n_kv_heads": n_kv_heads})
        return {stage.name: stage.dense for stage in flops(spec, 1, 64).stages}

    shared, full = stages(8), stages(32)
    assert {name for name in full if shared[name] != full[name]} == {"attention.k", "attention.v"}
    assert full["attention.k"] == 4 * shared["attention.k"]
