"""Weights so large that no leak is small: with a usual initialization a missing mask changes logits by 1e-4."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod, sqrt

import torch
from torch import Tensor, nn

from tfblock_cli.modules.initialization import generator

STD = 0.3
GAIN = 1.7
"""At width 32 both are the same. Wider matrices of std 0.3 would make every softmax choose one key."""
LOG_RATES = (-4.5, -1.5)
"""Of the logarithm of a decay (A_log): its state forgets within 4 to 90 steps. With a larger rate what is handed over a
chunk of 16 decays below the rounding of float32, in which state spaces compute, and so does what must not be."""


@contextmanager
def rescaled(module: nn.Module, seed: int) -> Iterator[None]:
    """The module with other weights for a while; afterwards it has the very ones that it had."""
    weights = [(parameter, parameter.data) for parameter in module.parameters()]
    try:
        redraw(module, seed)
        yield
    finally:
        for parameter, data in weights:
            parameter.data = data


def redraw(module: nn.Module, seed: int) -> None:
    """Give a module other weights.

    Matrices from N(0, std²) with std = min(0.3, 1.7 / sqrt(inputs)), gains from 0.5..1.5, biases from N(0, 0.3²), the
    logarithms of rates from -4.5..-1.5, each drawn under its own name. What alone is frozen is a table, such as that of
    sinusoids, and stays.
    """
    tables_stay = any(parameter.requires_grad for parameter in module.parameters())
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and (parameter.requires_grad or not tables_stay):
            parameter.data = _drawn(name, parameter, seed).to(parameter.device, parameter.dtype)


def _drawn(name: str, parameter: Tensor, seed: int) -> Tensor:
    random, shape = generator(seed, f"causality.weights.{name}"), tuple(parameter.shape)
    if name.endswith("_log"):
        low, high = LOG_RATES
        return torch.rand(shape, generator=random).mul_(high - low).add_(low)
    if len(shape) >= 2:
        std = min(STD, GAIN / sqrt(prod(shape[1:])))
        return torch.randn(shape, generator=random).mul_(std)  # in float32: half the time of the largest models
    if name.rpartition(".")[2] == "bias":
        return torch.randn(shape, generator=random).mul_(STD)
    return torch.rand(shape, generator=random).add_(0.5)
