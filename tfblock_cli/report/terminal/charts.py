"""Pictures out of characters: curves on a logarithmic scale, and a matrix as a density map.

Both read without colour, and both have an ASCII form for streams that know no more.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal.format import number
from tfblock_cli.report.terminal.parts import ACCENT, MUTED, FirstFit, apart

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
_ALPHABET = ascii_uppercase + ascii_lowercase
_SEVERAL = "*"
_RAMP = " .:-=+*#%@"
_UNKNOWN = "?"


def letters(names: Iterable[str]) -> dict[str, str]:
    """A letter for every name, in order: A, B, C, ..."""
    return {name: _ALPHABET[i % len(_ALPHABET)] for i, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class LogPlot:
    """Curves over 0, 1, 2, ... with the logarithm of their values upwards."""

    curves: Mapping[str, Sequence[float]]
    width: int
    height: int
    title: str
    x_label: str
    x_last: int | None = None
    decades: float = 1.0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        width = min(self.width, options.max_width)
        values = [value for curve in self.curves.values() for value in curve]
        drawn = [value for value in values if _has_log(value)]
        below = []
        yield from Text(self.title, "bold").wrap(console, width)
        if drawn:
            yield from self._picture(_Scale.of(drawn, self.height, self.decades), width, options.ascii_only)
            below.append(f"range {number(min(drawn))} to {number(max(drawn))}")
        if len(drawn) < len(values):
            gaps = len(values) - len(drawn)
            below.append(f"not drawn: {gaps} of {len(values)} values (zero, negative or not finite)")
        yield from self._legend().wrap(console, width)
        for line in below:
            yield from Text(line, MUTED).wrap(console, width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(self.width, options.max_width)
        return Measurement(width, width)

    def _picture(self, scale: "_Scale", width: int, ascii_only: bool) -> Iterable[Text]:
        dot, side, tick, corner, floor = ".||+-" if ascii_only else "·│┤└─"
        labels = scale.labels()
        margin = max(map(len, labels.values()))
        columns = max(width - margin - 2, 1)
        canvas = self._canvas(scale, columns, dot)
        for row in range(self.height):
            label = labels.get(row, "")
            line = Text(f"{label:>{margin}} ", MUTED, no_wrap=True).append(tick if label else side, MUTED)
            for column in range(columns):
                line.append(*canvas.get((row, column), (" ", "")))
            yield line
        yield Text(f"{corner:>{margin + 2}}{floor * columns}", MUTED, no_wrap=True)
        yield Text(f"{'':{margin + 2}}{self._x_axis(columns)}", MUTED, no_wrap=True)

    def _canvas(self, scale: "_Scale", columns: int, dot: str) -> dict[tuple[int, int], tuple[str, str]]:
        """The characters by row and column: letters at the values, dots on the way from one to the next."""
        dots: dict[tuple[int, int], tuple[str, str]] = {}
        marks: dict[tuple[int, int], tuple[str, str]] = {}
        longest = self._longest()
        for (name, letter), colour in zip(letters(self.curves).items(), self._colours(), strict=True):
            points = [
                (_column(i, longest, columns), math.log10(value)) if _has_log(value) else None
                for i, value in enumerate(self.curves[name])
            ]
            for here, there in pairwise(points):
                if here is None or there is None:
                    continue
                for column in range(here[0] + 1, there[0]):
                    part = (column - here[0]) / (there[0] - here[0])
                    log = here[1] + part * (there[1] - here[1])
                    dots.setdefault((scale.row(log), column), (dot, colour))
            for column, log in filter(None, points):
                place = scale.row(log), column
                taken = place in marks and marks[place][0] != letter
                marks[place] = (_SEVERAL, "") if taken else (letter, f"bold {colour}")
        return dots | marks

    def _legend(self) -> Text:
        legend = Text()
        for (name, letter), colour in zip(letters(self.curves).items(), self._colours(), strict=True):
            legend.append(letter, f"bold {colour}").append(f" {name}  ")
        return legend.append(f"{_SEVERAL} several", MUTED) if len(self.curves) > 1 else legend

    def _colours(self) -> list[str]:
        return [_COLOURS[i % len(_COLOURS)] for i in range(len(self.curves))]

    def _longest(self) -> int:
        return max(map(len, self.curves.values()))

    def _x_axis(self, columns: int) -> str:
        last = str(self._longest() - 1 if self.x_last is None else self.x_last)
        if len(last) + 2 > columns or last == "0":
            return "0"
        axis = f"0{last:>{columns - 1}}"
        start = (columns - len(self.x_label)) // 2
        if start < 2 or start + len(self.x_label) > columns - len(last) - 1:
            return axis
        return axis[:start] + self.x_label + axis[start + len(self.x_label) :]


@dataclass(frozen=True, slots=True)
class _Scale:
    """From a logarithm to its row: ``high`` is row 0, ``low`` the last one (both logarithms to base 10)."""

    low: float
    high: float
    height: int

    @classmethod
    def of(cls, values: Sequence[float], height: int, decades: float) -> "_Scale":
        """At least so many decades, so that what hardly differs looks flat."""
        low, high = math.log10(min(values)), math.log10(max(values))
        spare = max(decades - (high - low), 0) / 2
        return cls(low - spare, high + spare, height)

    def row(self, log: float) -> int:
        part = (self.high - log) / (self.high - self.low)
        return min(max(round(part * (self.height - 1)), 0), self.height - 1)

    def labels(self) -> dict[int, str]:
        """Powers of ten at the rows next to them, thinned out; the ends themselves where those are few."""
        powers = range(math.ceil(self.low), math.floor(self.high) + 1)
        found = {self.row(end): number(10**end) for end in (self.high, self.low)} if len(powers) < 2 else {}
        step = max(math.ceil(2 * len(powers) / (self.height + 1)), 1)
        for power in powers[::step]:
            found.setdefault(self.row(power), f"1e{power}")
        return found


def log_plot(
    curves: Mapping[str, Sequence[float]],
    *,
    width: int,
    height: int,
    title: str,
    x_label: str,
    x_last: int | None = None,
    decades: float = 1.0,
) -> LogPlot:
    """Draw curves against 0, 1, 2, ... on a logarithmic scale, at most ``width`` columns wide.

    A letter marks each value, a star a place where several curves meet. What has no logarithm (zero, negative
    or non-finite values) is a gap, and a line below says how many there are. ``x_last``: what the last value stands
    at, where that is not its number. ``decades``: the least that is drawn, above 0.
    """
    return LogPlot(curves, width, height, title, x_label, x_last, decades)


_WIDTHS = (58, 78)  # of a plot: two beside each other on 120 columns, or one on 80


def in_pairs(make: Callable[[int], Iterable[LogPlot]]) -> FirstFit:
    """Plots two by two where there is room, else below each other; ``make`` draws them at a width."""
    narrow, wide = ([*make(width)] for width in _WIDTHS)
    pairs: list[RenderableType] = []
    for i in range(0, len(narrow), 2):
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(*narrow[i : i + 2])
        pairs.append(grid)
    return FirstFit((Group(*apart(pairs)), Group(*apart(wide))))


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A matrix as characters of growing density, from its smallest value, or 0, upwards."""

    matrix: Sequence[Sequence[float]]
    max_width: int
    log: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        width = min(self.max_width, options.max_width)
        rows, columns = len(self.matrix), len(self.matrix[0])
        room = max(width - 2, 1)  # the frame
        # A character is twice as high as it is wide: a cell is two characters, or one that covers two rows.
        wide = 2 * columns <= room
        across = 1 if wide else math.ceil(columns / room)
        down = 1 if wide else 2 * across
        shade, legend = _log_shades(self.matrix) if self.log else _shades(self.matrix)
        side, corners, floor = ("|", "++++", "-") if options.ascii_only else ("│", "┌┐└┘", "─")
        edge = floor * (2 * columns if wide else math.ceil(columns / across))
        yield Text(f"{corners[0]}{edge}{corners[1]}", MUTED, no_wrap=True)
        for top in range(0, rows, down):
            line = Text(side, MUTED, no_wrap=True)
            for left in range(0, columns, across):
                block = [value for row in self.matrix[top : top + down] for value in row[left : left + across]]
                line.append(shade(block) * (2 if wide else 1), ACCENT)
            yield line.append(side, MUTED)
        yield Text(f"{corners[2]}{edge}{corners[3]}", MUTED, no_wrap=True)
        if down > 1:
            legend += f"; each character is the largest of {down} x {across} values"
        yield from Text(legend, MUTED).wrap(console, width)


def heat_map(matrix: Sequence[Sequence[float]], *, max_width: int, log: bool = False) -> HeatMap:
    """Draw a matrix by density, at most ``max_width`` columns wide; on a logarithmic scale if ``log``.

    Only the smallest value is blank, only what is near the largest is '@'. A matrix with more columns than
    fit is drawn in blocks, each as its largest value; a block with a non-finite value is '?'.
    """
    return HeatMap(matrix, max_width, log)


_Shade = Callable[[Sequence[float]], str]
DECADES = 16
"""Below the largest value: what a float64 resolves. Smaller values are drawn like the smallest."""


def _shades(matrix: Sequence[Sequence[float]]) -> tuple[_Shade, str]:
    """From a block of values to its character, and the legend."""
    finite = [value for row in matrix for value in row if math.isfinite(value)]
    low, high = min([0.0, *finite]), max(finite, default=0.0)
    legend = f"'{_RAMP[0]}' is {number(low)}, then {_RAMP[1:]} up to {number(high)}"
    return lambda block: _shade(block, low, high), legend


def _log_shades(matrix: Sequence[Sequence[float]]) -> tuple[_Shade, str]:
    """The same where every step is the same factor; only what is 0 or below is blank."""
    logs = [math.log10(value) for row in matrix for value in row if _has_log(value)]
    if not logs:
        return _shades(matrix)
    high = max(logs)
    low = max(min(logs), high - DECADES)
    steps = len(_RAMP) - 2

    def shade(block: Sequence[float]) -> str:
        if not all(map(math.isfinite, block)):
            return _UNKNOWN
        if max(block) <= 0:
            return _RAMP[0]
        part = (math.log10(max(block)) - low) / (high - low) if high > low else 1.0
        return _RAMP[1 + round(max(part, 0.0) * steps)]

    ends = f"from {number(10**low)} to {number(10**high)}"
    return shade, f"'{_RAMP[0]}' is 0, then {_RAMP[1:]} {ends}, each the same factor more"


def _shade(block: Sequence[float], low: float, high: float) -> str:
    if not all(map(math.isfinite, block)):
        return _UNKNOWN
    if high == low:
        return _RAMP[0]
    # Rounded up: what is not zero is never blank.
    return _RAMP[min(math.ceil((max(block) - low) / (high - low) * (len(_RAMP) - 1)), len(_RAMP) - 1)]


def _has_log(value: float) -> bool:
    return value > 0 and math.isfinite(value)


def _column(i: int, n: int, columns: int) -> int:
    return round(i * (columns - 1) / (n - 1)) if n > 1 else 0
