"""One cell: one placement at one depth with one seed, one forward and one backward pass, and one under noise."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import hypot, inf, isfinite, nan, sqrt
from typing import NamedTuple, assert_never

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.account.weights import groups
from tfblock_cli.modules.decoder import empty
from tfblock_cli.modules.initialization import Memo, Weights, generator
from tfblock_cli.modules.norm import LayerNorm, RMSNorm
from tfblock_cli.modules.stage import record
from tfblock_cli.probes.inputs import random_input
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.model import BlockSpec, ModelSpec
from tfblock_cli.spec.settings import LossName
from tfblock_cli.spec.size import Weight

NOISE = 0.01
"""The noise on a matrix, as a part of the standard deviation that it was drawn with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one backward pass leaves behind.

    Attributes:
        loss: Its value.
        source: The gradient norm of the token table, or of the input of a stack without one.
        head: The gradient norm of the output matrix; None where there is none of its own.
        embedded: The gradient norm of the stream in front of the first block.
        blocks: The gradient norm over all parameters of each block.
        groups: The same for the parts of each block: the matrices q, k, v, out, up, gate, down, all biases of linear
            layers together, and all of its norms.
        hidden: The gradient norm of the residual stream behind each block.
        rms: The root mean square of that stream.
        cosine: The mean cosine between different tokens of a sequence in that stream; nan for one token.
        noise: The relative change of the output under noise on the weights.
        degeneracy: How much of the loss's gradient the last norm lets through: |d loss / d x| · rms(x) over
            |d loss / d N(x)|, token by token; nan where the stack does not end in a norm.
        floor: The smallest mean square that a norm brings a sub-layer's output to, gains aside: the mean over tokens of
            var / (var + eps), 1 if eps does not matter; inf where no norm takes such an output by itself.
        cloned: Whether two blocks have the same matrices.
    """

    loss: float
    source: float
    head: float | None
    embedded: float
    blocks: tuple[float, ...]
    groups: tuple[Mapping[str, float], ...]
    hidden: tuple[float, ...]
    rms: tuple[float, ...]
    cosine: tuple[float, ...]
    noise: float
    degeneracy: float
    floor: float
    cloned: bool

    @property
    def is_finite(self) -> bool:
        """Whether the loss, every gradient and every stream are."""
        numbers = (self.loss, self.source, self.embedded, *self.blocks, *self.hidden, *self.rms)
        return all(map(isfinite, numbers if self.head is None else (*numbers, self.head)))


class Model:
    """A decoder of one placement and depth, to be given the weights of one seed after the other."""

    def __init__(self, experiment: Experiment) -> None:
        self.spec = experiment.model
        self.decoder = empty(experiment)
        self.weights = Weights(self.decoder, self.spec)
        self.blocks = self.spec.blocks()
        self.cloned: bool | None = None
        self.parts = tuple(_parts(self.weights.parameters, self.spec))


def measure(experiment: Experiment, memo: Memo | None = None, model: Model | None = None) -> Seen:
    """Run the experiment's decoder forward and backward once, and look at it from outside.

    Dropout is off (eval mode): its noise would stand where the placement's effect should.

    Args:
        experiment: With the placement, the depth and the seed of the cell.
        memo: Weights that were drawn for other cells of the same seed.
        model: Built for another seed of the same placement and depth; a new one unless given.
    """
    model = model or Model(experiment)
    decoder = model.decoder
    model.weights.draw(experiment.seed, memo)
    if model.cloned is None:  # no seed makes layers alike, or different
        model.cloned = has_clones(decoder.blocks)
    x = random_input(experiment)
    has_vocabulary = model.spec.vocab_size > 0
    x.requires_grad_(not has_vocabulary)
    streams: dict[str, Tensor] = {}

    def keep(name: str, stream_BTD: Tensor) -> None:
        stream_BTD.retain_grad()
        streams[name] = stream_BTD

    names = ["embedded", *(f"blocks.{block.index}" for block in model.blocks)]
    with record(decoder, names, keep), _branch_squares(model) as squares, _last_norm(model) as last:
        loss = loss_of(decoder(x), experiment)
    loss.backward()  # type: ignore[no-untyped-call]
    _, *behind = streams.values()
    stream_LBTD = torch.stack([stream_BTD.detach() for stream_BTD in behind])
    size_L = torch.linalg.vector_norm(stream_LBTD, dim=(1, 2, 3), dtype=torch.float64)
    of_groups = _groups(model)
    source, head, embedded, *hidden = gradient_norms(
        [
            decoder.embed.weight.grad if has_vocabulary else x.grad,
            decoder.head.weight.grad if has_vocabulary else None,
            *(stream_BTD.grad for stream_BTD in streams.values()),
        ]
    )
    seen = Seen(
        loss=float(loss.detach()),
        source=source,
        head=head if has_vocabulary and not model.spec.tie_embeddings else None,
        embedded=embedded,
        blocks=tuple(hypot(*norms.values()) for norms in of_groups),
        groups=of_groups,
        hidden=tuple(hidden),
        rms=tuple((size_L / sqrt(stream_LBTD[0].numel())).tolist()),
        cosine=tuple(token_cosine(stream_LBTD).tolist()),
        noise=_response(model, experiment.seed, x.detach(), last["output"] if last else behind[-1], memo),
        degeneracy=_passed(**last) if last else nan,
        floor=min(torch.stack(squares).tolist()) if squares else inf,
        cloned=model.cloned,
    )
    for parameter in model.weights.parameters.values():
        parameter.grad = None
    return seen


def loss_of(output: Tensor, experiment: Experiment) -> Tensor:
    """The experiment's loss."""
    return named_loss(output, experiment.gradflow.loss, experiment.seed)


def named_loss(output: Tensor, loss: LossName, seed: int) -> Tensor:
    """A loss whose gradient at the output has no direction that a norm takes away.

    cross_entropy: of ids drawn from the seed, averaged over the B·T tokens.
    random_projection: the sum of output · r / sqrt(B·T·D), with r drawn from N(0, 1).
    mean_squared_error: the mean of (output - r)².
    """
    random = generator(seed, f"gradflow.{loss}")
    match loss:
        case "cross_entropy":
            targets_BT = torch.randint(output.shape[-1], output.shape[:-1], generator=random).to(output.device)
            return F.cross_entropy(output.flatten(0, 1), targets_BT.flatten())
        case "random_projection":
            r_BTD = torch.randn(output.shape, generator=random, dtype=torch.float64) / sqrt(output.numel())
            return (output * r_BTD.to(output)).sum()
        case "mean_squared_error":
            r_BTD = torch.randn(output.shape, generator=random, dtype=torch.float64)
            return F.mse_loss(output, r_BTD.to(output))
        case _:
            assert_never(loss)


def gradient_norms(gradients: Iterable[Tensor | None]) -> list[float]:
    """The Euclidean norm of each, in float64; that of one that is missing is 0."""
    gradients = list(gradients)
    there = [torch.linalg.vector_norm(grad, dtype=torch.float64) for grad in gradients if grad is not None]
    norms = iter(torch.stack(there).tolist() if there else ())  # at once, since a device is waited for each time
    return [0.0 if grad is None else next(norms) for grad in gradients]


def token_cosine(stream: Tensor) -> Tensor:
    """The mean cosine over all pairs of different tokens of a sequence: (..., B, T, D) to (...). 1 is a collapse."""
    T = stream.shape[-2]
    if T == 1:
        return stream.new_full(stream.shape[:-3], nan)
    lengths = torch.linalg.vector_norm(stream, dim=-1, dtype=torch.float64)
    to_unit = 1 / lengths.clamp_min(1e-12)
    unit_sum = (to_unit.unsqueeze(-2) @ stream.double()).squeeze(-2)
    # |sum of unit vectors|² = the sum of their squares + the sum over ordered pairs
    pairs = unit_sum.square().sum(-1) - (lengths * to_unit).square().sum(-1)
    found: Tensor = pairs / (T * (T - 1))
    return found.mean(-1)


def has_clones(blocks: Iterable[nn.Module]) -> bool:
    """Whether two of them have the same matrices, bit for bit."""
    seen: dict[float, list[list[Tensor]]] = {}
    for block in blocks:
        matrices = [parameter.detach() for parameter in block.parameters() if parameter.dim() > 1]
        alike = seen.setdefault(float(matrices[0].flatten()[0]), [])
        if any(all(map(torch.equal, matrices, other)) for other in alike):
            return True
        alike.append(matrices)
    return False


class _Part(NamedTuple):
    """A parameter of a block, how many rows its slices have, and the groups that they belong to."""

    layer: int
    parameter: nn.Parameter
    rows: list[int]
    groups: list[str]


def _parts(parameters: Mapping[str, nn.Parameter], model: ModelSpec) -> Iterator[_Part]:
    for block, layers in groups(model):
        weights = tuple(block.weights())
        for layer, weight in product(layers, weights):
            rows = [int(leaf.shape[0]) for leaf in weight.leaves]
            yield _Part(layer, parameters[f"blocks.{layer}.{weight.name}"], rows, list(map(_group, weight.leaves)))


def _group(weight: Weight) -> str:
    if weight.role in ("norm", "scale"):
        return "norms"
    return weight.role if weight.kind == "matrix" else "biases"


def _groups(model: Model) -> tuple[Mapping[str, float], ...]:
    """The gradient norm of every group of every block."""
    slices: list[Tensor | None] = []
    for part in model.parts:
        grad = part.parameter.grad
        slices += (grad,) if grad is None or len(part.rows) == 1 else torch.split(grad, part.rows)
    places = [(part.layer, group) for part in model.parts for group in part.groups]
    found: tuple[dict[str, float], ...] = tuple({} for _ in model.blocks)
    for (layer, group), norm in zip(places, gradient_norms(slices), strict=True):
        found[layer][group] = hypot(found[layer].get(group, 0.0), norm)
    return found


def _response(model: Model, seed: int, x: Tensor, before: Tensor, memo: Memo | None) -> float:
    """|f(W + noise) - f(W)|² / |f(W)|². The decoder keeps the noise until the next seed's weights are drawn."""
    model.weights.add_noise(NOISE, seed, memo)
    name = "final_norm" if model.spec.has_final_norm else f"blocks.{model.spec.n_layers - 1}"
    after: list[Tensor] = []
    with torch.no_grad(), record(model.decoder, [name], lambda _, stream_BTD: after.append(stream_BTD)):
        model.decoder(x)
    change, size = (after[0] - before.detach()).double().square().sum(), before.detach().double().square().sum()
    return float(change / size)


def _branch_norms(block: BlockSpec) -> Iterator[str]:
    """The norms of a block that take what a sub-layer, or the attention's heads, put out."""
    if block.norm_placement.norms_the_branch:
        yield from (f"norms.{names[-1]}" for names in block.norm_placement.norm_names())
    for name, part in (("attention", block.attention), ("ffn", block.ffn)):
        if part.inner_norm.kind != "none":
            yield f"{name}.inner_norm"


@contextmanager
def _branch_squares(model: Model) -> Iterator[list[Tensor]]:
    """The mean square of what such norms put out before their gains: var / (var + eps), the mean over the tokens."""
    found: list[Tensor] = []

    def see(norm: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        assert isinstance(norm, (RMSNorm, LayerNorm))
        x = inputs[0].detach().double()
        variance = x.var(-1, unbiased=False) if isinstance(norm, LayerNorm) else x.square().mean(-1)
        found.append((variance / (variance + norm.eps)).mean())

    names = [f"blocks.{block.index}.{name}" for block in model.blocks for name in _branch_norms(block)]
    handles = [model.decoder.get_submodule(name).register_forward_hook(see) for name in names]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _last_norm(model: Model) -> Iterator[dict[str, Tensor]]:
    """Input and output of the norm that the stack ends in, with their gradients; nothing where it ends in none."""
    seen: dict[str, Tensor] = {}

    def see(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        for tensor in (inputs[0], output):
            tensor.retain_grad()
        seen.update(input=inputs[0], output=output)

    block = model.blocks[-1]
    name = f"blocks.{block.index}.norms.{block.norm_names[-1]}" if block.norm_names else ""
    name = "final_norm" if model.spec.has_final_norm else "" if block.norm_placement.final_norm else name
    handle = model.decoder.get_submodule(name).register_forward_hook(see) if name else None
    try:
        yield seen
    finally:
        if handle:
            handle.remove()


def _passed(input: Tensor, output: Tensor) -> float:
    """|d loss / d x| · rms(x) over |d loss / d N(x)|: near 1 for an honest loss, rounding for a degenerate one."""
    if input.grad is None or output.grad is None:
        return nan
    rms_BT = input.detach().double().square().mean(-1).sqrt()
    inside = torch.linalg.vector_norm(torch.linalg.vector_norm(input.grad.double(), dim=-1) * rms_BT)
    return float(inside / torch.linalg.vector_norm(output.grad.double()))
