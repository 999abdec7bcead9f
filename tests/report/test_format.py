import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfblock_cli.report.terminal.format import claim, count, number, percent, plural, shape, size


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (1000, "1,000"),
        (-1000, "-1,000"),
        (10**6, "1,000,000"),
        (10**9, "1,000,000,000"),
    ],
)
def test_a_count_is_exact(n, text):
    assert count(n) == text


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1.00"),
        (0.5, "0.500"),
        (-0.5, "-0.500"),
        (12.34, "12.3"),
        (9.996, "10.0"),
        (999.4, "999"),
        (999.6, "1.00e3"),
        (1000, "1.00e3"),
        (1023.0, "1.02e3"),
        (10**6, "1.00e6"),
        (1e9, "1.00e9"),
        (0.001, "0.00100"),
        (0.00099951, "0.00100"),
        (0.000999, "9.99e-4"),
        (-2.2e-16, "-2.20e-16"),
        (5e-324, "4.94e-324"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_a_number_has_three_significant_digits(x, text):
    assert number(x) == text


@given(st.floats(-1e308, 1e308))
def test_a_number_reads_back_to_three_digits(x):
    assert math.isclose(float(number(x)), x, rel_tol=0.005, abs_tol=1e-323)


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1000 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (-1024, "-1.00 KiB"),
        (10**6, "977 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (1024**2, "1.00 MiB"),
        (10**9, "954 MiB"),
        (1024**3, "1.00 GiB"),
        (10 * 1024**4, "10.0 TiB"),
        (2000 * 1024**5, "2000 PiB"),
    ],
)
def test_bytes_in_binary_units(n, text):
    assert size(n) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_bytes_read_back_within_half_a_per_cent(n):
    value, unit = size(n).split()
    scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    assert math.isclose(float(value) * scale, n, rel_tol=0.0051)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"),
        (0, "0 %"),
        (1e-9, "<0.1 %"),
        (0.123, "12.3 %"),
        (0.99999, ">99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_only_nothing_is_0_and_only_everything_is_100_per_cent(share, text):
    assert percent(share) == text


def test_shapes_and_plurals():
    assert (shape((1, 4, 10, 10)), shape((4,)), shape(())) == ("(1, 4, 10, 10)", "(4)", "()")
    assert (plural(0, "check"), plural(1, "check"), plural(2000, "check")) == (
        "0 checks",
        "1 check",
        "2,000 checks",
    )


@pytest.mark.parametrize(
    ("value", "op", "limit", "texts"),
    [
        (3, "==", 0, ("3", "== 0")),
        (153.2, "<=", 10.0, ("153", "<= 10.0")),
        (None, ">", 0.0, ("no value", "> 0")),
        ("(1, 2)", "==", "(1, 2)", ("(1, 2)", "== (1, 2)")),
        (0.5, "in", (0.9, None), ("0.500", ">= 0.900")),
        (0.5, "in", (None, 0.4), ("0.500", "<= 0.400")),
        (0.5, "in", (0.1, 0.4), ("0.500", "0.100 to 0.400")),
        (0.5, "in", (None, None), ("0.500", "anything")),
    ],
)
def test_a_claim_says_what_was_found_and_demanded(value, op, limit, texts):
    assert claim(value, op, limit) == texts


def test_a_near_miss_is_told_with_as_many_digits_as_it_takes():
    assert claim(0.89999, ">=", 0.9) == ("0.899990", ">= 0.900000")
    assert claim(0.9 - 1e-12, "in", (0.9, 1.0)) == (repr(0.9 - 1e-12), "0.9 to 1.0")
    assert claim(0.9, ">=", 0.9) == ("0.900", ">= 0.900")
