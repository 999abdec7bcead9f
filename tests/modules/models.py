"""Small models for the tests of modules: every parameter random, gains and biases too."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.modules.formulas import Weights
from tfblock_cli.modules.block import Block
from tfblock_cli.modules.decoder import Decoder, build
from tfblock_cli.spec.attention import Bidirectional, Causal, Documents, Pattern, Prefix, SlidingWindow
from tfblock_cli.spec.experiment import Experiment

EVERY_PATTERN: tuple[Pattern, ...] = (
    Causal(),
    SlidingWindow(window=1),
    SlidingWindow(window=3),
    SlidingWindow(window=50),
    Prefix(length=1),
    Prefix(length=4),
    Prefix(length=50),
    Documents(lengths=(3,)),
    Documents(lengths=(2, 4, 1)),
    Documents(lengths=(50,)),
    Bidirectional(),
)
"""Every kind, with windows, prefixes and documents shorter and longer than the inputs of the tests."""

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def experiment(
    *, kernel: str = "sdpa", dtype: str = "float64", seed: int = 0, seq_len: int = 7, **model: Any
) -> Experiment:
    """A decoder of width 24 with two layers and four heads, unless told otherwise."""
    table = {"d_model": 24, "n_layers": 2, "vocab_size": 0, "attention": {"n_heads": 4}} | model
    return Experiment.model_validate(
        {"seed": seed, "kernel": kernel, "dtype": dtype, "input": {"seq_len": seq_len}, "model": table}
    )


def shaken(asked: Experiment) -> Decoder:
    """The decoder with every parameter drawn at random: a gain of 1 or a bias of 0 would hide a mistake."""
    decoder = build(asked)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            # the spread of a matrix keeps sizes; gains stand around 1
            noise = noise / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else noise / 5
            parameter.copy_(1 + noise if "norm" in name and name.endswith("weight") else noise)
    return decoder


def block_of(decoder: Decoder, index: int = 0) -> Block:
    """One of its blocks, with its type."""
    block = decoder.blocks[index]
    assert isinstance(block, Block)
    return block


def inputs(asked: Experiment, batch_size: int = 2, seq_len: int = 7) -> Tensor:
    """Ids, or vectors in the experiment's dtype."""
    random = torch.Generator().manual_seed(2)
    if asked.model.vocab_size:
        return torch.randint(asked.model.vocab_size, (batch_size, seq_len), generator=random)
    x = torch.randn(batch_size, seq_len, asked.model.d_model, generator=random, dtype=torch.float64)
    return x.to(getattr(torch, asked.dtype))


def plain(module: nn.Module) -> Weights:
    """Its weights as numpy arrays in float64, by name."""
    return {name: value.double().numpy() for name, value in module.state_dict().items()}


def distance(a: Tensor | np.ndarray[Any, Any], b: Tensor | np.ndarray[Any, Any]) -> float:
    """The largest difference, as a part of the largest number."""
    a, b = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    assert a.shape == b.shape
    return float((a - b).abs().max() / b.abs().max())
