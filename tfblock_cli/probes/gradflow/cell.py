"""One cell: one placement at one depth with one seed, one forward and one backward pass, and one under noise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, isfinite, nan

import torch
from torch import Tensor

from tfblock_cli.modules.decoder import Decoder, empty
from tfblock_cli.modules.initialization import Memo, Weights
from tfblock_cli.probes.float64 import for_float64
from tfblock_cli.probes.gradflow.gradients import Parts, euclidean_norms
from tfblock_cli.probes.gradflow.layers import has_clones
from tfblock_cli.probes.gradflow.losses import loss_of
from tfblock_cli.probes.gradflow.norms import branch_squares, last_norm, passed
from tfblock_cli.probes.gradflow.streams import statistics
from tfblock_cli.probes.inputs import random_input
from tfblock_cli.spec.experiment import Experiment

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
    """A decoder of one placement and depth, to be given the weights of one seed after the other.

    Args:
        experiment: What it is.
        like: Whose weights it shares: one that differs in the placement alone, with equal ``shared_weights``.
    """

    def __init__(self, experiment: Experiment, like: "Model | None" = None) -> None:
        self.experiment = experiment
        self.decoder: Decoder = empty(experiment, like.decoder if like else None)
        self.weights: Weights = Weights(self.decoder, experiment.model, like.weights if like else None)
        self.parts = Parts(self.weights.parameters, experiment.model)
        self.cloned: bool | None = None


def measure(experiment: Experiment, memo: Memo | None = None) -> Seen:
    """The cell of the experiment's own placement, depth and seed."""
    (seen,) = measure_all([Model(experiment)], experiment.seed, memo)
    return seen


def measure_all(
    models: Sequence[Model], seed: int, memo: Memo | None = None, advance: Callable[[], None] = lambda: None
) -> list[Seen]:
    """Give models the weights of a seed, run each forward and backward, then forward with noise on the weights.

    Dropout is off (eval mode): its noise would stand where the placement's effect should.

    Args:
        models: Of one experiment, but for placement and depth; those that others share weights with are among them.
        seed: Of weights, input, loss and noise.
        memo: Numbers that were drawn for other models of the same seed.
        advance: Called twice for each model.
    """
    x = random_input(models[0].experiment, seed=seed)
    for model in models:
        model.weights.draw(seed, memo)
    cells = []
    for model in models:
        cells.append(look(model, x, seed))
        advance()
    for model in models:
        model.weights.add_noise(NOISE, seed, memo)
    found = []
    for model, (seen, before) in zip(models, cells, strict=True):
        found.append(replace(seen, noise=response(model, x, before)))
        advance()
    return found


def look(model: Model, x: Tensor, seed: int) -> tuple[Seen, Tensor]:
    """Run a model forward and backward; what is seen, but for the noise, and the output in front of the head."""
    spec, decoder = model.experiment.model, model.decoder
    if model.cloned is None:  # no seed makes layers alike, or different
        model.cloned = has_clones(decoder.blocks)
    has_vocabulary = spec.vocab_size > 0
    x = x.detach().requires_grad_(not has_vocabulary)
    with branch_squares(decoder) as squares, last_norm(decoder) as last:
        streams = [*decoder.streams(x)]
    for stream_BTD in streams:
        stream_BTD.retain_grad()
    loss = loss_of(decoder.output(streams[-1]), model.experiment.gradflow.loss, seed)
    loss.backward()  # type: ignore[no-untyped-call]
    behind = statistics(streams[1 : spec.n_layers + 1])
    groups = model.parts.gradient_norms()
    source, head, embedded, *hidden = euclidean_norms(
        [
            decoder.embed.weight.grad if has_vocabulary else x.grad,
            decoder.head.weight.grad if has_vocabulary else None,
            *(stream_BTD.grad for stream_BTD in streams[: spec.n_layers + 1]),
        ]
    )
    for parameter in model.weights.parameters.values():
        parameter.grad = None
    seen = Seen(
        loss=float(loss.detach()),
        source=source,
        head=head if has_vocabulary and not spec.tie_embeddings else None,
        embedded=embedded,
        blocks=tuple(hypot(*norms.values()) for norms in groups),
        groups=groups,
        hidden=tuple(hidden),
        rms=tuple(stream.rms for stream in behind),
        cosine=tuple(stream.cosine for stream in behind),
        noise=nan,
        degeneracy=passed(**last) if last else nan,
        floor=min(torch.stack(squares).tolist()) if squares else inf,
        cloned=model.cloned,
    )
    return seen, streams[-1].detach()


def response(model: Model, x: Tensor, before: Tensor) -> float:
    """|f(W + noise) - f(W)|² / |f(W)|², of a model with noise on its weights and of what it put out before."""
    with torch.inference_mode():
        *_, after = model.decoder.streams(x)
        pair = for_float64(after - before, before)
        change, size = (torch.linalg.vector_norm(y, dtype=torch.float64) for y in pair)
        return float((change / size).square())
