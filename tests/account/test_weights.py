"""The account of parameters against the built model, and its rows against each other."""

from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from tests.strategies import model_tables
from tfblock_cli.account import weights
from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.spec.model import BlockSpec, ModelSpec


def model(**keys: Any) -> ModelSpec:
    attention = {"n_heads": 4} | keys.pop("attention", {})
    return ModelSpec.model_validate({"d_model": 128, "attention": attention} | keys)


def built(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(parameter.shape) for name, parameter in Decoder(spec).named_parameters()}


@given(model_tables())
@settings(max_examples=25)
def test_every_parameter_of_the_built_model_is_in_the_account_and_no_other(table):
    spec = ModelSpec.model_validate(table)
    found = built(spec)
    counted = [(weight.name, tuple(map(int, weight.shape))) for weight in spec.weights()]
    assert len(counted) == len(found)
    assert dict(counted) == found
    assert weights.total(spec) == sum(map(prod, found.values()))


@given(model_tables())
@settings(max_examples=25)
def test_rows_add_up(table):
    spec = ModelSpec.model_validate(table)
    total = weights.total(spec)
    rows = weights.components(spec)
    assert sum(row.count for row in rows) == total
    assert all(row.count == row.weights + row.biases for row in rows)
    assert sum(row.share for row in rows) == pytest.approx(1)
    groups = weights.layer_groups(spec)
    assert sum(group.n for group in groups) == spec.n_layers
    for group in groups:
        assert group.attention + group.ffn + group.norms == group.total == sum(row.count for row in group.weights)
        assert all(row.count == prod(row.shape) for row in group.weights)
    outer = {"embedding", "position", "final_norm", "head"}
    inner = sum(group.n * group.total for group in groups)
    assert inner + sum(row.count for row in rows if row.name in outer) == total


@given(model_tables())
@settings(max_examples=20)
def test_formulas_give_the_counts(table):
    spec = ModelSpec.model_validate(table)
    letters = {"D": spec.d_model, "L": spec.n_layers, "V": spec.vocab_size, "P": spec.max_seq_len}
    groups = weights.groups(spec)
    for (block, _), group in zip(groups, weights.layer_groups(spec), strict=True):
        for row in group.weights:
            assert value(row.formula, letters | letters_of(block)) == row.count, row
    if len(groups) == 1:
        for component in weights.components(spec):
            if component.count:
                assert value(component.formula, letters | letters_of(groups[0][0])) == component.count, component


def letters_of(block: BlockSpec) -> dict[str, int]:
    attention = block.attention
    return {"H": attention.n_heads, "K": attention.n_kv_heads, "E": attention.d_head, "F": block.ffn.d_ff}


def value(formula: str, letters: dict[str, int]) -> int:
    """What a formula is worth: ``2·(H + 2K)·E`` has a product where two symbols touch."""
    python = "".join(
        f"*{sign}" if sign in letters and before.isdigit() else "*" if sign == "·" else sign
        for before, sign in zip(" " + formula, formula, strict=False)
    )
    return int(eval(python, {"__builtins__": {}}, letters))  # noqa: S307 - our own formula


def test_the_reader_of_formulas_knows_a_wrong_one():
    assert value("(H + 2K)·E·D", {"H": 4, "K": 2, "E": 8, "D": 32}) == 2048
    assert value("(H + K)·E·D", {"H": 4, "K": 2, "E": 8, "D": 32}) != 2048


def test_the_modern_small_decoder():
    counts = {row.name: row.count for row in weights.components(model())}
    assert counts == {
        "embedding": 32_768,
        "attention": 2 * 65_536,
        "ffn": 2 * 196_608,
        "norms": 2 * 256,
        "final_norm": 128,
        "head": 32_768,
    }
    assert weights.total(model()) == 590_464


def test_a_tied_head_is_a_row_of_nothing_that_names_its_owner():
    tied = {row.name: row for row in weights.components(model(tie_embeddings=True))}
    assert (tied["head"].count, tied["head"].tied_to) == (0, "embedding")
    assert weights.total(model(tie_embeddings=True)) == 590_464 - 32_768
    untied = {row.name: row for row in weights.components(model())}
    assert (untied["head"].count, untied["head"].tied_to) == (32_768, None)


def test_fewer_key_value_heads_cost_exactly_their_share():
    def keys_and_values(n_kv_heads: int) -> list[int]:
        spec = model(attention={"n_kv_heads": n_kv_heads})
        (qkv,) = (weight for weight in spec.blocks()[0].weights() if weight.name == "attention.qkv.weight")
        return [int(part.count) for part in qkv.slices]

    assert keys_and_values(4) == [128 * 128] * 3
    assert keys_and_values(1) == [128 * 128, 128 * 32, 128 * 32]


def test_layers_that_differ_are_counted_each_by_itself():
    spec = model(n_layers=4, layers=[{"at": "1::2", "ffn": {"d_ff": 64}}])
    assert [(group.layers, group.n, group.ffn) for group in weights.layer_groups(spec)] == [
        ("0", 1, 3 * 128 * 512),
        ("1", 1, 3 * 128 * 64),
        ("2", 1, 3 * 128 * 512),
        ("3", 1, 3 * 128 * 64),
    ]
    assert {row.name: row.count for row in weights.components(spec)}["ffn"] == 2 * 3 * 128 * (512 + 64)
