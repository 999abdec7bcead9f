"""Weights drawn per parameter name: models that share a tensor share its values, whatever else they hold."""

from dataclasses import dataclass
from hashlib import sha256
from math import sqrt
from typing import NamedTuple, assert_never

import torch
from torch import Tensor, nn

from tfblock_cli.account.weights import groups
from tfblock_cli.spec.initialization import Distribution, Draw
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


class _Draw(NamedTuple):
    """All that drawn numbers depend on before they get their spread."""

    seed: int
    name: str
    shape: tuple[int, ...]
    distribution: Distribution

    def numbers(self) -> Tensor:
        return draw(self.shape, self.distribution, generator(self.seed, self.name))


class Memo:
    """What was drawn for one model and another asks for again, so that models which share a tensor draw it once.

    A tensor is kept as it stands in a model; and as it came out of the generator, for a model that scales it
    differently, but no more of those than ``ROOM`` bytes: they are larger, and can be drawn again.
    """

    ROOM = 2**27

    def __init__(self) -> None:
        self._numbers: dict[_Draw, Tensor] = {}
        self._scaled: dict[tuple[_Draw, float, torch.dtype], Tensor] = {}
        self._room = self.ROOM

    @property
    def names(self) -> list[str]:
        """Of the tensors that are kept as they stand in a model."""
        return [wanted.name for wanted, _, _ in self._scaled]

    def scaled(self, wanted: _Draw, std: float, like: Tensor) -> Tensor:
        """The numbers times std, in the dtype and on the device of ``like``."""
        key = (wanted, std, like.dtype)
        found = self._scaled.get(key)
        if found is None:
            found = self._scaled[key] = (self._drawn(wanted) * std).to(like)
        return found

    def _drawn(self, wanted: _Draw) -> Tensor:
        found = self._numbers.get(wanted)
        if found is None:
            found = wanted.numbers()
            if found.nbytes <= self._room:
                self._room -= found.nbytes
                self._numbers[wanted] = found
        return found


@dataclass(frozen=True, slots=True)
class _Slot:
    """A place in the memory of a parameter, and what is drawn into it: one tensor, or one slice of a fused one."""

    tensor: Tensor
    name: str
    noise: str
    shape: tuple[int, ...]
    distribution: Distribution
    std: float

    def drawn(self, name: str, seed: int, memo: Memo | None) -> Tensor:
        """Drawn in float64 on the CPU and scaled, then in the dtype and on the device of its place."""
        wanted = _Draw(seed, name, self.shape, self.distribution)
        if memo is None:
            return (wanted.numbers() * self.std).to(self.tensor)
        return memo.scaled(wanted, self.std, self.tensor)


class Weights:
    """The parameters of a decoder, to be filled from one seed after the other.

    A fused tensor is its slices below each other, each drawn under its own name and scaled by its own role. What is
    the same for every seed is filled in at once: gains, and biases that start at 0.
    """

    def __init__(self, decoder: nn.Module, model: ModelSpec) -> None:
        self.parameters = dict(decoder.named_parameters())
        self._model = model
        self._slots: list[_Slot] = []
        self._noisy: list[_Slot] = []
        for weight in model.outer_weights():
            self._add(weight, model.norm_placement)
        for block, layers in groups(model):
            for weight in block.weights():
                self._add(weight, block.norm_placement, layers)

    def _add(self, weight: Weight, placement: Placement, layers: tuple[int, ...] = ()) -> None:
        """One parameter, or with layers the same one of each of them."""
        rows = [int(leaf.shape[0]) for leaf in weight.leaves]
        draws = [self._draw(leaf, placement) for leaf in weight.leaves]
        clones = self._model.initialization.clone_layers
        for own in [f"blocks.{layer}." for layer in layers] or [""]:
            drawn_in = "blocks.0." if own and clones else own
            tensors = torch.split(self.parameters[f"{own}{weight.name}"].detach(), rows)
            for leaf, first, tensor in zip(weight.leaves, draws, tensors, strict=True):
                if isinstance(first, float):
                    tensor.fill_(first)
                    continue
                name = f"{drawn_in}{leaf.name}"
                slot = _Slot(tensor, name, own.replace("blocks", "noise") + name, tuple(tensor.shape), *first)
                self._slots.append(slot)
                if own and leaf.kind == "matrix":
                    self._noisy.append(slot)

    def _draw(self, leaf: Weight, placement: Placement) -> Draw | float:
        """How a tensor is drawn, the placement's own gain included; or the number that it is filled with."""
        if leaf.kind == "gain":
            first = placement.initial_scale if leaf.role == "scale" else 1.0
            assert first is not None, f"{placement.kind} has no vector of its own"
            return first
        distribution, std = self._model.initialization.draw(leaf, self._model.n_layers)
        return Draw(distribution, std * placement.gain(leaf.role, self._model.n_layers)) if std else 0.0

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
