"""Left-padded batches: every sequence gives what it gives alone, whatever stands in its padding."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.modules.models import EVERY_PATTERN, distance, experiment, inputs, shaken
from tfblock_cli.modules.chunk import Chunk

T, PADDING = 9, torch.tensor([0, 2, 8, 5])


def left_padded(x: Tensor) -> Tensor:
    """The first tokens of each sequence behind its padding, which repeats the last ones."""
    return torch.stack([row.roll(int(n), 0) for row, n in zip(x, PADDING, strict=True)])


def alone(decoder: Any, x: Tensor) -> list[Tensor]:
    """What the decoder gives for each sequence by itself."""
    return [decoder(x[b : b + 1, : T - int(n)])[0] for b, n in enumerate(PADDING)]


def worst(found: Tensor, expected: list[Tensor]) -> float:
    return max(distance(y[int(n) :], one) for y, n, one in zip(found, PADDING, expected, strict=True))


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("position", ["none", "learned", "rope"])
@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
def test_every_sequence_is_as_it_is_alone(kernel, position, pattern):
    attention = {"n_heads": 4, "n_kv_heads": 2, "pattern": pattern.model_dump()}
    asked = experiment(kernel=kernel, position=position, attention=attention, vocab_size=11)
    decoder, x = shaken(asked), inputs(asked, 4, T)
    with torch.no_grad():
        found = decoder(left_padded(x), padding=PADDING)
        assert bool(found.isfinite().all())
        assert worst(found, alone(decoder, x)) < 1e-12


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
def test_what_stands_in_the_padding_changes_no_bit_behind_it(kernel, pattern):
    asked = experiment(kernel=kernel, attention={"n_heads": 4, "pattern": pattern.model_dump()})
    decoder, x = shaken(asked), inputs(asked, 4, T)
    other, is_padding = x.clone(), torch.arange(T) < PADDING[:, None]
    other[is_padding] = 1e6 * inputs(asked, 4, T).flip(0)[is_padding]
    with torch.no_grad():
        one, changed = decoder(x, padding=PADDING), decoder(other, padding=PADDING)
    assert torch.equal(one[~is_padding], changed[~is_padding])
    assert not torch.equal(one[is_padding], changed[is_padding])
    assert bool(changed.isfinite().all())


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_gradients_are_finite_and_none_reaches_the_padding(kernel):
    asked = experiment(kernel=kernel)
    decoder, x = shaken(asked), inputs(asked, 4, T).requires_grad_()
    is_padding = torch.arange(T) < PADDING[:, None]
    y = decoder(x, padding=PADDING)
    (found,) = torch.autograd.grad((y * ~is_padding[..., None]).pow(2).sum(), x)
    assert bool(found.isfinite().all())
    assert bool((found[is_padding] == 0).all())
    assert bool((found[~is_padding] != 0).any(-1).all())


@pytest.mark.parametrize("fault", ["padding is seen", "positions count the padding"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_broken_padding_is_noticed(fault, kernel, monkeypatch):
    asked = experiment(kernel=kernel, position="learned", vocab_size=11)
    decoder, x = shaken(asked), inputs(asked, 4, T)
    name = "visible" if fault == "padding is seen" else "positions"
    original = getattr(Chunk, name)
    with torch.no_grad():
        expected = alone(decoder, x)
        monkeypatch.setattr(Chunk, name, lambda self, *given: original(Chunk(), *given))
        assert worst(decoder(left_padded(x), padding=PADDING), expected) > 1e-3


def test_no_padding_is_the_same_as_padding_of_no_tokens():
    for kernel in ("sdpa", "eager"):
        asked = experiment(kernel=kernel)
        decoder, x = shaken(asked), inputs(asked, 2, T)
        with torch.no_grad():
            assert distance(decoder(x, padding=torch.zeros(2, dtype=torch.long)), decoder(x)) < 1e-12


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        (torch.tensor([1]), r"one whole number per sequence, \(2,\), not torch.int64 of shape \(1,\)"),
        (torch.tensor([1.0, 0.0]), "one whole number per sequence"),
        (torch.tensor([[1], [0]]), "one whole number per sequence"),
        (torch.tensor([0, -1]), "one of them is -1"),
    ],
)
def test_what_is_no_padding_is_refused_in_words(padding, message):
    asked = experiment()
    with pytest.raises(ValueError, match=message):
        shaken(asked)(inputs(asked, 2, T), padding=padding)
