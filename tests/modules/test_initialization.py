"""Weights drawn per name: shared between models, independent of each other, with the spread that the rule names."""

from math import log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.modules.models import experiment
from tfblock_cli.modules.decoder import build
from tfblock_cli.spec.base import axis_of, name_of
from tfblock_cli.spec.norm_placement import NormPlacement

Parameters = dict[str, Tensor]
PLACEMENTS = [name_of(kind) for kind in axis_of(NormPlacement)[0]]


def weights(**keys: Any) -> Parameters:
    """Every parameter of a model with a vocabulary, biases and shared heads, unless told otherwise."""
    table: dict[str, Any] = {"vocab_size": 11, "attention": {"n_heads": 4, "n_kv_heads": 2}} | keys
    return {name: parameter.detach() for name, parameter in build(experiment(**table)).named_parameters()}


def shared(a: Parameters, b: Parameters) -> list[str]:
    """Names of matrices that both models have in the same shape."""
    return [name for name in a if name in b and a[name].dim() == 2 and a[name].shape == b[name].shape]


def large(**keys: Any) -> Parameters:
    """The same with matrices large enough for statistics."""
    return weights(**{"d_model": 128, "vocab_size": 512} | keys)


def slices(qkv: Tensor, d_model: int = 128, d_head: int = 32, n_kv_heads: int = 2) -> Parameters:
    q, k, v = torch.split(qkv, [d_model, n_kv_heads * d_head, n_kv_heads * d_head])
    return {"q": q, "k": k, "v": v}


PLAIN = {"kind": "normal", "std": 0.02}
SCALING = ("deepnorm", "subln")


@pytest.mark.parametrize(
    "keys",
    [
        *({"norm_placement": placement, "n_layers": 4} for placement in PLACEMENTS if placement not in SCALING),
        {"n_layers": 5},
        {"norm": "layernorm"},
        {"position": "learned"},
        {"bias": True},
        {"ffn": "geglu"},
        {"ffn": "mlp"},
        {"final_norm": False},
        {"kernel": "eager"},
        {"seq_len": 3},
        {"dropout": 0.5},
        {"tie_embeddings": True},
        {"layers": [{"at": [0], "ffn": {"d_ff": 7}}]},
    ],
    ids=str,
)
def test_models_that_share_a_tensor_share_its_values(keys):
    """Bit for bit, whatever else the models hold and in whatever order they hold it."""
    one, other = weights(initialization=PLAIN), weights(initialization=PLAIN, **keys)
    names = shared(one, other)
    assert {"embed.weight", "blocks.0.attention.qkv.weight", "blocks.1.ffn.down.weight"} <= {*names}
    assert all(torch.equal(one[name], other[name]) for name in names)


def test_a_slice_is_drawn_by_itself():
    """With fewer key-value heads q stays what it was, though the tensor that holds it has another shape."""
    two, four = (
        weights(initialization=PLAIN, attention={"n_heads": 4, "n_kv_heads": heads})["blocks.0.attention.qkv.weight"]
        for heads in (2, 4)
    )
    assert torch.equal(two[:24], four[:24])
    assert not torch.equal(two[36:48], four[36:48])  # v here, k there


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_another_dtype_is_a_cast(dtype):
    exact, cast = weights(), weights(dtype=dtype)
    assert all(torch.equal(exact[name].to(getattr(torch, dtype)), cast[name]) for name in exact)


def test_other_names_and_other_seeds_have_other_values():
    drawn = weights(initialization=PLAIN)
    matrices = [value.flatten() for value in drawn.values() if value.dim() == 2]
    for index, one in enumerate(matrices):
        for other in matrices[index + 1 :]:
            size = min(len(one), len(other))
            correlation = torch.corrcoef(torch.stack((one[:size], other[:size])))[0, 1]
            assert abs(float(correlation)) < 5 / sqrt(size)
    again, seeded = weights(initialization=PLAIN), weights(initialization=PLAIN, seed=1)
    for name, value in drawn.items():
        assert torch.equal(value, again[name])
        assert value.dim() == 1 or not torch.equal(value, seeded[name])


def test_drawing_leaves_torchs_own_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    weights()
    assert torch.equal(before, torch.get_rng_state())


def spread(value: Tensor) -> tuple[float, float]:
    """Its standard deviation, and five standard errors of it for numbers that are normal (a uniform's is smaller)."""
    return float(value.square().mean().sqrt()), 5 / sqrt(2 * value.numel())


def expect_std(value: Tensor, std: float) -> None:
    found, error = spread(value)
    assert abs(found / std - 1) < error
    assert abs(float(value.mean())) < 5 * std / sqrt(value.numel())


INNER = ("attention.out", "ffn.gate", "ffn.up", "ffn.down")


@pytest.mark.parametrize(
    ("kind", "std"),
    [
        ({"kind": "normal", "std": 0.3}, lambda role, fan_in, fan_out: 0.3),
        ({"kind": "uniform", "bound": 0.3}, lambda role, fan_in, fan_out: 0.3 / sqrt(3)),
        ("gpt2", lambda role, fan_in, fan_out: 0.02 / sqrt(2 * 2) if role in ("out", "down") else 0.02),
        ("torch", lambda role, fan_in, fan_out: 1 / sqrt(3 * fan_in)),
        ("unit", lambda role, fan_in, fan_out: sqrt(2 / (fan_in + fan_out))),
    ],
    ids=str,
)
def test_the_spread_of_every_matrix_is_its_rules(kind, std):
    drawn = large(initialization=kind)
    for layer in (0, 1):
        for name in INNER:
            value = drawn[f"blocks.{layer}.{name}.weight"]
            expect_std(value, std(name.split(".")[1], value.shape[1], value.shape[0]))
        for role, value in slices(drawn[f"blocks.{layer}.attention.qkv.weight"]).items():
            expect_std(value, std(role, value.shape[1], value.shape[0]))  # each slice has fans of its own
    expect_std(drawn["head.weight"], std("head", 128, 512))
    assert all(bool((value == 1).all()) for name, value in drawn.items() if "norm" in name)


@pytest.mark.parametrize(
    ("kind", "std"),
    [
        ({"kind": "normal", "std": 0.3}, 0.3),
        ({"kind": "normal", "embedding_std": 0.7}, 0.7),
        ({"kind": "uniform", "bound": 0.3}, 0.3 / sqrt(3)),
        ("gpt2", 0.02),
        ("torch", 1.0),
        ("unit", 1 / sqrt(2)),
    ],
    ids=str,
)
def test_the_spread_of_the_tables(kind, std):
    drawn = large(initialization=kind, position="learned", max_seq_len=512)
    expect_std(drawn["embed.weight"], std)
    expect_std(drawn["position.weight"], std)


def test_the_measurement_notices_a_spread_that_is_slightly_wrong():
    value = large(initialization={"kind": "normal", "std": 0.3})["blocks.0.ffn.up.weight"]
    expect_std(value, 0.3)
    with pytest.raises(AssertionError):
        expect_std(value, 0.3 * 1.03)


def test_uniform_stays_inside_its_bound_and_fills_it():
    """As the reference system decoder_block asks for: weights in (-0.1, 0.1), gains 1, biases 0."""
    drawn = large(initialization={"kind": "uniform", "bound": 0.1}, bias=True, norm="layernorm")
    for name, value in drawn.items():
        if value.dim() == 2:
            assert 0.099 < float(value.abs().max()) <= 0.1
            assert abs(float((value > 0).double().mean()) - 0.5) < 5 * 0.5 / sqrt(value.numel())
        else:
            assert bool((value == (1 if "norm" in name and name.endswith("weight") else 0)).all())


def test_torch_is_what_a_linear_layer_does_by_itself():
    drawn = large(initialization="torch", bias=True)
    torch.manual_seed(0)
    theirs = nn.Linear(128, 512)
    for kind in ("weight", "bias"):
        ours, reference = drawn[f"blocks.0.ffn.up.{kind}"], getattr(theirs, kind).detach()
        bound = 1 / sqrt(128)
        for value in (ours, reference):
            assert 0.95 * bound < float(value.abs().max()) <= bound
        assert abs(spread(ours)[0] / spread(reference)[0] - 1) < 2 * spread(ours)[1]
    assert float(drawn["blocks.0.ffn.down.bias"].abs().max()) <= 1 / sqrt(512)  # the fan of the matrix it goes with
    assert bool((large(initialization="torch", norm="layernorm")["blocks.0.norms.ffn.bias"] == 0).all())


@pytest.mark.parametrize("n_layers", [1, 4])
def test_gpt2_draws_what_writes_into_the_stream_smaller_with_depth(n_layers):
    plain, scaled = (large(initialization=kind, n_layers=n_layers) for kind in (PLAIN, "gpt2"))
    for name, value in plain.items():
        factor = 1 / sqrt(2 * n_layers) if name.endswith(("out.weight", "down.weight")) else 1
        assert torch.allclose(scaled[name], value * factor, rtol=1e-14)


@pytest.mark.parametrize(("placement", "gain"), [("deepnorm", 24**-0.25), ("subln", sqrt(log(6)))])
def test_scaling_placements_scale_what_carries_values_and_nothing_else(placement, gain):
    """(8L)^(-1/4), or sqrt(ln 2L), on v, out, gate, up and down; q, k, the embedding and the head are as they were."""
    plain = large(initialization=PLAIN, n_layers=3)
    scaled = large(initialization=PLAIN, n_layers=3, norm_placement=placement)
    for layer in range(3):
        name = f"blocks.{layer}.attention.qkv.weight"
        before, after = slices(plain[name]), slices(scaled[name])
        assert torch.equal(before["q"], after["q"])
        assert torch.equal(before["k"], after["k"])
        assert torch.allclose(after["v"], before["v"] * gain, rtol=1e-14)
        for part in INNER:
            assert torch.allclose(
                scaled[f"blocks.{layer}.{part}.weight"], plain[f"blocks.{layer}.{part}.weight"] * gain, rtol=1e-14
            )
    for name in ("embed.weight", "head.weight"):
        assert torch.equal(plain[name], scaled[name])


def test_layerscales_vectors_start_where_they_are_told():
    found = weights(norm_placement={"kind": "layerscale", "initial": 0.25})
    assert all((found[f"blocks.{layer}.scales.{branch}.weight"] == 0.25).all()
               for layer in (0, 1) for branch in ("attention", "ffn"))  # fmt: skip


def test_cloned_layers_are_the_first_one_and_only_on_demand():
    plain, cloned = (weights(initialization={"kind": "unit", "clone_layers": clone}) for clone in (False, True))
    first = {name: value for name, value in plain.items() if name.startswith("blocks.0.")}
    for name, value in first.items():
        other = name.replace("blocks.0.", "blocks.1.")
        assert torch.equal(cloned[name], value)
        assert torch.equal(cloned[other], value)
        assert torch.equal(plain[other], value) == (value.dim() == 1)  # gains are 1 everywhere
    assert torch.equal(plain["embed.weight"], cloned["embed.weight"])
