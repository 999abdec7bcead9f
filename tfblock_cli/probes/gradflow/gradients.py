"""Norms of tensors, and of the gradients of a decoder's blocks, part by part."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import hypot
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tfblock_cli.account.weights import groups
from tfblock_cli.probes.float64 import for_float64
from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.size import Weight


def euclidean_norms(tensors: Iterable[Tensor | None]) -> list[float]:
    """The Euclidean norm of each, in float64; that of one that is missing is 0."""
    tensors = list(tensors)
    there = for_float64(*(tensor for tensor in tensors if tensor is not None))
    # at once, since a device is waited for each time
    norms = iter(torch.stack(torch._foreach_norm(there, dtype=torch.float64)).tolist() if there else ())
    return [0.0 if tensor is None else next(norms) for tensor in tensors]


class _Part(NamedTuple):
    """A parameter of a block, how many rows its slices have, and the groups that they belong to."""

    layer: int
    parameter: nn.Parameter
    rows: list[int]
    groups: list[str]


class Parts:
    """The parameters of a decoder's blocks by what they do: q, k, v, out, up, gate, down, biases, norms."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], model: ModelSpec) -> None:
        self._parts = tuple(_parts(parameters, model))
        self._n_layers = model.n_layers

    def gradient_norms(self) -> tuple[Mapping[str, float], ...]:
        """Of every group of every block."""
        slices: list[Tensor | None] = []
        for part in self._parts:
            grad = part.parameter.grad
            if grad is None or len(part.rows) == 1:
                slices += [grad] * len(part.rows)
            else:
                slices += torch.split(grad, part.rows)
        norms = iter(euclidean_norms(slices))
        found: tuple[dict[str, list[float]], ...] = tuple({} for _ in range(self._n_layers))
        for part in self._parts:
            of_layer = found[part.layer]
            for group in part.groups:
                of_layer.setdefault(group, []).append(next(norms))
        return tuple({group: hypot(*several) for group, several in of_layer.items()} for of_layer in found)


def _parts(parameters: Mapping[str, nn.Parameter], model: ModelSpec) -> Iterator[_Part]:
    for block, layers in groups(model):
        weights = [
            (weight.name, [int(leaf.shape[0]) for leaf in weight.leaves], list(map(_group, weight.leaves)))
            for weight in block.weights()
        ]
        for layer, (name, rows, of_slices) in product(layers, weights):
            yield _Part(layer, parameters[f"blocks.{layer}.{name}"], rows, of_slices)


def _group(weight: Weight) -> str:
    if weight.role in ("norm", "scale"):
        return "norms"
    return weight.role if weight.kind == "matrix" else "biases"
