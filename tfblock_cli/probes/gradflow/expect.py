"""[[gradflow.expect]]: assertions about a metric that decide the exit code."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import inf, isnan, nan
from typing import Protocol

from tfblock_cli.probes.gradflow.metrics import compare
from tfblock_cli.probes.gradflow.statistics import Values, best_mean
from tfblock_cli.probes.gradflow.training.stage import Trained
from tfblock_cli.results.metrics import SLOPE, TRAINED, metric
from tfblock_cli.results.result import Check
from tfblock_cli.results.training import Condition
from tfblock_cli.spec.settings import Expect, GradflowSettings


class Measured(Protocol):
    """What was measured at initialization, by placement and depth; depth 0 is for slopes, over all of them."""

    def values(self, placement: str, depth: int, metric: str) -> Values:
        """One metric, seed by seed."""

    def is_finite(self, placement: str, depth: int) -> bool:
        """Whether the loss, every gradient and every stream are, with every seed."""


def judge(
    settings: GradflowSettings, measured: Measured, trained: Trained | None = None, *, invalid: str = ""
) -> Iterator[Check]:
    """One check per expectation and depth; of training, per depth, learning rate and warmup.

    With mode "all" it holds only if every seed is inside: one lucky mean is no evidence. With mode "ci" the whole
    interval of the mean must be. A metric that is nan with every seed was not measured, and decides nothing, where all
    that it is made of is finite: it is not defined there. Any other nan is outside: of some seeds alone, or of what has
    blown up.

    Args:
        settings: With the expectations.
        measured: At initialization.
        trained: What training came to; None where nothing was trained.
        invalid: Why nothing can be judged; "" if it can.
    """
    for expect in settings.expect:
        if expect.metric in TRAINED:
            yield from _judge_training(expect, settings, trained, invalid)
            continue
        if expect.metric.startswith(SLOPE):
            depths: tuple[int, ...] = (0,)
        else:
            depths = (expect.depth,) if expect.depth else settings.depths
        for depth in depths:
            values = measured.values(expect.placement, depth, expect.metric)
            under = measured.values(expect.over, depth, expect.metric) if expect.over else None
            is_finite = all(measured.is_finite(kind, depth) for kind in _kinds(expect))
            where = f"{depth} layers" if depth else "all depths"
            yield _check(expect, where, _number(expect, values, under, is_finite=is_finite), invalid)


def _judge_training(
    expect: Expect, settings: GradflowSettings, trained: Trained | None, invalid: str
) -> Iterator[Check]:
    depths = (expect.depth,) if expect.depth else settings.depths
    rates = settings.train.lr if expect.lr == "all" else (expect.lr,)
    warmups = settings.train.warmup if expect.warmup == "all" else (expect.warmup,)
    for condition in (Condition(*each) for each in product(depths, rates, warmups)):
        if trained is None:
            assert invalid, "a spec without [gradflow.train] has no such expectation"
            yield _check(expect, condition.words, _Found(False, None, ""), f"{invalid}; nothing was trained")
            continue
        errors = [trained.error(kind, condition) for kind in _kinds(expect)]
        unknown = invalid or next(filter(None, errors), "")
        if expect.equals:
            found = _every_verdict(expect, trained.verdicts(expect.placement, condition))
        else:
            values = trained.values(expect.placement, condition, expect.metric)
            under = trained.values(expect.over, condition, expect.metric) if expect.over else None
            is_finite = all(trained.is_finite(kind, condition) for kind in _kinds(expect))
            found = _number(expect, values, under, is_finite=is_finite)
        yield _check(expect, condition.words, found, unknown)


def _kinds(expect: Expect) -> list[str]:
    """The placements that it speaks of."""
    return [kind for kind in (expect.placement, expect.over) if kind]


@dataclass(frozen=True, slots=True)
class _Found:
    """Whether an expectation holds (None: that was not measured), what decides, and how it came to that."""

    holds: bool | None
    value: float | str | None
    message: str


def _check(expect: Expect, where: str, found: _Found, unknown: str) -> Check:
    sign = "-" if expect.metric.startswith(SLOPE) else "/"
    subject = f"{expect.placement}{sign}{expect.over}" if expect.over else expect.placement
    return Check(
        name=expect.metric,
        subject=f"{subject}, {where}",
        passed=None if unknown else found.holds,
        value=found.value,
        op="in",
        limit=", ".join(expect.equals) if expect.equals else (expect.min, expect.max),
        message=f"not judged: {unknown}" if unknown else found.message,
    )


def _number(expect: Expect, values: Values, under: Values | None, *, is_finite: bool) -> _Found:
    own = [*values.values(), *(under or {}).values()]
    if under is not None:
        values = compare(values, under, expect.metric)
    if is_finite and all(map(isnan, values.values())):
        why = metric(expect.metric).undefined if any(map(isnan, own)) else f"that of {expect.over} is 0"
        return _Found(None, nan, f"not measured: nan with every seed, since {why}")
    low, high = (-inf if expect.min is None else expect.min), (inf if expect.max is None else expect.max)
    return _interval(expect, values, low, high) if expect.mode == "ci" else _every_seed(values, low, high)


def _every_verdict(expect: Expect, verdicts: Mapping[int, str]) -> _Found:
    wrong = {seed: verdict for seed, verdict in verdicts.items() if verdict not in expect.equals}
    shown = next(iter((wrong or verdicts).values()))
    told = "".join(f"; seed {seed}: {verdict}" for seed, verdict in wrong.items())
    return _Found(not wrong, shown, f"{len(verdicts) - len(wrong)} of {len(verdicts)} seeds as expected{told}")


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
