"""Weights drawn per parameter name: models that share a tensor share its values, whatever else they hold."""

from hashlib import sha256
from math import sqrt
from typing import assert_never

import torch
from torch import Tensor, nn

from tfblock_cli.spec.initialization import Distribution
from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.norm_placement import Placement
from tfblock_cli.spec.size import Weight


class Linear(nn.Linear):
    """x Wᵀ + b, as torch has it, with values that are still to be drawn."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is: ``initialize`` fills it."""


class Embedding(nn.Embedding):
    """The rows of a table, as torch has it, with values that are still to be drawn."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is: ``initialize`` fills it."""


Memo = dict[tuple[int, str, tuple[int, ...], Distribution], Tensor]
"""Draws of standard deviation 1 by seed, name, shape and distribution: all that they depend on."""


def generator(seed: int, name: str) -> torch.Generator:
    """A generator on the CPU that depends on the seed and the name, and on nothing else."""
    digest = sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def draw(shape: tuple[int, ...], distribution: Distribution, random: torch.Generator) -> Tensor:
    """Independent numbers of mean 0 and standard deviation 1, in float64 on the CPU."""
    match distribution:
        case "normal":
            return torch.randn(shape, generator=random, dtype=torch.float64)
        case "uniform":
            return torch.empty(shape, dtype=torch.float64).uniform_(-sqrt(3), sqrt(3), generator=random)
        case _:
            assert_never(distribution)


def values(weight: Weight, model: ModelSpec, placement: Placement, seed: int, memo: Memo | None = None) -> Tensor:
    """The first values of one parameter, in float64 on the CPU.

    A fused tensor is its slices below each other, each drawn under its own name and scaled by its own role.

    Args:
        weight: Named as in the whole model.
        model: Says how it is drawn.
        placement: Says by what it is scaled.
        seed: Of the experiment.
        memo: What other models drew; what is drawn here is added.
    """
    if weight.slices:
        return torch.cat([values(part, model, placement, seed, memo) for part in weight.slices])
    shape = tuple(map(int, weight.shape))
    if weight.kind == "gain":
        return torch.ones(shape, dtype=torch.float64)
    distribution, std = model.initialization.draw(weight, model.n_layers)
    if std == 0:
        return torch.zeros(shape, dtype=torch.float64)
    memo = {} if memo is None else memo
    key = (seed, weight.name, shape, distribution)
    if key not in memo:
        memo[key] = draw(shape, distribution, generator(seed, weight.name))
    return memo[key] * (std * placement.gain(weight.role, model.n_layers))


@torch.no_grad()
def initialize(decoder: nn.Module, model: ModelSpec, seed: int, memo: Memo | None = None) -> None:
    """Fill every parameter of the decoder in place, in its own dtype and on its own device."""
    parameters = dict(decoder.named_parameters())
    for weight in model.outer_weights():
        parameters[weight.name].copy_(values(weight, model, model.norm_placement, seed, memo))
    for block in model.blocks():
        for weight in block.weights():
            weight = weight.under(f"blocks.{block.index}")
            parameters[weight.name].copy_(values(weight, model, block.norm_placement, seed, memo))
