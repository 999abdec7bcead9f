"""Means over the seeds, with the intervals in which the true mean may be expected."""

from collections.abc import Mapping, Sequence
from functools import cache
from math import atan, cos, exp, isfinite, log, nan, pi, sin, sqrt, tan
from typing import NamedTuple

Values = Mapping[int, float]
"""One number per seed."""

CONFIDENCE = 0.95


class Mean(NamedTuple):
    """A mean and the ends of its interval; the ends are None where there is none: one seed, or values without a log."""

    value: float
    low: float | None
    high: float | None


def t_probability(t: float, degrees: int) -> float:
    """P(|T| <= t) of Student's t with a whole number of degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4).

    With tan θ = t / sqrt(ν), for odd ν: 2/π (θ + sin θ (cos θ + 2/3 cos³ θ + ... )), up to cos^(ν-2); for even ν:
    sin θ (1 + 1/2 cos² θ + 1·3/(2·4) cos⁴ θ + ...), up to cos^(ν-2).
    """
    angle = atan(t / sqrt(degrees))
    odd = degrees % 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power + 1) / (power + 2)
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total


@cache
def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t with P(|T| <= t) = confidence, by bisection of the angle θ: tan θ = t / sqrt(ν)."""
    low, high = 0.0, pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        below = t_probability(sqrt(degrees) * tan(middle), degrees) < confidence
        low, high = (middle, high) if below else (low, middle)
    return sqrt(degrees) * tan((low + high) / 2)


def mean(values: Sequence[float]) -> Mean:
    """The arithmetic mean with its t-interval: mean ± t · s / sqrt(n)."""
    n = len(values)
    middle = sum(values) / n
    if n < 2 or not all(map(isfinite, values)):
        return Mean(middle, None, None)
    deviation = sqrt(sum((value - middle) ** 2 for value in values) / (n - 1))
    width = t_quantile(n - 1) * deviation / sqrt(n)
    return Mean(middle, middle - width, middle + width)


def geometric_mean(values: Sequence[float]) -> Mean | None:
    """The exponential of the logarithms' mean and of its interval; None unless all are positive and finite."""
    if not all(isfinite(value) and value > 0 for value in values):
        return None
    value, low, high = mean([log(value) for value in values])
    return Mean(exp(value), None if low is None else exp(low), None if high is None else exp(high))


def best_mean(values: Sequence[float], *, is_slope: bool) -> Mean:
    """The geometric mean of positive values, else the arithmetic one; always that one for slopes."""
    return (None if is_slope else geometric_mean(values)) or mean(values)


def slope(points: Mapping[int, float]) -> float:
    """The least-squares slope of log y against log x; nan where a y has no logarithm or all x are the same."""
    if len(points) < 2 or not all(isfinite(y) and y > 0 for y in points.values()):
        return nan
    logs = [(log(x), log(y)) for x, y in points.items()]
    x_mean, y_mean = (sum(axis) / len(logs) for axis in zip(*logs, strict=True))
    rise = sum((x - x_mean) * (y - y_mean) for x, y in logs)
    return float(rise / sum((x - x_mean) ** 2 for x, _ in logs))


def ratio(over: float, under: float) -> float:
    """Over / under; nan where there is nothing to divide by."""
    return over / under if under else nan


def ratios(over: Values, under: Values) -> dict[int, float]:
    """Seed by seed: the same weights and the same input stand above and below the line."""
    return {seed: ratio(value, under[seed]) for seed, value in over.items()}
