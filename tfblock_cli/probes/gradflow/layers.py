"""Layers: where those of anybody's module are, a guess from its shape alone; and whether two of them are the same."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

TAKEN = ("model", "input", "block", "hidden", "residual")
"""Groups of what is measured as a whole: a parameter that would stand among them goes by its full name."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The list that was taken for the layers.

    Attributes:
        path: Of the list in the module, such as ``model.layers``; "" where there is none.
        names: Of its items, "0" and so on.
        modules: Its items.
    """

    path: str
    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]

    @property
    def type_name(self) -> str:
        """The class of the items; "" without any."""
        return type(self.modules[0]).__name__ if self.modules else ""

    @property
    def have_matrices(self) -> bool:
        """Whether each has one."""
        return all(any(weight.dim() > 1 for weight in layer.parameters()) for layer in self.modules)

    def place(self, name: str) -> tuple[int | None, str]:
        """The layer that a parameter belongs to and its name there; outside, None and the path of its module."""
        own = self._place(name)
        return own if own[1] not in TAKEN else (own[0], name)

    def _place(self, name: str) -> tuple[int | None, str]:
        item, _, group = name.removeprefix(f"{self.path}." if self.path else "").partition(".")
        if item in self.names and name == ".".join(filter(None, (self.path, item, group))):
            return self.names.index(item), group
        return None, name.rpartition(".")[0] or name


def find_layers(module: nn.Module) -> Layers:
    """The ModuleList or Sequential, all of whose children are of one class, that holds the most parameters.

    One of two children or more goes before one of a single child; among equals the outermost, then the first. A list
    inside a layer (of heads, of experts) holds fewer than the list of the layers, however long it is.
    """
    return max(_lists(module), key=_weight, default=Layers("", (), ()))


def has_clones(blocks: Iterable[nn.Module]) -> bool:
    """Whether two of them have the same matrices, bit for bit."""
    seen: dict[float, list[nn.Module]] = {}
    for block in blocks:
        alike = seen.setdefault(float(next(_matrices(block)).flatten()[0]), [])  # nearly always the only one
        if any(all(map(torch.equal, _matrices(block), _matrices(other))) for other in alike):
            return True
        alike.append(block)
    return False


def _matrices(block: nn.Module) -> Iterator[Tensor]:
    return (parameter.detach() for parameter in block.parameters() if parameter.dim() > 1)


def _lists(module: nn.Module) -> Iterator[Layers]:
    for path, inner in module.named_modules():
        if isinstance(inner, nn.ModuleList | nn.Sequential):
            children = tuple(inner)
            of_one_class = len({type(child) for child in children}) == 1
            if of_one_class and any(True for _ in inner.parameters()):
                yield Layers(path, tuple(inner._modules), children)


def _weight(layers: Layers) -> tuple[bool, int]:
    own = {id(weight): weight.numel() for layer in layers.modules for weight in layer.parameters()}
    return len(layers.modules) > 1, sum(own.values())
