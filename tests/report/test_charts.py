import math
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfblock_cli.report.terminal.charts import HeatMap, LogPlot, heat_map, log_plot
from tfblock_cli.report.terminal.console import to_plain

POSITIVE = st.floats(min_value=1e-300, max_value=1e300)


def lines_of(chart: LogPlot | HeatMap, width: int = 200) -> list[str]:
    return [line.rstrip() for line in to_plain(chart, width).splitlines()]


def plot(curves: dict[str, list[float]], *, width: int = 30, height: int = 5) -> list[str]:
    return lines_of(log_plot(curves, width=width, height=height, title="norm", x_label="block"))


def rows_of(picture: list[str], letter: str, height: int) -> dict[int, int]:
    """The rows in which a letter stands, by column; the title is line 0."""
    found: dict[int, int] = {}
    for row, line in enumerate(picture[1 : 1 + height]):
        _, _, cells = line.replace("┤", "│").partition("│")
        found |= {column: row for column, character in enumerate(cells) if character == letter}
    return found


def test_a_rising_and_a_flat_curve():
    assert plot({"pre": [1.0, 10.0, 100.0], "post": [1.0, 1.0, 1.0]}) == [
        "norm",
        "1e2 ┤                     ···A",
        "    │                ·····",
        "1e1 ┤         ···A···",
        "    │    ·····",
        "1e0 ┤*···········B···········B",
        "    └─────────────────────────",
        "     0         block         2",
        "A pre  B post  * several",
        "range 1.00 to 100",
    ]


def test_what_has_no_logarithm_is_a_gap_and_is_said():
    picture = plot({"pre": [1.0, 0.0, 100.0, math.nan, 1.0]})
    assert picture[1:6] == [
        "1e2 ┤            A",
        "    │",
        "1e1 ┤",
        "    │",
        "1e0 ┤A                       A",
    ]
    assert " ".join(picture[-3:]).endswith("not drawn: 2 of 5 values (zero, negative or not finite)")


def test_a_curve_without_a_single_logarithm_still_has_its_legend():
    picture = plot({"pre": [0.0, -1.0]}, width=80)
    assert picture == ["norm", "A pre", "not drawn: 2 of 2 values (zero, negative or not finite)"]


@pytest.mark.parametrize("curve", [[0.37], [0.37] * 6])
def test_one_point_and_equal_points_stand_in_the_middle(curve):
    picture = plot({"pre": curve})
    assert set(rows_of(picture, "A", 5).values()) == {2}


def test_what_hardly_differs_looks_flat():
    picture = plot({"pre": [2.0, 2.1]})
    assert picture[1].startswith(" 6.48 ┤")  # one decade around the geometric middle of 2.0 and 2.1
    assert picture[5].startswith("0.648 ┤")
    assert set(rows_of(picture, "A", 5).values()) == {2}
    assert "range 2.00 to 2.10" in picture


def test_many_decades_keep_few_labels():
    labels = [line for line in plot({"pre": [1e-300, 1e300]}, height=10)[1:11] if "┤" in line]
    assert 2 <= len(labels) <= 6


@given(
    curves=st.lists(st.lists(POSITIVE, min_size=1, max_size=40), min_size=1, max_size=6),
    width=st.integers(min_value=20, max_value=120),
    height=st.integers(min_value=1, max_value=15),
)
def test_a_plot_is_never_wider_than_asked(curves, width, height):
    picture = plot({f"c{i}": curve for i, curve in enumerate(curves)}, width=width, height=height)
    assert max(map(len, picture)) <= width


@given(values=st.lists(POSITIVE, min_size=1, max_size=10), height=st.integers(min_value=2, max_value=15))
def test_a_larger_value_is_never_drawn_lower(values, height):
    rows = rows_of(plot({"pre": values}, width=60, height=height), "A", height)
    assert len(rows) == len(values)
    ordered = [rows[column] for column in sorted(rows)]
    for value, row in zip(values, ordered, strict=True):
        assert all(row <= other_row for other, other_row in zip(values, ordered, strict=True) if other < value)


def test_a_small_heat_map():
    assert lines_of(heat_map([[1.0, 0.0], [0.5, 1e-9]], max_width=20), width=120) == [
        "┌────┐",
        "│@@  │",
        "│++..│",
        "└────┘",
        "' ' is 0, then",
        ".:-=+*#%@ up to 1.00",
    ]


def test_a_heat_map_on_a_log_scale_shows_what_is_small_and_leaves_0_blank():
    """Each step is the same factor: of 1e-9 .. 1, 1e-3 is two thirds of the way."""
    lines = lines_of(heat_map([[1.0, 0.0], [1e-3, 1e-9]], max_width=20, log=True), width=120)
    assert lines[1:3] == ["│@@  │", "│**..│"]
    assert "' ' is 0, then .:-=+*#%@ from 1.00e-9 to 1.00" in " ".join(lines)
    assert lines_of(heat_map([[1.0, 0.0], [0.0, 1e-300]], max_width=20, log=True))[2] == "│  ..│"
    assert lines_of(heat_map([[0.0, 0.0]], max_width=20, log=True))[1] == "│    │"
    assert lines_of(heat_map([[math.nan, 1.0]], max_width=20, log=True))[1] == "│??@@│"


def test_a_heat_map_marks_what_is_not_finite():
    assert lines_of(heat_map([[math.nan, 1.0]], max_width=80))[1] == "│??@@│"


@pytest.mark.parametrize(("value", "mark"), [(1.0, "@@"), (0.0, "  ")])
def test_a_heat_map_of_equal_values(value, mark):
    assert lines_of(heat_map([[value]], max_width=80))[1] == f"│{mark}│"


def test_a_wide_heat_map_shows_the_largest_value_of_each_block():
    matrix = [[0.0] * 100 for _ in range(100)]
    matrix[99][0] = 1.0  # a single entry must not get lost
    picture = lines_of(heat_map(matrix, max_width=52))
    assert len(picture[0]) == 52
    assert len(picture) == 25 + 4  # blocks of 4 x 2, two edges, the legend in two lines
    assert picture[25] == f"│@{' ' * 49}│"
    assert "each character is the largest of 4 x 2 values" in " ".join(lines_of(heat_map(matrix, max_width=52)))


@given(
    st.integers(min_value=1, max_value=30).flatmap(
        lambda n: st.lists(st.lists(st.floats(-1e6, 1e6), min_size=n, max_size=n), min_size=1, max_size=8)
    ),
    st.integers(min_value=4, max_value=60),
)
def test_a_heat_map_is_never_wider_than_asked_and_never_lightens_with_the_value(matrix, width):
    picture = lines_of(heat_map(matrix, max_width=width))
    assert max(map(len, picture)) <= width
    wide = lines_of(heat_map(matrix, max_width=200))
    shades = [
        [" .:-=+*#%@".index(line[1 + 2 * i]) for i in range(len(matrix[0]))] for line in wide[1 : 1 + len(matrix)]
    ]
    pairs = sorted(zip(chain(*matrix), chain(*shades), strict=True))
    assert [shade for _, shade in pairs] == sorted(shade for _, shade in pairs)
