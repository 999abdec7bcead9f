"""What ``gradflow`` costs beside the bare passes, and what the literature predicts, at full depth.

    python benchmarks/gradflow.py [cost | predictions]

cost: CPU seconds of ``gradflow norm_placements`` over those of the same forwards and backwards alone, on built models,
and how they grow with the depth; medians of three.
predictions: slopes over L = 6, 12, 24, 48 at d 128, T 64, with their 95 % intervals over 12 seeds, on two sets of
seeds.
"""

import sys
import time
from itertools import product
from statistics import median
from unittest.mock import patch

import torch

import tfblock_cli as tfblock
from tfblock_cli.probes import gradflow
from tfblock_cli.probes.gradflow import cell
from tfblock_cli.probes.gradflow.cell import Model, Seen, look, response
from tfblock_cli.probes.gradflow.losses import loss_of
from tfblock_cli.spec.experiment import Experiment

D = 128
PREDICTIONS = {
    D: (
        ("slope.grad.down.last", "pre", -0.65, -0.35, "Xiong et al. 2020, theorem 1: -1/2"),
        ("slope.grad.down.last", "post", -0.15, 0.15, "Xiong et al. 2020, theorem 1: 0"),
        ("slope.grad.matrices", "deepnorm", -0.05, 0.05, "Wang et al. 2022: independent of L"),
        ("slope.rms.last", "sandwich", 0.4, 0.55, "rms² grows by 2 per block"),
        ("slope.rms.last", "lns", 0.0, 0.25, "Sun et al. 2025: slower than pre"),
    ),
    4 * D: (
        ("slope.noise.response", "post", 0.7, 1.2, "Liu et al. 2020: O(L)"),
        ("slope.noise.response", "pre", 0.0, 0.6, "Liu et al. 2020: O(log L)"),
    ),
}
"""d_ff of the claim's own setting to metric, placement, lowest and highest slope, and source."""
SEEDS = 12
"""The slope of the response to noise varies by 0.3 from seed to seed in post: its mean by 0.09."""


def factor(depth: int) -> tuple[float, float]:
    """CPU seconds of ``gradflow norm_placements`` at a depth, and of its forwards and backwards alone.

    Models are built and weights are drawn in the first figure only. A bare pass runs right behind the measured one on
    the same model, so that both figures are taken on an equally busy machine.
    """
    asked = tfblock.load("norm_placements", set=[f"gradflow.depths=[{depth}]"])
    bare = 0.0

    def look_both(model: Model, x: torch.Tensor, seed: int) -> tuple[Seen, torch.Tensor]:
        nonlocal bare
        found = look(model, x, seed)
        start = time.process_time()
        loss_of(model.decoder(x), asked.gradflow.loss, seed).backward()  # type: ignore[no-untyped-call]
        for parameter in model.weights.parameters.values():
            parameter.grad = None
        bare += time.process_time() - start
        return found

    def response_both(model: Model, x: torch.Tensor, before: torch.Tensor) -> float:
        nonlocal bare
        found = response(model, x, before)
        start = time.process_time()
        with torch.no_grad():
            model.decoder(x)
        bare += time.process_time() - start
        return found

    with patch.object(cell, "look", look_both), patch.object(cell, "response", response_both):
        start = time.process_time()
        gradflow.run(asked)
        return time.process_time() - start - bare, bare


def cost() -> None:
    """Print the factor, and how both figures grow from 12 layers to 48."""
    factor(12)
    runs = [(*factor(12), *factor(48)) for _ in range(3)]
    demand("gradflow over bare passes, 12 layers", [whole / bare for whole, bare, *_ in runs], 0.0, 1.3)
    demand("gradflow over bare passes, 48 layers", [whole / bare for *_, whole, bare in runs], 0.0, 1.3)
    demand("gradflow, 48 layers over 12", [deep / whole for whole, _, deep, _ in runs], 3.2, 4.8)
    demand("bare passes, 48 layers over 12", [deep / bare for _, bare, _, deep in runs], 3.2, 4.8)


def demand(name: str, values: list[float], low: float, high: float) -> None:
    """Print the median, whether it is inside, and what it is the median of."""
    middle = median(values)
    mark = "OK  " if low <= middle <= high else "MISS"
    print(f"{mark} {name}: {middle:.2f}, wanted {low:g} to {high:g} ({min(values):.2f} to {max(values):.2f})")


def predictions() -> None:
    """Print every predicted slope beside what is measured."""
    for seed, (d_ff, predicted) in product((0, 100), PREDICTIONS.items()):
        model = {
            "d_model": D,
            "norm": "layernorm",
            "position": "learned",
            "initialization": "unit",
            "bias": True,
            "attention": {"n_heads": 4},
            "ffn": {"kind": "mlp", "activation": "relu", "d_ff": d_ff},
        }
        placements = dict.fromkeys(placement for _, placement, *_ in predicted)
        compared = {"placements": [*placements], "baseline": "post", "depths": [6, 12, 24, 48], "seeds": SEEDS}
        asked = {"seed": seed, "input": {"batch_size": 4, "seq_len": 64}, "model": model, "gradflow": compared}
        found = gradflow.run(Experiment.model_validate(asked)).data.summary
        rows = {(row.metric, row.placement): row for row in found}
        for metric, placement, low, high, source in predicted:
            row = rows[metric, placement]
            mark = "ok  " if low <= row.mean <= high else "MISS"
            interval = f"[{row.ci_low:+.3f}..{row.ci_high:+.3f}]"
            print(f"{mark} seeds {seed}..: {metric} of {placement} {row.mean:+.3f} {interval}")
            print(f"     predicted {low} to {high}: {source}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or ["cost", "predictions"]
    for name, run in (("cost", cost), ("predictions", predictions)):
        if name in chosen:
            run()
