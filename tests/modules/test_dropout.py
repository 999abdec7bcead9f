"""Dropout stands in two places - on the attention weights and behind the last FFN matrix - and nowhere else."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.modules.models import block_of, distance, experiment, inputs, shaken
from tfblock_cli.modules.block import Block
from tfblock_cli.modules.stage import record
from tfblock_cli.spec.base import axis_of, name_of
from tfblock_cli.spec.norm_placement import NormPlacement

UNNORMALIZED = ("pre", "sandwich", "reordered", "parallel", "lns", "none")


def block_and_input(**keys: Any) -> tuple[Block, Tensor]:
    asked = experiment(**keys)
    return block_of(shaken(asked)), inputs(asked)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("placement", ["pre", "parallel", "lns", "none"])
def test_with_dropout_1_and_no_biases_a_block_is_the_identity_in_training_and_not_else(placement, kernel):
    block, x = block_and_input(dropout=1.0, norm_placement=placement, kernel=kernel)
    with torch.no_grad():
        assert torch.equal(block.train()(x), x)
        assert distance(block.eval()(x), x) > 1e-2


def test_with_biases_what_is_left_are_the_biases_of_the_attention():
    """The place of the second dropout is behind the last matrix and its bias; the first is before ``out``."""
    block, x = block_and_input(dropout=1.0, bias=True)
    with torch.no_grad():
        assert torch.allclose(block.train()(x), x + block.attention.out.bias)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("placement", [name_of(kind) for kind in axis_of(NormPlacement)[0]])
def test_eval_ignores_it(placement, kernel):
    found = []
    for dropout in (0.0, 0.5, 1.0):
        block, x = block_and_input(dropout=dropout, norm_placement=placement, n_layers=4, kernel=kernel)
        with torch.no_grad():
            found.append(block.eval()(x))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("placement", UNNORMALIZED)
def test_no_entry_of_the_residual_stream_is_ever_dropped(placement):
    """A stream that went through dropout would be zero here and there, or scaled by 1 / (1 - p)."""
    asked = experiment(dropout=0.9, norm_placement=placement, n_layers=1, kernel="eager", final_norm=False)
    decoder, x = shaken(asked).train(), inputs(asked)
    seen: dict[str, Tensor] = {}
    names = ["embedded", *(name for name, _ in decoder.named_modules() if ".residual." in name)]
    with torch.no_grad(), record(decoder, names, seen.__setitem__):
        decoder(x)
    assert torch.equal(seen["embedded"], x)
    assert all(bool((value != 0).all()) for value in seen.values())
    if placement in ("pre", "lns", "none"):
        dropped = seen["blocks.0.residual.ffn"] == seen["blocks.0.residual.attention"]
        assert 0.8 < float(dropped.double().mean()) < 0.97  # where the FFN was dropped, the stream passed unchanged


def test_the_weights_that_are_seen_are_those_before_dropout():
    asked = experiment(dropout=0.5, kernel="eager")
    decoder, x = shaken(asked).train(), inputs(asked)
    seen: dict[str, Tensor] = {}
    name = "blocks.0.attention.weights"
    with torch.no_grad(), record(decoder, [name], seen.__setitem__):
        decoder(x)
    assert torch.allclose(seen[name].sum(-1), torch.ones(2, 4, 7, dtype=torch.float64))


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_in_training_it_is_random_and_right_on_average(kernel):
    block, x = block_and_input(dropout=0.2, kernel=kernel, position="none")
    attention = block.attention
    with torch.no_grad():
        torch.manual_seed(0)
        runs = torch.stack([attention.train()(x) for _ in range(600)])
        expected = attention.eval()(x)
    assert not torch.equal(runs[0], runs[1])
    error = (runs.mean(0) - expected).abs() / (runs.std(0) / 600**0.5 + 1e-12)
    assert float(error.max()) < 5  # standard errors
