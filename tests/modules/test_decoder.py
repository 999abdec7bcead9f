"""Decoder and build: what comes in and goes out, ties, devices, dtypes, names."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from tests.modules.models import experiment, inputs, shaken
from tests.strategies import experiments
from tfblock_cli.modules.decoder import Decoder, build
from tfblock_cli.spec.experiment import Experiment


def tied(**keys: Any) -> Experiment:
    return experiment(vocab_size=11, tie_embeddings=True, **keys)


def is_tied(decoder: Decoder) -> bool:
    return decoder.head.weight is decoder.embed.weight


@given(experiments())
@settings(max_examples=20)
def test_whatever_is_valid_is_built_and_runs_in_its_dtype(asked):
    decoder, shape = build(asked), (asked.input.batch_size, asked.input.seq_len)
    x = torch.zeros(shape, dtype=torch.long)
    if not asked.model.vocab_size:
        x = torch.zeros(*shape, asked.model.d_model, dtype=getattr(torch, asked.dtype))
    with torch.no_grad():
        out = decoder(x)
    assert tuple(out.shape) == (*shape, asked.model.vocab_size or asked.model.d_model)
    assert out.dtype == getattr(torch, asked.dtype)
    assert {parameter.dtype for parameter in decoder.parameters()} == {out.dtype}
    assert not any(module.training for module in decoder.modules())


def test_ids_to_logits_and_vectors_to_vectors():
    with torch.no_grad():
        assert build(experiment(vocab_size=11))(torch.zeros(3, 5, dtype=torch.long)).shape == (3, 5, 11)
        assert build(experiment())(torch.zeros(3, 5, 24, dtype=torch.float64)).shape == (3, 5, 24)


@pytest.mark.parametrize(
    ("vocab_size", "x"),
    [
        (0, torch.zeros(3, 5, dtype=torch.long)),
        (0, torch.zeros(3, 5, 23)),
        (0, torch.zeros(3, 5, 24, dtype=torch.long)),
        (11, torch.zeros(3, 5, 24)),
        (11, torch.zeros(3, 5)),
        (11, torch.zeros(5, dtype=torch.long)),
    ],
)
def test_other_inputs_are_refused_in_words(vocab_size, x):
    with pytest.raises(ValueError, match="this decoder takes"):
        build(experiment(vocab_size=vocab_size))(x)


def test_a_sequence_that_is_too_long_is_refused():
    decoder = build(experiment(max_seq_len=8))
    decoder(torch.zeros(1, 8, 24, dtype=torch.float64))
    with pytest.raises(ValueError, match="9 tokens are more than max_seq_len = 8"):
        decoder(torch.zeros(1, 9, 24, dtype=torch.float64))


def test_on_the_device_meta_there_are_shapes_and_no_numbers():
    asked = experiment(vocab_size=11).model_copy(update={"device": "meta"})
    decoder = build(asked)
    real = build(experiment(vocab_size=11))
    assert {parameter.device.type for parameter in decoder.parameters()} == {"meta"}
    shapes = [{name: value.shape for name, value in one.state_dict().items()} for one in (decoder, real)]
    assert shapes[0] == shapes[1]
    out = decoder(torch.zeros(3, 5, dtype=torch.long, device="meta"))
    assert out.shape == (3, 5, 11)
    assert out.is_meta


def test_a_large_model_costs_nothing_on_the_device_meta():
    asked = experiment(d_model=8192, n_layers=3, vocab_size=128256, attention={"n_heads": 64, "n_kv_heads": 8})
    decoder = build(asked.model_copy(update={"device": "meta"}))
    assert sum(parameter.numel() for parameter in decoder.parameters()) > 10**9


def test_a_tie_survives_whatever_modules_go_through():
    decoder = build(tied())
    assert is_tied(decoder)
    assert is_tied(build(tied().model_copy(update={"device": "meta"})))
    assert is_tied(decoder.to(torch.float32))
    assert is_tied(decoder.to("cpu", torch.float64))
    copy = deepcopy(decoder)
    assert is_tied(copy)
    assert copy.head.weight is not decoder.head.weight
    other = build(tied(seed=5))
    assert not torch.equal(other.embed.weight, decoder.embed.weight)
    other.load_state_dict(decoder.state_dict())
    assert is_tied(other)
    assert torch.equal(other.embed.weight, decoder.embed.weight)
    assert not is_tied(build(experiment(vocab_size=11)))


def test_a_tied_weight_is_one_parameter_with_one_gradient():
    decoder, x = build(tied()), inputs(tied())
    names = [name for name, _ in decoder.named_parameters()]
    assert "embed.weight" in names
    assert "head.weight" not in names
    decoder(x).square().mean().backward()
    assert decoder.head.weight.grad is decoder.embed.weight.grad
    assert decoder.embed.weight.grad is not None


def test_a_state_dict_holds_parameters_alone_and_brings_a_model_back():
    """No masks, no angles: a table that were saved would tie a checkpoint to a length."""
    for kernel in ("sdpa", "eager"):
        asked = experiment(kernel=kernel, vocab_size=11)
        decoder, x = shaken(asked), inputs(asked)
        with torch.no_grad():
            expected = decoder(x)
        state = decoder.state_dict()
        assert list(state) == [name for name, _ in decoder.named_parameters()]
        assert set(state) == {weight.name for weight in asked.model.weights()}
        assert not list(decoder.buffers())
        fresh = build(experiment(kernel="eager", vocab_size=11, seed=9))
        fresh.load_state_dict(state)
        with torch.no_grad():
            assert torch.allclose(fresh(x), expected, rtol=0, atol=1e-12)


def test_a_copy_and_a_cast_run_on_their_own():
    asked = experiment(vocab_size=11)
    decoder, x = shaken(asked), inputs(asked)
    with torch.no_grad():
        expected = decoder(x)
        assert torch.equal(deepcopy(decoder)(x), expected)
        assert torch.allclose(decoder.float()(x).double(), expected, atol=1e-4)
