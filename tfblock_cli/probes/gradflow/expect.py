"""[[gradflow.expect]]: assertions about a metric that decide the exit code."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from tfblock_cli.probes.gradflow.metrics import compare
from tfblock_cli.probes.gradflow.statistics import Values, best_mean
from tfblock_cli.results.gradflow import SLOPE
from tfblock_cli.results.result import Check
from tfblock_cli.spec.settings import Expect, GradflowSettings

Lookup = Callable[[str, int, str], Values]
"""(placement, depth, metric) to one number per seed; depth 0 for a slope over the depths."""


def judge(settings: GradflowSettings, values_of: Lookup, *, invalid: str = "") -> Iterator[Check]:
    """One check per expectation and depth.

    With mode "all" it holds only if every seed is inside: one lucky mean is no evidence. With mode "ci" the whole
    interval of the mean must be.

    Args:
        settings: With the expectations.
        values_of: What was measured.
        invalid: Why nothing can be judged; "" if it can.
    """
    for expect in settings.expect:
        if expect.metric.startswith(SLOPE):
            depths: tuple[int, ...] = (0,)
        else:
            depths = (expect.depth,) if expect.depth else settings.depths
        for depth in depths:
            yield _judge(expect, depth, values_of, invalid)


@dataclass(frozen=True, slots=True)
class _Found:
    """Whether an expectation holds, the number that decides, and how it came to that."""

    holds: bool
    value: float
    message: str


def _judge(expect: Expect, depth: int, values_of: Lookup, invalid: str) -> Check:
    values = values_of(expect.placement, depth, expect.metric)
    if expect.over:
        values = compare(values, values_of(expect.over, depth, expect.metric), expect.metric)
    low, high = (-inf if expect.min is None else expect.min), (inf if expect.max is None else expect.max)
    found = _interval(expect, values, low, high) if expect.mode == "ci" else _every_seed(values, low, high)
    over = "-" if expect.metric.startswith(SLOPE) else "/"
    subject = f"{expect.placement}{over}{expect.over}" if expect.over else expect.placement
    return Check(
        name=expect.metric,
        subject=f"{subject}, {f'{depth} layers' if depth else 'all depths'}",
        passed=None if invalid else found.holds,
        value=found.value,
        op="in",
        limit=(expect.min, expect.max),
        message=f"not judged: {invalid}" if invalid else found.message,
    )


def _every_seed(values: Values, low: float, high: float) -> _Found:
    outside = {seed: value for seed, value in values.items() if not low <= value <= high}
    # the value shown is the one that decides: the worst where there is one outside, else the one nearest to a limit
    worst = max(outside.values() or values.values(), key=lambda value: _excess(value, low, high))
    return _Found(
        not outside,
        worst,
        f"{len(values) - len(outside)} of {len(values)} seeds inside"
        + (f"; outside: seeds {', '.join(map(str, outside))}" if outside else ""),
    )


def _interval(expect: Expect, values: Values, low: float, high: float) -> _Found:
    value, start, end = best_mean(list(values.values()), is_slope=expect.metric.startswith(SLOPE))
    if start is None or end is None:
        return _Found(False, value, f"the mean of {len(values)} seeds has no interval")
    worst = max((start, end), key=lambda edge: _excess(edge, low, high))
    found = f"95 % interval {start:.3g} to {end:.3g} around {value:.3g}, {len(values)} seeds"
    return _Found(low <= start and end <= high, worst, found)


def _excess(value: float, low: float, high: float) -> float:
    """How far outside; negative inside."""
    return max(low - value, value - high)
