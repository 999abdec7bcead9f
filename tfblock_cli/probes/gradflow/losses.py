"""Losses whose gradient at the output has no direction that a norm takes away."""

from math import sqrt
from typing import assert_never

import torch
import torch.nn.functional as F
from torch import Tensor

from tfblock_cli.modules.initialization import generator
from tfblock_cli.spec.settings import LossName


def loss_of(output: Tensor, name: LossName, seed: int) -> Tensor:
    """The loss of that name.

    cross_entropy: of ids drawn from the seed, averaged over the B·T tokens.
    random_projection: the sum of output · r / sqrt(B·T·D), with r drawn from N(0, 1).
    mean_squared_error: the mean of (output - r)².
    """
    random = generator(seed, f"gradflow.{name}")
    match name:
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
            assert_never(name)
