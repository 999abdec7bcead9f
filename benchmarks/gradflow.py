"""What ``gradflow`` costs beside the bare passes, and what the literature predicts, at full depth.

    python benchmarks/gradflow.py [cost | predictions]

cost: CPU seconds of ``gradflow norm_placements`` over those of the same forwards and backwards alone, on built models.
predictions: slopes over L = 6, 12, 24, 48 at d 128, T 64, with their 95 % intervals over 4 seeds, on two sets of seeds.
"""

import sys
import time
from collections.abc import Callable

import torch

import tfblock_cli as tfblock
from tfblock_cli.probes import gradflow
from tfblock_cli.probes.gradflow.cell import Model, loss_of
from tfblock_cli.probes.gradflow.compare import variant_of
from tfblock_cli.probes.inputs import random_input
from tfblock_cli.spec.experiment import Experiment

PREDICTIONS = (
    ("slope.grad.down.last", "pre", -0.65, -0.35, "Xiong et al. 2020, theorem 1: -1/2"),
    ("slope.grad.down.last", "post", -0.15, 0.15, "Xiong et al. 2020, theorem 1: 0"),
    ("slope.noise.response", "post", 0.7, 1.2, "Liu et al. 2020: O(L)"),
    ("slope.noise.response", "pre", 0.0, 0.6, "Liu et al. 2020: O(log L)"),
    ("slope.grad.matrices", "deepnorm", -0.05, 0.05, "Wang et al. 2022: independent of L"),
    ("slope.rms.last", "sandwich", 0.4, 0.55, "rms² grows by 2 per block"),
    ("slope.rms.last", "lns", 0.0, 0.25, "Sun et al. 2025: slower than pre"),
)


def cpu(run: Callable[[], object]) -> float:
    """CPU seconds, the smallest of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def cost() -> None:
    """Print the factor."""
    asked = tfblock.load("norm_placements")
    settings = asked.gradflow
    (depth,) = settings.depths
    models = [Model(variant_of(asked, placement, depth)) for placement in settings.placements]
    for model in models:
        model.weights.draw(asked.seed)
    x = random_input(asked)

    def bare() -> None:
        for _ in range(settings.seeds):
            for model in models:
                loss_of(model.decoder(x), asked).backward()  # type: ignore[no-untyped-call]
                model.decoder.zero_grad()
                with torch.no_grad():
                    model.decoder(x)

    whole, passes = cpu(lambda: gradflow.run(asked)), cpu(bare)
    print(f"gradflow {whole:.2f} s, bare passes {passes:.2f} s, factor {whole / passes:.2f}")


def predictions() -> None:
    """Print every predicted slope beside what is measured."""
    model = {
        "d_model": 128,
        "norm": "layernorm",
        "position": "learned",
        "initialization": "unit",
        "bias": True,
        "attention": {"n_heads": 4},
        "ffn": {"kind": "mlp", "activation": "relu", "d_ff": 128},
    }
    compared = {"placements": ["pre", "post", "sandwich", "deepnorm", "lns"], "depths": [6, 12, 24, 48], "seeds": 4}
    for seed in (0, 100):
        asked = {"seed": seed, "input": {"batch_size": 4, "seq_len": 64}, "model": model, "gradflow": compared}
        found = gradflow.run(Experiment.model_validate(asked)).data.summary
        rows = {(row.metric, row.placement): row for row in found}
        for metric, placement, low, high, source in PREDICTIONS:
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
