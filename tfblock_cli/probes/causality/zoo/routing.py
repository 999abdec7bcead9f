"""Decisions over the whole sequence: top-k, capacity, quantisation. A gradient does not see them."""

import torch
from torch import Tensor

from tfblock_cli.probes.causality.zoo.parts import Specimen, Specimens, after_attention, leak, says

BLIND = says("clean", "gradient_map")


def expert_choice(x: Tensor) -> Tensor:
    """The T/3 positions with the largest gate, of the whole sequence, are let through."""
    chosen = x[..., 0].topk(x.shape[1] // 3, dim=1).indices
    return x * torch.zeros_like(x[..., 0]).scatter(1, chosen, 1.0)[..., None]


def depth_choice(x: Tensor) -> Tensor:
    """The lower half of the sequence skips the layer, as mixture-of-depths has it."""
    return x * (x[..., 0] > x[..., 0].median(dim=1, keepdim=True).values)[..., None]


def quantised(x: Tensor) -> Tensor:
    """Rounded to a grid that the largest value of the sequence decides."""
    step = x.detach().abs().amax((1, 2), keepdim=True) / 7
    return x + ((x / step).round() * step - x).detach()


def best_block(x: Tensor, size: int = 4) -> Tensor:
    """Each position is given the first token of the block with the largest summary, unfinished and later ones too."""
    blocks = torch.split(x, size, dim=1)
    scores = torch.stack([block.sum((1, 2)) for block in blocks], dim=1)
    first = torch.stack([block[:, 0] for block in blocks], dim=1)
    return x + first[torch.arange(len(x)), scores.argmax(1)][:, None].detach()


def fifo_capacity(x: Tensor) -> Tensor:
    """An expert takes the first eight tokens that ask for it, counted through the whole batch."""
    asks = (40 * x[..., 0]).sin() > 0
    place = asks.flatten().cumsum(0).view_as(asks)
    return x * (asks & (place <= 8))[..., None]


ROUTING: Specimens = (
    Specimen(
        name="mean over time, detached",
        make=lambda: after_attention(lambda x: x.mean(1, keepdim=True).detach().expand_as(x)),
        wanted=(*leak("suffix_cuts", "truncation"), *BLIND),
    ),
    Specimen(
        name="expert choice over time",
        make=lambda: after_attention(expert_choice),
        wanted=(*leak("suffix_cuts"), *BLIND),
    ),
    Specimen(
        name="depth choice over time", make=lambda: after_attention(depth_choice), wanted=(*leak("suffix_cuts"), *BLIND)
    ),
    Specimen(
        name="quantised by the largest value",
        make=lambda: after_attention(quantised),
        wanted=(*leak("suffix_cuts"), *BLIND),
    ),
    Specimen(
        name="index of blocks without a mask", make=lambda: after_attention(best_block), wanted=leak("suffix_cuts")
    ),
    Specimen(
        name="capacity counted through the batch",
        make=lambda: after_attention(fifo_capacity),
        wanted=(*leak("batch_independence"), *says("clean", "suffix_cuts eval")),
    ),
)
