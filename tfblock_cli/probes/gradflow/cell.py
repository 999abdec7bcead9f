"""One cell: one placement at one depth with one seed, one forward and one backward pass."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import assert_never

import torch
import torch.nn.functional as F
from torch import Tensor

from tfblock_cli.modules.decoder import build
from tfblock_cli.modules.initialization import Memo, generator
from tfblock_cli.modules.stage import record
from tfblock_cli.probes.inputs import random_input
from tfblock_cli.spec.experiment import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one backward pass leaves behind.

    Attributes:
        loss: Its value.
        source: The gradient norm of the token table, or of the input of a stack without one.
        blocks: The gradient norm over all parameters of each block.
        rms: The root mean square of the residual stream behind each block.
        cosine: The mean cosine between different tokens of a sequence, behind each block; nan for one token.
    """

    loss: float
    source: float
    blocks: tuple[float, ...]
    rms: tuple[float, ...]
    cosine: tuple[float, ...]


def measure(experiment: Experiment, memo: Memo | None = None) -> Seen:
    """Build the experiment's decoder, run it forward and backward once, and look at it from outside.

    Dropout is off (eval mode): its noise would stand where the placement's effect should.

    Args:
        experiment: With the placement, the depth and the seed of the cell.
        memo: Weights that were drawn for other cells of the same seed.
    """
    decoder = build(experiment, memo)
    x = random_input(experiment)
    has_vocabulary = experiment.model.vocab_size > 0
    x.requires_grad_(not has_vocabulary)
    streams: list[Tensor] = []
    blocks = [f"blocks.{index}" for index in range(experiment.model.n_layers)]
    with record(decoder, blocks, lambda _, stream_BTD: streams.append(stream_BTD.detach())):
        loss = loss_of(decoder(x), experiment)
    loss.backward()  # type: ignore[no-untyped-call]
    return Seen(
        loss=float(loss.detach()),
        source=gradient_norm([decoder.embed.weight if has_vocabulary else x]),
        blocks=tuple(gradient_norm(block.parameters()) for block in decoder.blocks),
        rms=tuple(float(stream_BTD.double().square().mean().sqrt()) for stream_BTD in streams),
        cosine=tuple(token_cosine(stream_BTD) for stream_BTD in streams),
    )


def loss_of(output: Tensor, experiment: Experiment) -> Tensor:
    """A loss whose gradient at the output has no direction that a norm takes away.

    cross_entropy: of ids drawn from the seed, averaged over the B·T tokens.
    random_projection: the sum of output · r / sqrt(B·T·D), with r drawn from N(0, 1).
    """
    loss = experiment.gradflow.loss
    random = generator(experiment.seed, f"gradflow.{loss}")
    match loss:
        case "cross_entropy":
            targets_BT = torch.randint(output.shape[-1], output.shape[:-1], generator=random).to(output.device)
            return F.cross_entropy(output.flatten(0, 1), targets_BT.flatten())
        case "random_projection":
            r_BTD = torch.randn(output.shape, generator=random, dtype=torch.float64) / sqrt(output.numel())
            return (output * r_BTD.to(output)).sum()
        case _:
            assert_never(loss)


def gradient_norm(parameters: Iterable[Tensor]) -> float:
    """The Euclidean norm of all their gradients together, in float64; a parameter that got none counts as 0."""
    norms = [
        torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
        for parameter in parameters
        if parameter.grad is not None
    ]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


def token_cosine(stream_BTD: Tensor) -> float:
    """The mean cosine over all pairs of different tokens of a sequence: 1 is a collapsed stream."""
    T = stream_BTD.shape[1]
    if T == 1:
        return float("nan")
    unit_BTD = F.normalize(stream_BTD.double(), dim=-1)
    # |sum of unit vectors|² = T + the sum over ordered pairs
    pairs_B = unit_BTD.sum(1).square().sum(-1) - unit_BTD.square().sum((1, 2))
    return float((pairs_B / (T * (T - 1))).mean())
