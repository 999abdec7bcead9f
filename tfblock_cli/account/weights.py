"""Parameters by component and by layer, as exact integers with a formula each."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from tfblock_cli.results.params import Component, LayerGroup, WeightRow
from tfblock_cli.spec.model import BlockSpec, ModelSpec
from tfblock_cli.spec.size import Weight

COMPONENTS = ("embedding", "position", "attention", "ffn", "norms", "final_norm", "head")
OUTER = {"embed": "embedding", "position": "position", "final_norm": "final_norm", "head": "head"}


@dataclass
class _Tally:
    """Weights of one component: how many in matrices and gains, how many in biases, and their formula."""

    weights: int = 0
    biases: int = 0
    terms: list[str] = field(default_factory=list)

    def add(self, tensors: Iterable[Weight], layers: int = 1) -> None:
        """Count the same tensors in so many layers."""
        tensors = tuple(tensors)
        for tensor in tensors:
            if tensor.kind == "bias":
                self.biases += layers * int(tensor.count)
            else:
                self.weights += layers * int(tensor.count)
        if tensors:
            self.terms.append(_times(layers, " + ".join(tensor.count.symbol for tensor in tensors)))


def _times(layers: int, formula: str) -> str:
    return formula if layers == 1 else f"{layers}·({formula})" if " + " in formula else f"{layers}·{formula}"


def groups(model: ModelSpec) -> list[tuple[BlockSpec, tuple[int, ...]]]:
    """Neighbouring layers that are alike, as their first block and their indices."""
    found = []
    for _, members in groupby(model.blocks(), key=lambda block: block.parts):
        blocks = tuple(members)
        found.append((blocks[0], tuple(block.index for block in blocks)))
    return found


def total(model: ModelSpec) -> int:
    """Every parameter once."""
    inner = sum(len(layers) * sum(map(_elements, block.weights())) for block, layers in groups(model))
    return inner + sum(map(_elements, model.outer_weights()))


def _elements(weight: Weight) -> int:
    return int(weight.count)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Rows that add up to the total; a tied head is a row of 0 that names its owner."""
    tallies = {name: _Tally() for name in COMPONENTS}
    for block, layers in groups(model):
        for name, tensors in _by_component(block).items():
            tallies[name].add(tensors, len(layers))
    for outer, name in OUTER.items():
        tallies[name].add(weight for weight in model.outer_weights() if weight.name.split(".")[0] == outer)
    everything = sum(tally.weights + tally.biases for tally in tallies.values())
    tied = model.tie_embeddings
    return tuple(
        Component(
            name=name,
            count=tally.weights + tally.biases,
            weights=tally.weights,
            biases=tally.biases,
            formula=" + ".join(tally.terms),
            share=(tally.weights + tally.biases) / everything,
            tied_to="embedding" if name == "head" and tied else None,
        )
        for name, tally in tallies.items()
        if tally.terms or (name == "head" and tied)
    )


def _by_component(block: BlockSpec) -> dict[str, list[Weight]]:
    parts: dict[str, list[Weight]] = {"attention": [], "ffn": [], "norms": []}
    for weight in block.weights():
        part = weight.name.split(".")[0]
        parts["norms" if part == "scales" else part].append(weight)  # a scale is a norm's gain without the norm
    return parts


def layer_groups(model: ModelSpec) -> tuple[LayerGroup, ...]:
    """The counts and tensors of one layer of each group."""
    return tuple(_layer_group(block, layers) for block, layers in groups(model))


def _layer_group(block: BlockSpec, layers: tuple[int, ...]) -> LayerGroup:
    counts = {name: sum(map(_elements, tensors)) for name, tensors in _by_component(block).items()}
    return LayerGroup(
        layers=str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}",
        n=len(layers),
        attention=counts["attention"],
        ffn=counts["ffn"],
        norms=counts["norms"],
        total=sum(counts.values()),
        weights=tuple(
            WeightRow(
                name=weight.name,
                symbolic=tuple(size.symbol for size in weight.shape),
                shape=tuple(map(int, weight.shape)),
                count=int(weight.count),
                formula=weight.count.symbol,
            )
            for weight in block.weights()
        ),
    )
