"""What must flow and does not."""

import torch
from torch import nn

from tfblock_cli.probes.causality.zoo.parts import Attention, Lambda, Net, Specimen, Specimens, says
from tfblock_cli.probes.causality.zoo.time_mixing import Conv

DEAD_PATHS: Specimens = (
    Specimen(
        name="attention switched off",
        make=lambda: Net(Lambda(lambda x: x)),
        wanted=(*says("no-flow", "gradient_map"), *says("clean", "suffix_cuts")),
    ),
    Specimen(
        name="reaches back three positions",
        make=lambda: Net(Conv(4, 3)),
        wanted=(*says("no-flow", "gradient_map"), *says("clean", "suffix_cuts")),
    ),
    Specimen(
        name="an input that nobody reads",
        make=lambda: Net(Attention(lambda h, q, k: (k <= q) & ((k != 3) | (q == 3)))),
        wanted=(*says("no-flow", "gradient_map"), *says("clean", "suffix_cuts")),
    ),
    Specimen(
        name="an output that nothing reaches",
        make=lambda: nn.Sequential(Net(Attention()), Lambda(lambda x: x * (torch.arange(x.shape[1]) != 5)[:, None])),
        wanted=says("no-flow", "suffix_cuts", "gradient_map"),
    ),
)
