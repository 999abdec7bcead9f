"""Weights drawn per parameter name: models that share a tensor share its values, whatever else they hold."""

from hashlib import sha256
from math import sqrt
from typing import Literal, NamedTuple, assert_never

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


Drawn = Distribution | Literal["noise"]


def draw(shape: tuple[int, ...], distribution: Drawn, random: torch.Generator) -> Tensor:
    """Independent numbers of mean 0 and standard deviation 1 on the CPU: weights in float64, noise in float32.

    What a function answers to small noise depends on the variance of the noise alone. It is uniform, and it has fewer
    digits than a weight, since that takes a sixth of a normal number's time.
    """
    match distribution:
        case "normal":
            return torch.randn(shape, generator=random, dtype=torch.float64)
        case "uniform":
            return torch.empty(shape, dtype=torch.float64).uniform_(-sqrt(3), sqrt(3), generator=random)
        case "noise":
            return torch.empty(shape, dtype=torch.float32).uniform_(-sqrt(3), sqrt(3), generator=random)
        case _:
            assert_never(distribution)


class _Draw(NamedTuple):
    """All that drawn numbers depend on before they get their spread."""

    seed: int
    name: str
    shape: tuple[int, ...]
    distribution: Drawn

    def numbers(self) -> Tensor:
        return draw(self.shape, self.distribution, generator(self.seed, self.name))


class Memo:
    """What was drawn for one model and another asks for again, so that models which share a tensor draw it once.

    Numbers are kept as they came out of the generator, for whatever a model scales them by; but no more of them than
    ``ROOM`` bytes, since they can be drawn again.
    """

    ROOM = 2**27

    def __init__(self) -> None:
        self._drawn: dict[_Draw, Tensor] = {}
        self._room = self.ROOM

    @property
    def names(self) -> list[str]:
        """Of the tensors that are kept."""
        return [wanted.name for wanted in self._drawn]

    def numbers(self, wanted: _Draw) -> Tensor:
        """Drawn now or earlier."""
        found = self._drawn.get(wanted)
        if found is None:
            found = wanted.numbers()
            if found.nbytes <= self._room:
                self._room -= found.nbytes
                self._drawn[wanted] = found
        return found


class _Slot(NamedTuple):
    """A place in the memory of a parameter, and what is drawn into it: one tensor, or one slice of a fused one."""

    tensor: Tensor
    name: str
    noise: str
    shape: tuple[int, ...]
    distribution: Distribution
    std: float

    def fill(self, seed: int, memo: Memo | None) -> None:
        """Drawn and scaled on the CPU, then copied to its place."""
        numbers = _numbers(_Draw(seed, self.name, self.shape, self.distribution), memo)
        self.tensor.copy_((numbers * self.std).to(self.tensor.dtype))

    def disturb(self, size: float, seed: int, memo: Memo | None) -> None:
        """Add noise with ``size`` times the standard deviation that it was drawn with."""
        numbers = _numbers(_Draw(seed, self.noise, self.shape, "noise"), memo)
        self.tensor.add_(numbers.to(self.tensor), alpha=size * self.std)


def _numbers(wanted: _Draw, memo: Memo | None) -> Tensor:
    return wanted.numbers() if memo is None else memo.numbers(wanted)


class Weights:
    """The parameters of a decoder, to be filled from one seed after the other.

    A fused tensor is its slices below each other, each drawn under its own name and scaled by its own role. What is
    the same for every seed is filled in at once: gains, and biases that start at 0.

    Args:
        decoder: Whose parameters they are.
        model: What it is.
        like: Those of a decoder that it shares parameters with; these are left to it.
    """

    def __init__(self, decoder: nn.Module, model: ModelSpec, like: "Weights | None" = None) -> None:
        self.parameters = dict(decoder.named_parameters())
        self._left = set(map(id, like.parameters.values())) if like else set()
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
            parameter = self.parameters[f"{own}{weight.name}"]
            if id(parameter) in self._left:
                continue
            tensors = torch.split(parameter.detach(), rows) if len(rows) > 1 else (parameter.detach(),)
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
            slot.fill(seed, memo)

    def add_noise(self, size: float, seed: int, memo: Memo | None = None) -> None:
        """Add noise to every matrix of the blocks, with ``size`` times the standard deviation it was drawn with."""
        for slot in self._noisy:
            slot.disturb(size, seed, memo)


def initialize(decoder: nn.Module, model: ModelSpec, seed: int) -> None:
    """Fill every parameter of the decoder in place, in its own dtype and on its own device."""
    Weights(decoder, model).draw(seed)
