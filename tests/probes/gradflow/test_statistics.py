"""Quantiles against the published tables, intervals and slopes against numpy."""

import math

import numpy as np
import pytest

from tfblock_cli.probes.gradflow.statistics import (
    best_mean,
    geometric_mean,
    mean,
    ratios,
    slope,
    t_probability,
    t_quantile,
)

# two-sided 95 %, as every textbook prints it (Abramowitz and Stegun, table 26.10)
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
TABLE |= {15: 2.131, 20: 2.086, 25: 2.060, 29: 2.045, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980}


@pytest.mark.parametrize(("degrees", "quantile"), TABLE.items())
def test_quantiles_are_those_of_the_tables(degrees, quantile):
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5.1e-4)


def test_other_confidences():
    assert t_quantile(4, 0.99) == pytest.approx(4.604, abs=5e-4)
    assert t_quantile(9, 0.9) == pytest.approx(1.833, abs=5e-4)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 10])
def test_probabilities_are_the_integral_of_the_density(degrees):
    constant = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    for t in (0.3, 1.0, 2.5, 8.0):
        x = np.linspace(-t, t, 20001)
        area = np.trapezoid(constant * (1 + x**2 / degrees) ** (-(degrees + 1) / 2), x)
        assert t_probability(t, degrees) == pytest.approx(area, abs=1e-7)
        assert t_probability(t_quantile(degrees), degrees) == pytest.approx(0.95, abs=1e-12)


def test_an_interval_covers_the_mean_as_often_as_it_says():
    samples = np.random.default_rng(0).normal(3.0, 2.0, (4000, 5))
    covered = [
        low <= 3.0 <= high for _, low, high in map(mean, samples.tolist()) if low is not None and high is not None
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


def test_means_by_hand():
    width = 4.30265 / math.sqrt(3)
    assert mean([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - width, 2 + width), rel=1e-5)
    assert mean([5.0]) == (5.0, None, None)
    assert mean([1.0, math.inf])[1:] == (None, None)
    found = geometric_mean([1.0, 10.0, 100.0])
    assert found is not None
    assert found == pytest.approx((10.0, 10 ** (1 - 4.30265 / 3**0.5), 10 ** (1 + 4.30265 / 3**0.5)), rel=1e-4)
    assert geometric_mean([1.0, 0.0]) is None
    assert geometric_mean([1.0, math.nan]) is None


def test_slopes_have_an_arithmetic_mean_even_where_all_are_positive():
    assert best_mean([1.0, 4.0], is_slope=True).value == 2.5
    assert best_mean([1.0, 4.0], is_slope=False).value == pytest.approx(2.0)
    assert best_mean([-1.0, 4.0], is_slope=False).value == 1.5


def test_slope_is_numpys():
    points = {6: 3.0, 12: 5.0, 24: 4.0, 48: 9.0}
    expected = np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0]
    assert slope(points) == pytest.approx(expected, rel=1e-12)
    assert slope({L: 7 * L**-0.5 for L in (6, 12, 24)}) == pytest.approx(-0.5)


@pytest.mark.parametrize("points", [{6: 1.0}, {6: 1.0, 12: 0.0}, {6: 1.0, 12: math.nan}, {6: math.inf, 12: 1.0}])
def test_what_has_no_slope(points):
    assert math.isnan(slope(points))


def test_ratios_are_paired():
    assert ratios({0: 6.0, 1: 1.0}, {1: 4.0, 0: 2.0}) == {0: 3.0, 1: 0.25}
    assert math.isnan(ratios({0: 1.0}, {0: 0.0})[0])
