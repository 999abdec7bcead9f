"""The decoder against logits that Hugging Face's models put out: an independent implementation of each mechanism."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.modules.models import distance
from tfblock_cli.modules.decoder import Decoder, build
from tfblock_cli.spec.experiment import Experiment

DATA = Path(__file__).parents[1] / "data" / "transformers"

SWIGLU = {"kind": "swiglu", "d_ff": 56}
GPT: dict[str, Any] = {
    "norm": "layernorm",
    "position": "learned",
    "max_seq_len": 32,
    "bias": True,
    "head_bias": False,
    "tie_embeddings": True,
    "ffn": {"kind": "mlp", "activation": "gelu_tanh"},
}
MODELS: dict[str, dict[str, Any]] = {
    "llama_gqa": {"norm": {"kind": "rmsnorm", "eps": 1e-5}, "ffn": SWIGLU, "attention": {"n_kv_heads": 2}},
    "mistral_sliding": {
        "norm": {"kind": "rmsnorm", "eps": 1e-5},
        "ffn": SWIGLU,
        "attention": {"n_kv_heads": 2, "pattern": {"kind": "sliding_window", "window": 5}},
    },
    "qwen3_qk_norm": {
        "norm": {"kind": "rmsnorm", "eps": 1e-6},
        "ffn": SWIGLU,
        "tie_embeddings": True,
        "position": {"kind": "rope", "theta": 1e6},
        "attention": {"n_kv_heads": 2, "d_head": 12, "qk_norm": "rmsnorm"},
    },
    "starcoder2": {
        "norm": "layernorm",
        "ffn": {"kind": "mlp", "activation": "gelu_tanh", "d_ff": 56},
        "bias": True,
        "head_bias": False,
        "tie_embeddings": True,
        "position": {"kind": "rope", "theta": 1e5},
        "attention": {"n_kv_heads": 2, "pattern": {"kind": "sliding_window", "window": 6}},
    },
    "gpt2": GPT,
    "openai_gpt_post_norm": GPT | {"norm_placement": "post"},
}

NAMES = (
    (r"^(model|transformer)\.", ""),
    (r"^(layers|h)\.", "blocks."),
    (r"^(embed_tokens|wte|tokens_embed)\.", "embed."),
    (r"^(wpe|positions_embed)\.", "position."),
    (r"^(norm|ln_f)\.", "final_norm."),
    (r"^lm_head\.", "head."),
    (r"\.(input_layernorm|ln_1)\.", ".norms.attention."),
    (r"\.(post_attention_layernorm|ln_2)\.", ".norms.ffn."),
    (r"\.self_attn\.o_proj\.", ".attention.out."),
    (r"\.self_attn\.([qkv])_(proj|norm)\.", r".attention.\1_\2."),
    (r"\.attn\.c_attn\.", ".attention.qkv."),
    (r"\.attn\.c_proj\.", ".attention.out."),
    (r"\.mlp\.(c_fc|up_proj)\.", ".ffn.up."),
    (r"\.mlp\.gate_proj\.", ".ffn.gate."),
    (r"\.mlp\.(c_proj|down_proj)\.", ".ffn.down."),
)
"""Theirs, and what becomes of it."""


def safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file: the length of a JSON header in eight bytes, the header, then the numbers."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        first, last = (start + offset for offset in entry["data_offsets"])
        numbers = np.frombuffer(content[first:last], {"F64": "<f8", "I64": "<i8"}[entry["dtype"]])
        tensors[name] = torch.from_numpy(numbers.reshape(entry["shape"]).copy())
    return tensors


def renamed(theirs: dict[str, Tensor], *, transposed: bool) -> dict[str, Tensor]:
    """Their weights under our names, in our layouts.

    Args:
        theirs: By their names.
        transposed: Whether matrices of the blocks are kept as (in, out).
    """
    ours: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        ours[name] = tensor.T if transposed and name.startswith("blocks.") and tensor.dim() == 2 else tensor
    for name in [name for name in ours if ".q_proj." in name]:
        parts = [ours.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
        ours[name.replace(".q_proj.", ".qkv.")] = torch.cat(parts)
    return ours


def decoder(case: str, kernel: str, **keys: Any) -> Decoder:
    config = json.loads((DATA / case / "config.json").read_text())
    table: dict[str, Any] = {"d_model": 32, "n_layers": 2, "vocab_size": config["vocab_size"]}
    table |= MODELS[case] | {"attention": {"n_heads": 4} | MODELS[case].get("attention", {}) | keys}
    one = build(Experiment.model_validate({"dtype": "float64", "kernel": kernel, "model": table}))
    weights = renamed(safetensors(DATA / case / "weights.safetensors"), transposed="n_embd" in config)
    if one.spec.tie_embeddings:
        weights["head.weight"] = weights["embed.weight"]
    one.load_state_dict(weights)
    return one


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("case", MODELS)
def test_logits_are_theirs(case, kernel):
    io, one = safetensors(DATA / case / "io.safetensors"), decoder(case, kernel)
    with torch.no_grad():
        assert distance(one(io["input_ids"]), io["logits"]) < 1e-10
        cache = one.new_cache(2)
        chunks = [one(chunk, cache=cache) for chunk in io["input_ids"].split([7, 1, 1, 8], dim=1)]
        assert distance(torch.cat(chunks, dim=1), io["logits"]) < 1e-10


@pytest.mark.parametrize("window", [4, 6, 17])
def test_another_window_is_another_model(window):
    io = safetensors(DATA / "mistral_sliding" / "io.safetensors")
    one = decoder("mistral_sliding", "sdpa", pattern={"kind": "sliding_window", "window": window})
    with torch.no_grad():
        assert distance(one(io["input_ids"]), io["logits"]) > 1e-3
