"""The parts that all screens share: heading, tables, layouts by width, checks and the verdict."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal.format import claim, plural
from tfblock_cli.results.result import Check, Result, Verdict

GOOD = "green"
BAD = "bold red"
DOUBT = "yellow"
MUTED = "dim"
ACCENT = "cyan"

_VERDICT_STYLES: dict[Verdict, str] = {
    "pass": f"bold {GOOD}",
    "fail": BAD,
    "inconclusive": f"bold {DOUBT}",
    "none": MUTED,
}
_VERDICT_WORDS: dict[Verdict, str] = {
    "pass": "PASS",
    "fail": "FAIL",
    "inconclusive": "INCONCLUSIVE",
    "none": "NO VERDICT",
}


def heading(result: Result[Any]) -> Text:
    """The command and the experiment's name."""
    return Text.assemble((result.command, "bold"), " ", str(result.experiment.get("name", "")))


def section(title: str, note: str = "") -> Text:
    """A blank line, a title, and what the reader must know to read what follows."""
    return Text.assemble("\n", (title, f"bold {ACCENT}"), (f"  {note}" if note else "", MUTED))


@dataclass(frozen=True, slots=True)
class Column:
    """A column's header, the side on which its cells stand, and its footer."""

    header: str
    justify: JustifyMethod = "left"
    footer: str = ""


def table(columns: Sequence[Column]) -> Table:
    """An empty table that folds what is too long, cuts nothing, and reads no markup."""
    result = Table(
        box=box.SIMPLE,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        show_footer=any(column.footer for column in columns),
        header_style="bold",
        footer_style="bold",
    )
    for column in columns:
        result.add_column(
            Text(column.header), Text(column.footer), justify=column.justify, vertical="top", overflow="fold"
        )
    return result


def add_row(to: Table, *cells: str | Text, style: str | None = None, end_section: bool = False) -> None:
    """Add a row. Plain strings become ``Text``: Rich would read [B, T] as markup, and it would vanish."""
    texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
    to.add_row(*texts, style=style, end_section=end_section)


def marked_lines(lines: Iterable[tuple[Text, Text]]) -> Table:
    """Lines with a mark in front; what is too long goes on under its own text, not under the mark."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    for mark, text in lines:
        grid.add_row(mark, text)
    return grid


def apart(parts: Sequence[RenderableType]) -> list[RenderableType]:
    """The parts with a blank line between two of them."""
    return [part for i, each in enumerate(parts) for part in ([Text(), each] if i else [each])]


@dataclass(frozen=True, slots=True)
class FirstFit:
    """The first layout that is narrow enough as it stands; the last one folds where it must."""

    layouts: tuple[RenderableType, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        unbounded = options.update(max_width=10_000)
        for layout in self.layouts[:-1]:
            if Measurement.get(console, unbounded, layout).maximum <= options.max_width:
                yield layout
                return
        yield self.layouts[-1]


@dataclass(frozen=True, slots=True)
class Bar:
    """A share between 0 and 1 as a bar of ``width`` characters."""

    share: float
    width: int = 10

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        yield Text(("=" if options.ascii_only else "━") * round(self.share * self.width), ACCENT)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)


def check_line(check: Check) -> tuple[Text, Text]:
    """One check in full: its mark, and what was found where what was demanded."""
    mark, style = {True: ("ok", GOOD), False: ("FAIL", BAD), None: ("?", DOUBT)}[check.passed]
    found, demanded = claim(check.value, check.op, check.limit)
    subject = f" of {check.subject}" if check.subject else ""
    text = Text.assemble((check.name, "bold"), f"{subject}: {found}, demanded {demanded}")
    if check.passed is not True and check.message:
        text.append(f"\n{check.message}")
    return Text(mark, style), text


def closing(result: Result[Any]) -> Group:
    """Warnings, the checks that did not hold in full, those that did by name, and the verdict."""
    parts: list[RenderableType] = []
    if result.warnings:
        parts += [
            Text(),
            marked_lines((Text("warning", DOUBT), Text(warning)) for warning in result.warnings),
        ]
    # A check that gradflow was asked for by the experiment is an answer, not a safeguard: shown held or not.
    answers = result.command == "gradflow"
    in_full = [c for c in result.checks if c.passed is not True or (answers and not c.name.startswith("guard."))]
    if in_full:
        parts += [section("checks"), marked_lines(check_line(check) for check in in_full)]
    by_name = Counter(check.name for check in result.checks if check not in in_full)
    if by_name:
        names = ", ".join(name if n == 1 else f"{name} ({n} times)" for name, n in by_name.items())
        parts.append(Text(f"\nheld: {names}", MUTED))
    return Group(*parts, _verdict_line(result))


def _verdict_line(result: Result[Any]) -> Text:
    total = plural(len(result.checks), "check")
    failed = sum(check.passed is False for check in result.checks)
    undecided = sum(check.passed is None for check in result.checks)
    bad = [f"{failed} failed"] * bool(failed) + [f"{undecided} cannot be judged"] * bool(undecided)
    what = f"{total}: {', '.join(bad)}" if bad else f"{total} held"
    if not result.checks:
        what = "nothing was to be checked"
    if result.warnings:
        what += f", {plural(len(result.warnings), 'warning')}"
    word = _VERDICT_WORDS[result.verdict]
    return Text.assemble("\n", (word, _VERDICT_STYLES[result.verdict]), f"  {what}")
