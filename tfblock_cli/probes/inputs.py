"""Fresh random inputs: ids below the vocabulary, or vectors from N(0, 1) for a stack without one."""

import torch
from torch import Tensor

from tfblock_cli.modules.initialization import generator
from tfblock_cli.spec.experiment import Experiment


def random_input(experiment: Experiment, name: str = "input", seed: int | None = None) -> Tensor:
    """Ids (B, T) or vectors (B, T, D) on the experiment's device, drawn from its seed under a name.

    Vectors are drawn in float64 and cast, so that every dtype sees the same input.
    """
    model, shape = experiment.model, (experiment.input.batch_size, experiment.input.seq_len)
    random = generator(experiment.seed if seed is None else seed, name)
    if model.vocab_size:
        return torch.randint(model.vocab_size, shape, generator=random).to(experiment.device)
    vectors = torch.randn((*shape, model.d_model), generator=random, dtype=torch.float64)
    return vectors.to(experiment.device, getattr(torch, experiment.dtype))
