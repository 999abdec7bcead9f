"""[[model.layers]]: what an override changes, what stands, and what is wrong with it."""

import pytest
from pydantic import ValidationError

from tfblock_cli.spec.experiment import Experiment


def experiment(*layers, model=None, **keys):
    table = {"d_model": 8, "n_layers": 2, "attention": {"n_heads": 2}} | (model or {}) | {"layers": list(layers)}
    return Experiment.model_validate({"model": table} | keys)


def faults(*layers, **keys):
    with pytest.raises(ValidationError) as caught:
        experiment(*layers, **keys)
    return [line["msg"] for line in caught.value.errors()]


def attention(*layers, **keys):
    return [block.attention for block in experiment(*layers, **keys).model.blocks()]


def test_sizes_that_only_follow_from_the_heads_follow_the_new_heads():
    other, same = attention({"at": [0], "attention": {"n_heads": 4}})
    assert (other.n_heads, other.n_kv_heads, other.d_head) == (4, 4, 2)
    assert (same.n_heads, same.n_kv_heads, same.d_head) == (2, 2, 4)


def test_sizes_that_were_chosen_stand():
    model = {"attention": {"n_heads": 4, "n_kv_heads": 2, "d_head": 6}}
    other, _ = attention({"at": [0], "attention": {"n_heads": 8}}, model=model)
    assert (other.n_heads, other.n_kv_heads, other.d_head) == (8, 2, 6)


def test_a_head_width_that_had_to_be_given_stands():
    model = {"d_model": 9, "attention": {"n_heads": 4, "d_head": 2}, "position": "none"}
    other, _ = attention({"at": [0], "attention": {"bias": True}}, model=model)
    assert (other.d_head, other.bias) == (2, True)


def test_one_head_may_replace_two():
    assert attention({"at": [0], "attention": {"n_heads": 1}})[0].d_head == 8


def test_heads_that_do_not_divide_the_width_are_refused_in_a_layer_too():
    assert "not divisible by n_heads = 3" in faults({"at": [0], "attention": {"n_heads": 3}})[0]


def test_overrides_are_applied_in_turn():
    blocks = experiment({"at": "::1", "ffn": {"d_ff": 5}}, {"at": [1], "ffn": "mlp"}).model.blocks()
    assert [(block.ffn.kind, block.ffn.d_ff) for block in blocks] == [("swiglu", 5), ("mlp", 32)]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ([0, 9], "there is no layer 9: the layers are 0 to 1"),
        ([-3, 2], "there is no layer -3, 2: the layers are 0 to 1"),
        ([], "at = [] names no layer: the layers are 0 to 1"),
        ("5:", "at = '5:' names no layer: the layers are 0 to 1"),
        ("::0", "at = '::0' has step 0"),
    ],
)
def test_layers_that_are_not_there(at, message):
    assert faults({"at": at}) == [message]


def test_every_fault_of_every_override_is_told_beside_those_of_the_model():
    told = faults({"at": [9]}, {"at": "x"}, {"at": "::0"}, {}, model={"n_heads": 3, "dropout": 2.0})
    # a layer too many; text that is no slice (and no list); step 0; no at; an unknown key; a dropout above 1
    assert len(told) == 7


def test_a_placement_that_needs_depth_is_refused_in_a_layer_too():
    assert faults({"at": [-1], "norm_placement": "mixln"}) == ["mixln needs at least 4 layers, not 2"]
    assert experiment({"at": [-1], "norm_placement": "mixln"}, model={"n_layers": 4}).model.n_layers == 4


@pytest.mark.parametrize(
    ("depths", "message"),
    [
        ([1, 2], "at a depth of 1, there is no layer 1: the layers are 0 to 0"),
        ([], "depths is empty: name at least one"),
        ([2, 2], "a depth stands twice in 2, 2; rows are told apart by it"),
    ],
)
def test_depths_that_cannot_be_compared(depths, message):
    assert faults({"at": [1], "ffn": "mlp"}, gradflow={"depths": depths}) == [message]


def test_depths_at_which_every_override_finds_its_layers():
    assert experiment({"at": [1], "ffn": "mlp"}, gradflow={"depths": [2, 5]}).gradflow.depths == (2, 5)


def test_an_expectation_that_can_never_hold():
    expect = [{"metric": "loss", "placement": "pre", "min": 3.0, "max": 1.0}]
    assert faults(gradflow={"expect": expect}) == ["min = 3.0 is above max = 1.0: nothing can be inside"]


@pytest.mark.parametrize(("device", "holds"), [("cuda:1", True), ("mps", True), ("meta", True), ("meta:0", False)])
def test_devices(device, holds):
    if holds:
        assert experiment(device=device).device == device
    else:
        assert faults(device=device)


def inner_norms(*layers, **model):
    """Of attention and FFN, layer by layer."""
    blocks = experiment(*layers, model=model).model.blocks()
    return [(block.attention.inner_norm.kind, block.ffn.inner_norm.kind) for block in blocks]


OFF, ON = ("none", "none"), ("rmsnorm", "rmsnorm")
SUBLN = {"at": [0], "norm_placement": "subln"}
WRITTEN = {"n_heads": 2, "inner_norm": "layernorm"}


@pytest.mark.parametrize(
    ("layer", "model", "expected"),
    [
        (SUBLN, {}, [ON, OFF]),
        ({"at": [0], "norm_placement": "pre"}, {"norm_placement": "subln"}, [OFF, ON]),
        ({"at": [0], "norm_placement": "post"}, {}, [OFF, OFF]),
        # another FFN in a layer of subln has the norm as well
        ({"at": [0], "ffn": "mlp"}, {"norm_placement": "subln"}, [ON, ON]),
        (SUBLN | {"ffn": "geglu"}, {}, [ON, OFF]),
        # the layer's own norm is the one that is brought
        (SUBLN | {"norm": "layernorm"}, {}, [("layernorm", "layernorm"), OFF]),
        ({"at": [0], "norm": "layernorm"}, {"norm_placement": "subln"}, [("layernorm", "layernorm"), ON]),
        # what is written stands
        (SUBLN | {"attention": {"inner_norm": "none"}}, {}, [("none", "rmsnorm"), OFF]),
        (SUBLN | {"ffn": {"inner_norm": "layernorm"}}, {}, [("rmsnorm", "layernorm"), OFF]),
        (SUBLN, {"attention": WRITTEN}, [("layernorm", "rmsnorm"), ("layernorm", "none")]),
        (
            {"at": [0], "norm_placement": "pre"},
            {"norm_placement": "subln", "attention": WRITTEN},
            [("layernorm", "none"), ("layernorm", "rmsnorm")],
        ),
    ],
    ids=str,
)
def test_inner_norms_follow_the_placement_in_a_layer_as_in_the_model(layer, model, expected):
    assert inner_norms(layer, **model) == expected
    resolved = experiment(layer, model=model).model_dump()
    assert [*Experiment.model_validate(resolved).model.blocks()] == [*experiment(layer, model=model).model.blocks()]


def test_subln_in_every_layer_is_the_model_of_subln():
    every, whole = experiment({"at": "::1", "norm_placement": "subln"}), experiment(model={"norm_placement": "subln"})
    assert every.model.blocks() == whole.model.blocks()
