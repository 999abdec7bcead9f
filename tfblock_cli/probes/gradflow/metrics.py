"""Metrics: the numbers of a cell by which placements are compared, and their summary over the seeds."""

from collections.abc import Mapping, Sequence
from math import exp, isfinite, log, nan

from tfblock_cli.probes.gradflow.cell import Seen
from tfblock_cli.results.gradflow import Summary

Values = Mapping[int, float]
"""One number per seed."""


def metrics(seen: Seen, *, has_vocabulary: bool) -> dict[str, float]:
    """The metrics of one cell, as docs/gradflow.md explains them."""
    first, last = seen.blocks[0], seen.blocks[-1]
    return {
        "loss": seen.loss,
        "grad.embedding" if has_vocabulary else "grad.input": seen.source,
        "grad.block.first": first,
        "grad.block.last": last,
        "grad.block.last_first": ratio(last, first),
        "grad.block.max_min": ratio(max(seen.blocks), min(seen.blocks)),
        "rms.last": seen.rms[-1],
        "cosine.last": seen.cosine[-1],
    }


def ratio(over: float, under: float) -> float:
    """Over / under; nan where there is nothing to divide by."""
    return over / under if under else nan


def ratios(over: Values, under: Values) -> dict[int, float]:
    """Seed by seed: the same weights and the same input stand above and below the line."""
    return {seed: ratio(value, under[seed]) for seed, value in over.items()}


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp(mean(log v)); None unless every value is positive and finite."""
    if not all(isfinite(value) and value > 0 for value in values):
        return None
    return exp(sum(map(log, values)) / len(values))


def summarize(placement: str, depth: int, metric: str, values: Values, baseline: Values | None) -> Summary:
    """One metric of one placement at one depth over the seeds; ``baseline`` is None for the baseline itself."""
    paired = None if baseline is None else list(ratios(values, baseline).values())
    return Summary(
        placement=placement,
        depth=depth,
        metric=metric,
        geomean=geometric_mean(list(values.values())),
        low=min(values.values()),
        high=max(values.values()),
        ratio=None if paired is None else geometric_mean(paired),
        ratio_low=None if paired is None else min(paired),
        ratio_high=None if paired is None else max(paired),
    )
