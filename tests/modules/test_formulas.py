"""The whole decoder against plain numpy, for every kind of every axis."""

import pytest
import torch

from tests.modules.formulas import decode
from tests.modules.models import EVERY_PATTERN, TOLERANCE, distance, experiment, inputs, plain, shaken
from tfblock_cli.spec.base import axis_of, name_of
from tfblock_cli.spec.norm_placement import NormPlacement

PLACEMENTS = [name_of(kind) for kind in axis_of(NormPlacement)[0]] + [{"kind": "parallel", "shared_norm": False}]
MLPS = [{"kind": "mlp", "activation": activation} for activation in ("relu", "gelu", "gelu_tanh", "silu")]

CASES = [
    *({"norm_placement": placement, "n_layers": 4} for placement in PLACEMENTS),
    *({"norm_placement": placement, "n_layers": 4, "norm": "layernorm"} for placement in PLACEMENTS),
    *({"ffn": ffn, "bias": bias} for ffn in (*MLPS, "swiglu", "geglu") for bias in (False, True)),
    *(
        {"position": position, "vocab_size": 11}
        for position in ("none", "learned", "rope", {"kind": "rope", "theta": 100.0})
    ),
    *({"attention": {"n_heads": 4, "n_kv_heads": kv_heads}} for kv_heads in (1, 2, 4)),
    *({"attention": {"n_heads": 2, "n_kv_heads": 1, "d_head": d_head}} for d_head in (2, 10)),
    *({"attention": {"n_heads": 4, "qk_norm": norm, "n_kv_heads": 2}} for norm in ("rmsnorm", "layernorm")),
    {"attention": {"n_heads": 4, "bias": True, "out_bias": False}},
    {"attention": {"n_heads": 4, "bias": False, "out_bias": True}},
    *({"attention": {"n_heads": 4, "pattern": pattern.model_dump()}} for pattern in EVERY_PATTERN),
    {"vocab_size": 11, "tie_embeddings": True},
    {"vocab_size": 11, "head_bias": True},
    {"vocab_size": 11, "final_norm": False},
    {"vocab_size": 11, "norm_placement": "post", "final_norm": True},
    {"norm": {"kind": "layernorm", "bias": False, "eps": 0.1}},
    {"norm": {"kind": "rmsnorm", "eps": 0.1}},
    {"n_layers": 3, "layers": [{"at": [1], "norm_placement": "post", "ffn": "geglu", "attention": {"n_kv_heads": 1}}]},
]


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_decoder_is_what_the_formulas_say(case, dtype, kernel):
    asked = experiment(dtype=dtype, kernel=kernel, **case)
    decoder, x = shaken(asked), inputs(asked, 2, 5)
    with torch.no_grad():
        found = decoder(x)
    assert found.dtype == getattr(torch, dtype)
    assert distance(found, decode(asked.model, plain(decoder), x.numpy())) < TOLERANCE[found.dtype]


def test_scores_divided_by_the_whole_width_are_noticed():
    asked = experiment()
    decoder, x = shaken(asked), inputs(asked, 2, 5)
    with torch.no_grad():
        found = decoder(x)
    assert distance(found, decode(asked.model, plain(decoder), x.numpy())) < 1e-10
    assert distance(found, decode(asked.model, plain(decoder), x.numpy(), wrong_scale=True)) > 1e-3


@pytest.mark.parametrize("placement", [placement for placement in PLACEMENTS if placement != "none"], ids=str)
def test_every_placement_is_another_function(placement):
    """The same weights under another placement's formula give another output, so the cases above tell them apart."""
    asked = experiment(norm_placement=placement, n_layers=4)
    decoder, x = shaken(asked), inputs(asked, 2, 5)
    weights = plain(decoder)
    others = [other for other in PLACEMENTS if other != placement]
    same_norms = [
        other
        for other in (
            experiment(norm_placement=other, n_layers=4, final_norm=asked.model.has_final_norm) for other in others
        )
        if {weight.name for weight in other.model.weights()} <= set(weights)
    ]
    assert same_norms
    with torch.no_grad():
        found = decoder(x)
    for other in same_norms:
        assert distance(found, decode(other.model, weights, x.numpy())) > 1e-3
