"""Metrics: the numbers of a cell by which placements are compared, and their summary over the seeds."""

from collections.abc import Mapping
from math import hypot, nan

from tfblock_cli.probes.gradflow.cell import Seen
from tfblock_cli.probes.gradflow.statistics import Values, best_mean, geometric_mean, mean, ratio, ratios, slope
from tfblock_cli.results.gradflow import Summary
from tfblock_cli.results.metrics import SLOPE

MATRICES = {"q", "k", "v", "out", "up", "gate", "down"}


def metrics(seen: Seen, *, has_vocabulary: bool) -> dict[str, float]:
    """The metrics of one cell, as ``results.gradflow.METRICS`` explains them."""
    first, last = seen.blocks[0], seen.blocks[-1]
    depth, top = len(seen.blocks), seen.groups[-1]
    source = "grad.embedding" if has_vocabulary else "grad.input"
    return {
        "loss": seen.loss,
        source: seen.source,
        **({} if seen.head is None else {"grad.head": seen.head}),
        "grad.matrices": hypot(*(block[group] for block in seen.groups for group in MATRICES & block.keys())),
        "grad.block.first": first,
        "grad.block.last": last,
        "grad.block.last_first": ratio(last, first),
        "grad.block.max_min": ratio(max(seen.blocks), min(seen.blocks)),
        "grad.down.last": top.get("down", nan),
        "grad.hidden.first": seen.hidden[0],
        "grad.hidden.last_first": ratio(seen.hidden[-1], seen.hidden[0]),
        "grad.q_over_v.last": ratio(top.get("q", nan), top.get("v", nan)),
        "rms.last": seen.rms[-1],
        "rms.squared_growth": (seen.rms[-1] ** 2 - seen.rms[0] ** 2) / (depth - 1) if depth > 1 else nan,
        "cosine.last": seen.cosine[-1],
        "noise.response": seen.noise,
    }


def slopes(of_depths: Mapping[int, Values]) -> dict[int, float]:
    """Depth to value per seed, as the power of the depth that the value grows with, per seed."""
    seeds = next(iter(of_depths.values()))
    return {seed: slope({depth: values[seed] for depth, values in of_depths.items()}) for seed in seeds}


def compare(over: Values, under: Values, metric: str) -> dict[int, float]:
    """The ratio seed by seed; of slopes, which are logarithms already, the difference."""
    if metric.startswith(SLOPE):
        return {seed: value - under[seed] for seed, value in over.items()}
    return ratios(over, under)


def summarize(placement: str, depth: int, metric: str, values: Values, baseline: Values | None) -> Summary:
    """One metric of one placement at one depth over the seeds; ``baseline`` is None for the baseline itself."""
    all_values, is_slope = list(values.values()), metric.startswith(SLOPE)
    best = best_mean(all_values, is_slope=is_slope)
    geometric = None if is_slope else geometric_mean(all_values)
    paired = None if baseline is None or is_slope else list(ratios(values, baseline).values())
    over = None if paired is None else geometric_mean(paired)
    return Summary(
        placement=placement,
        depth=depth,
        metric=metric,
        geomean=None if geometric is None else geometric.value,
        mean=mean(all_values).value,
        low=min(all_values),
        high=max(all_values),
        ci_low=best.low,
        ci_high=best.high,
        ratio=None if over is None else over.value,
        ratio_low=None if paired is None else min(paired),
        ratio_high=None if paired is None else max(paired),
        ratio_ci_low=None if over is None else over.low,
        ratio_ci_high=None if over is None else over.high,
    )
