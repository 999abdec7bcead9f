"""Real models whose parameters others counted: oracle.json was measured by building the authors' own classes.

It holds the 73 of 91 models that the spec can express as far as their parameters go. (What has no parameters - the
layout and share of a rotary turn, ALiBi, windows, soft caps, scales, which activation - makes no difference here.)
Missing are mixtures of experts (9, two of them with latent attention), a norm behind the embedding (BLOOM, 4), a qk
norm over all heads together (OLMo 2 and 3, 3) or with a weight for each head (StableLM 2 12B, 1), and norms without
weights (OLMo 1, 1).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tfblock_cli.account import weights
from tfblock_cli.spec.model import ModelSpec

MODELS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "oracle.json").read_text())["models"]

PLACEMENTS: dict[str, Any] = {
    "pre": "pre",
    "post": "post",
    "sandwich": "sandwich",
    "reordered (norm on sublayer output before the residual add)": "reordered",
    "pre (one norm shared by both branches)": {"kind": "parallel"},
    "pre (one norm for each branch)": {"kind": "parallel", "shared_norm": False},
}
QK_NORMS: dict[str | None, str] = {
    None: "none",
    "rmsnorm over head_dim, one weight shared by all heads": "rmsnorm",
    "rmsnorm over head_dim, one weight shared by all heads (unit offset)": "rmsnorm",
    "layernorm with bias over head_dim, one weight shared by all heads": "layernorm",
}


def as_model(real: dict[str, Any]) -> dict[str, Any]:
    """The [model] table of an entry."""
    biases = real["biases"]
    norm = {"kind": "layernorm", "bias": real["norm"]["bias"]} if real["norm"]["kind"] == "layernorm" else "rmsnorm"
    return {
        "d_model": real["d_model"],
        "n_layers": real["n_layers"],
        "vocab_size": real["vocab_size"],
        "max_seq_len": real["pos"].get("rows", real["max_seq_len"]),
        "position": {"learned": "learned", "rope": "rope", "alibi": "none"}[real["pos"]["kind"]],
        "norm": norm,
        "norm_placement": PLACEMENTS[real["norm_placement"]],
        "final_norm": real["final_norm"],
        "tie_embeddings": real["tied"],
        "head_bias": biases["head"],
        "attention": {
            "n_heads": real["n_heads"],
            "n_kv_heads": real["n_kv_heads"],
            "d_head": real["head_dim"],
            "bias": biases["q"],
            "out_bias": biases["o"],
            "qk_norm": QK_NORMS[real["qk_norm"]],
        },
        "ffn": {
            "kind": {"mlp": "mlp", "glu": "swiglu"}[real["ffn"]],
            "d_ff": real["d_ff"],
            "bias": biases["ffn_in"],
        },
    }


def counted(table: dict[str, Any]) -> dict[str, int]:
    """Our components under the oracle's names, which count a position table as embedding; and the total."""
    model = ModelSpec.model_validate(table)
    mine = {component.name: component.count for component in weights.components(model)}
    names = ("embedding", "attention", "ffn", "norms", "final_norm", "head")
    return {name: mine.get(name, 0) for name in names} | {
        "embedding": mine["embedding"] + mine.get("position", 0),
        "total": weights.total(model),
    }


def test_the_oracle_is_large_and_every_entry_is_a_model_of_its_own():
    assert len(MODELS) == len({real["name"] for real in MODELS}) == 73


@pytest.mark.parametrize("real", MODELS, ids=[real["name"] for real in MODELS])
def test_total_and_components_are_exact(real):
    assert counted(as_model(real)) == real["components"] | {"total": real["total"]}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpt2", {"tie_embeddings": False}),
        ("gpt2", {"head_bias": True}),
        ("gpt2", {"final_norm": False}),
        ("gpt2", {"norm": "rmsnorm"}),
        ("llama-3-8b", {"norm_placement": "sandwich"}),
        ("llama-3-8b", {"tie_embeddings": True}),
        ("qwen3-0.6b", {"position": "learned"}),
        ("gptj", {"norm_placement": "pre"}),
    ],
)
def test_a_wrong_key_is_noticed(name, change):
    real = next(real for real in MODELS if real["name"].replace("-", "").startswith(name.replace("-", "")))
    assert counted(as_model(real) | change)["total"] != real["total"]
