"""[[gradflow.expect]]: assertions about a metric that decide the exit code."""

from collections.abc import Callable, Iterator
from math import inf

from tfblock_cli.probes.gradflow.metrics import Values, ratios
from tfblock_cli.results.result import Check
from tfblock_cli.spec.settings import Expect, GradflowSettings

Lookup = Callable[[str, int, str], Values]
"""(placement, depth, metric) to one number per seed."""


def judge(settings: GradflowSettings, values_of: Lookup) -> Iterator[Check]:
    """One check per expectation and depth. It holds only if every seed is inside: one lucky mean is no evidence."""
    for expect in settings.expect:
        for depth in [expect.depth] if expect.depth else settings.depths:
            yield _judge(expect, depth, values_of)


def _judge(expect: Expect, depth: int, values_of: Lookup) -> Check:
    values = values_of(expect.placement, depth, expect.metric)
    if expect.over:
        values = ratios(values, values_of(expect.over, depth, expect.metric))
    low, high = (-inf if expect.min is None else expect.min), (inf if expect.max is None else expect.max)
    outside = {seed: value for seed, value in values.items() if not low <= value <= high}
    # the value shown is the one that decides: the worst where there is one outside, else the one nearest to a limit
    worst = max(outside.values() or values.values(), key=lambda value: max(low - value, value - high))
    subject = f"{expect.placement}/{expect.over}" if expect.over else expect.placement
    return Check(
        name=expect.metric,
        subject=f"{subject}, {depth} layers",
        passed=not outside,
        value=worst,
        op="in",
        limit=(expect.min, expect.max),
        message=f"{len(values) - len(outside)} of {len(values)} seeds inside"
        + (f"; outside: seeds {', '.join(map(str, outside))}" if outside else ""),
    )
