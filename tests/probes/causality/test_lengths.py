"""Which lengths and cuts are tried, on which copy of the model, with which weights."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from tests.probes.causality.asking import row
from tests.probes.models import experiment
from tests.strategies import model_tables
from tfblock_cli import load
from tfblock_cli.account.weights import total
from tfblock_cli.probes.causality import cuts, lengths, run
from tfblock_cli.probes.causality.declared import CAUSAL, Declared, of_model
from tfblock_cli.probes.causality.lengths import SMALLEST, affordable, dimensions, small_length
from tfblock_cli.probes.causality.pieces import schedules
from tfblock_cli.probes.causality.shrink import ABOVE, WINDOW, shrunk, shrunk_declaration
from tfblock_cli.probes.causality.weights import rescaled
from tfblock_cli.spec.attention import SlidingWindow
from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.settings import OfModel


def windows(*sizes: int) -> Declared:
    return Declared(tuple(SlidingWindow(window=W) for W in sizes))


def test_the_small_length_exceeds_windows_and_equals_no_dimension():
    assert small_length(CAUSAL, (), 2048) == SMALLEST
    assert small_length(CAUSAL, {37, 38, 64}, 2048) == 39
    assert small_length(windows(20, 30), (), 2048) > 1 + 19 + 29
    assert small_length(windows(*[64] * 12), (), 2048) == 66  # all layers together reach 757: each alone does
    assert small_length(windows(4096), (), 8192) == SMALLEST  # for this there is --shrink
    assert small_length(CAUSAL, (), 9) == 9


def test_the_small_length_exceeds_two_chunks_or_one():
    assert small_length(CAUSAL, (), 2048, chunks=(16,)) == SMALLEST == 2 * 16 + 5
    assert small_length(CAUSAL, (), 2048, chunks=(4, 20)) == 45
    assert small_length(CAUSAL, {45, 46}, 2048, chunks=(20,)) == 47
    assert small_length(CAUSAL, (), 2048, chunks=(100,)) == 105
    assert small_length(CAUSAL, (), 2048, chunks=(256,)) == SMALLEST


@pytest.mark.parametrize("seq_len", [2, 10, 33, 200, 1024])
@pytest.mark.parametrize("passes", [1, 2, 7, 24, 2000])
def test_no_more_cuts_than_can_be_afforded_and_hardly_fewer(seq_len, passes):
    chosen = affordable(seq_len, passes)
    assert set(chosen) <= set(cuts.every(seq_len))
    assert min(passes, seq_len - 1) * 0.7 <= len(chosen) <= passes or passes >= seq_len - 1 == len(chosen)


@pytest.mark.parametrize(("reach", "mutual"), [(None, 1), (4, 1), (30, 1), (None, 6)])
@pytest.mark.parametrize("T", [2, 3, 12, 37])
def test_schedules_add_up_and_each_is_another(T, reach, mutual):
    plans = schedules(T, reach, min(mutual, T))
    for pieces in plans.values():
        assert sum(pieces) == T
        assert pieces[0] >= min(mutual, T)
    if T > 12 and reach == 4:
        assert max(plans["chunks longer than the window"]) > reach
    if T > 12:
        assert len(set(plans.values())) == len(plans)


@pytest.mark.parametrize("name", ["gpt2", "tiny_transformer"])
def test_a_small_copy_keeps_kinds_and_ratios(name):
    model = load(name).model
    small = shrunk(model)
    assert total(small) < min(total(model), 200_000)
    assert small.attention.n_heads / small.attention.n_kv_heads == model.attention.n_heads / model.attention.n_kv_heads
    assert small.ffn.d_ff / small.d_model == model.ffn.d_ff / model.d_model
    for axis in ("norm", "norm_placement", "position", "initialization", "final_norm", "tie_embeddings", "bias"):
        assert getattr(small, axis) == getattr(model, axis)
    assert [type(block.attention.pattern) for block in small.blocks()] == [
        type(block.attention.pattern) for block in model.blocks()[: small.n_layers]
    ]


@settings(max_examples=25)
@given(model_tables())
def test_any_model_has_a_small_copy_of_the_same_kind(table):
    model = ModelSpec.model_validate(table)
    small = shrunk(model)
    assert total(small) <= total(model) or small.d_model <= 2
    assert {type(block.attention.pattern) for block in small.blocks()} <= {
        type(block.attention.pattern) for block in model.blocks()
    }
    if model.layers:
        assert small.n_layers == model.n_layers


def test_windows_shrink_with_their_declaration():
    window = {"kind": "sliding_window", "window": 1000}
    model = experiment({"attention": {"n_heads": 2, "pattern": window}}).model
    assert of_model(OfModel(), shrunk(model)) == windows(WINDOW, WINDOW)
    assert shrunk_declaration(SlidingWindow(window=1000)) == SlidingWindow(window=WINDOW)
    assert shrunk_declaration(SlidingWindow(window=3)) == SlidingWindow(window=3)
    assert shrunk_declaration(OfModel()) == OfModel()


def test_above_a_size_every_cut_is_tried_on_a_small_copy_and_that_is_said(monkeypatch):
    assert total(load("gpt2").model) > ABOVE > total(load("tiny_transformer").model)
    monkeypatch.setattr(lengths, "SMALLEST", 5)
    asked = experiment(
        {"n_layers": 6, "vocab_size": 20}, causality={"shrink": True, "budget": 10}, input={"seq_len": 30}
    )
    result = run(asked)
    assert result.verdict == "pass"
    assert f"instead of {total(asked.model):,}" in result.data.notes[0]
    assert {row.seq_len for row in result.data.probes} == {6, 30}  # 5 is one of its sizes
    whole = run(experiment({"max_seq_len": 5}, causality={"shrink": False}))
    assert not any("small copy" in note for note in whole.data.notes)


def test_a_leak_of_the_large_model_is_one_of_its_small_copy():
    model = {"n_layers": 6, "max_seq_len": 5, "attention": {"n_heads": 2, "pattern": "bidirectional"}}
    data = run(experiment(model, causality={"shrink": True}, input={"seq_len": 5})).data
    assert row(data, "suffix_cuts").verdict == "LEAK"
    assert data.leaks[0].stage == "blocks.0.attention"


def test_rescaled_weights_are_large_for_a_while_and_the_same_by_name():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 400, bias=True), nn.LayerNorm(400), nn.Linear(400, 8))
    before = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict().items()}
    with rescaled(model, seed=1):
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        assert float(weights["0.weight"].std()) == pytest.approx(0.3, rel=0.1)
        assert float(weights["2.weight"].std()) == pytest.approx(1.7 / 20, rel=0.1)
        assert float(weights["1.weight"].min()) >= 0.5
        assert float(weights["1.weight"].std()) > 0.2
        assert float(weights["0.bias"].std()) > 0.2
    with rescaled(model, seed=1):
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    after = model.state_dict()
    assert all(
        after[name].data_ptr() == address and torch.equal(after[name], value)
        for name, (address, value) in before.items()
    )


def test_rates_are_slow_and_tables_stay():
    linear, table = nn.Linear(4, 4), nn.Embedding(9, 4, _freeze=True)
    model = nn.Sequential(linear, table)
    model.register_parameter("A_log", nn.Parameter(torch.ones(200)))
    before = linear.weight.clone(), table.weight.clone()
    with rescaled(model, seed=1):
        rates = model.get_parameter("A_log").detach().exp()
        assert 1 / 100 < float(rates.min()) < 1 / 60
        assert 1 / 6 < float(rates.max()) < 1 / 4
        assert not torch.equal(linear.weight, before[0])
        assert torch.equal(table.weight, before[1])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with rescaled(model, seed=1):  # a model that is frozen as a whole says nothing of tables
        assert not torch.equal(table.weight, before[1])


def test_a_missing_mask_is_small_with_the_first_weights_and_large_with_rescaled_ones():
    """Why they are rescaled; bits differ in both, so neither hides the leak."""
    model: dict[str, Any] = {"max_seq_len": 3, "attention": {"n_heads": 2, "pattern": "bidirectional"}}
    model["initialization"] = {"kind": "normal", "std": 0.001}
    as_is, large = (
        row(run(experiment(model, causality={"weights": weights}, input={"seq_len": 3})).data, "suffix_cuts")
        for weights in ("as-is", "auto")
    )
    assert as_is.verdict == large.verdict == "LEAK"
    assert as_is.worst is not None
    assert large.worst is not None
    assert 10 * as_is.worst < large.worst


def test_dtypes_are_those_that_were_asked_for():
    data = run(experiment({"max_seq_len": 3}, causality={"dtypes": ["float32", "bfloat16"]}, input={"seq_len": 3})).data
    assert {row.dtype for row in data.probes} == {"float32", "bfloat16"}
    assert row(data, "gradient_map").dtype == "float32"


def test_every_axis_counts_as_a_dimension():
    model = experiment({"d_model": 24, "attention": {"n_heads": 2, "d_head": 6}, "vocab_size": 11}).model
    assert {24, 2, 6, 12, 96, 11, 36} <= dimensions(model)
