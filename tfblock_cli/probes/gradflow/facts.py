"""What a placement is, and what it changes of an otherwise equal model: read from the spec, nothing is measured."""

from collections.abc import Iterator
from itertools import groupby
from math import prod, sqrt
from typing import get_args

from tfblock_cli.account.weights import groups
from tfblock_cli.results.gradflow import PlacementFacts
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.norm_placement import Placement
from tfblock_cli.spec.size import Role, Weight

BRANCHES: tuple[tuple[Role, ...], ...] = (("v", "out"), ("up", "down"))
"""The matrices that values pass in attention and in the FFN."""
WEAK = 0.4
"""Below this branch gain a branch adds so little to the stream that placements look alike."""
SMALL_EMBEDDING = 0.1


def facts(experiment: Experiment, as_written: ModelSpec) -> PlacementFacts:
    """Of the experiment of one placement at its deepest; ``as_written`` is the model of the file."""
    model = experiment.model
    placement, block = model.norm_placement, model.blocks()[0]
    return PlacementFacts(
        placement=placement.kind,
        formula=placement.formula,
        norms_per_block=len(block.norm_names),
        final_norm=model.has_final_norm,
        branch_gain=branch_gain(model, placement),
        overrides=tuple(_overrides(model, as_written)),
    )


def branch_gain(model: ModelSpec, placement: Placement | None = None) -> float:
    """How large the weakest branch comes out of its matrices: the geometric mean of their std · sqrt(fan_in).

    Activation and attention weights make it smaller still.

    Args:
        model: With its initialization.
        placement: Whose gains count; without one the initialization's alone.
    """
    gains = []
    for block, _ in groups(model):
        matrices = {leaf.role: leaf for weight in block.weights() for leaf in weight.leaves if leaf.kind == "matrix"}
        gains += [
            sqrt(prod(_gain(matrices[role], model) * (placement.gain(role, model.n_layers) if placement else 1.0)
                      for role in branch))
            for branch in BRANCHES
        ]  # fmt: skip
    return min(gains)


def warnings(experiment: Experiment) -> Iterator[str]:
    """What of the initialization would hide the effect of the placements."""
    model, kinds = experiment.model, experiment.gradflow.placements
    if overridden := [str(override.at) for override in model.layers if override.norm_placement]:
        yield f"norm_placement in [[model.layers]] at {'; '.join(overridden)} is set aside: it is what is compared"
    deepest = model.changed(norm_placement="pre", n_layers=max(experiment.gradflow.depths))
    gain = branch_gain(deepest)
    if gain < WEAK:
        yield (
            f"weak branches: std x sqrt(fan_in) is {gain:.2g} with initialization = {model.initialization.kind!r}; "
            f"below {WEAK} the placements look alike, since a branch adds next to nothing to the stream; 'unit' keeps "
            "sizes"
        )
    normed = [kind.kind for kind in kinds if kind.norms_the_branch]
    std = model.initialization.embedding_std
    if normed and model.vocab_size and std < SMALL_EMBEDDING:
        yield (
            f"embedding_std = {std:.2g} is small beside the branches of {', '.join(normed)}, whose rms is 1: they "
            "drown the embedding in the first block"
        )


def _gain(matrix: Weight, model: ModelSpec) -> float:
    return model.initialization.draw(matrix, model.n_layers).std * sqrt(matrix.fan_in)


def _overrides(model: ModelSpec, as_written: ModelSpec) -> Iterator[str]:
    """Gains, own vectors and inner norms, in words; the final norm is told by itself."""
    placement, L = model.norm_placement, model.n_layers
    scaled = [(placement.gain(role, L), role) for role in get_args(Role) if placement.gain(role, L) != 1]
    for gain, roles in groupby(scaled, key=lambda pair: pair[0]):
        there = [role for _, role in roles if role != "gate" or model.blocks()[0].ffn.gated]
        yield f"weights of {', '.join(there)} times {gain:.3g}"
    if placement.initial_scale is not None:
        yield f"each branch times a vector of {placement.initial_scale:.3g}"
    if model.attention.inner_norm != as_written.attention.inner_norm:
        yield f"inner_norm = {model.attention.inner_norm.kind} in attention and ffn"
