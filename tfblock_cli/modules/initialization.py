"""Weights drawn per parameter name: models that share a tensor share its values, whatever else they hold."""

from dataclasses import dataclass
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


Memo = dict[tuple[int, str, tuple[int, ...], Distribution, float, torch.dtype], Tensor]
"""Draws by seed, name, shape, distribution, standard deviation and dtype: all that they depend on."""


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


@dataclass(frozen=True, slots=True)
class _Slot:
    """A place in the memory of a parameter, and what is drawn into it: one tensor, or one slice of a fused one."""

    tensor: Tensor
    name: str
    noise: str
    distribution: Distribution
    std: float

    def drawn(self, name: str, seed: int, memo: Memo | None) -> Tensor:
        """Drawn in float64 on the CPU and scaled, then in the dtype and on the device of its place."""
        shape = tuple(self.tensor.shape)
        key = (seed, name, shape, self.distribution, self.std, self.tensor.dtype)
        found = None if memo is None else memo.get(key)
        if found is None:
            found = (draw(shape, self.distribution, generator(seed, name)) * self.std).to(self.tensor)
            if memo is not None:
                memo[key] = found
        return found


class Weights:
    """The parameters of a decoder, to be filled from one seed after the other.

    A fused tensor is its slices below each other, each drawn under its own name and scaled by its own role. What is
    the same for every seed is filled in at once: gains, and biases that start at 0.
    """

    def __init__(self, decoder: nn.Module, model: ModelSpec) -> None:
        self._parameters = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
        self._model = model
        self._slots: list[_Slot] = []
        self._noisy: list[_Slot] = []
        for weight in model.outer_weights():
            self._add(weight.name, weight, model.norm_placement)
        clones = model.initialization.clone_layers
        for block in model.blocks():
            for weight in block.weights():
                name = f"blocks.{block.index}.{weight.name}"
                drawn = weight.under("blocks.0" if clones else f"blocks.{block.index}")
                self._add(name, drawn, block.norm_placement, noise=f"noise.{block.index}")

    def _add(self, name: str, weight: Weight, placement: Placement, noise: str = "") -> None:
        rows = [int(leaf.shape[0]) for leaf in weight.leaves]
        for leaf, tensor in zip(weight.leaves, torch.split(self._parameters[name], rows), strict=True):
            if leaf.kind == "gain":
                first = placement.initial_scale if leaf.role == "scale" else 1.0
                assert first is not None, f"{placement.kind} has no vector of its own"
                tensor.fill_(first)
                continue
            distribution, std = self._model.initialization.draw(leaf, self._model.n_layers)
            if std == 0:
                tensor.zero_()
                continue
            scale = std * placement.gain(leaf.role, self._model.n_layers)
            slot = _Slot(tensor, leaf.name, f"{noise}.{leaf.name}", distribution, scale)
            self._slots.append(slot)
            if noise and leaf.kind == "matrix":
                self._noisy.append(slot)

    def draw(self, seed: int, memo: Memo | None = None) -> None:
        """Fill every parameter in place, in its own dtype and on its own device.

        Args:
            seed: Of the experiment.
            memo: What other models drew; what is drawn here is added.
        """
        for slot in self._slots:
            slot.tensor.copy_(slot.drawn(slot.name, seed, memo))

    def add_noise(self, size: float, seed: int, memo: Memo | None = None) -> None:
        """Add to every matrix of the blocks ``size`` times a second draw of its own spread."""
        for slot in self._noisy:
            slot.tensor.add_(slot.drawn(slot.noise, seed, memo), alpha=size)


def initialize(decoder: nn.Module, model: ModelSpec, seed: int, memo: Memo | None = None) -> None:
    """Fill every parameter of the decoder in place, in its own dtype and on its own device."""
    Weights(decoder, model).draw(seed, memo)
