"""The screen of ``causality``: the probes, the leaks in words, and what was not proven."""

from collections.abc import Collection, Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal.charts import heat_map
from tfblock_cli.report.terminal.format import count, number, percent
from tfblock_cli.report.terminal.parts import (
    ACCENT,
    BAD,
    DOUBT,
    GOOD,
    MUTED,
    Column,
    FirstFit,
    add_row,
    marked_lines,
    section,
    table,
)
from tfblock_cli.results.causality import CausalityData, Control, Leak, ProbeRow, ProbeVerdict

_STYLES: dict[ProbeVerdict, str] = {
    "clean": GOOD,
    "noise": DOUBT,
    "LEAK": BAD,
    "no-flow": BAD,
    "inconclusive": DOUBT,
    "skipped": MUTED,
}
MAP_COLUMNS = 40
"""Of the picture; longer sequences are drawn in blocks."""


def screen(data: CausalityData, said: Collection[str]) -> RenderableType:
    """A row per probe; then each leak as a sentence, what the probes say, and what they cannot say.

    What is ``said`` elsewhere on the screen, at a check, is not repeated.
    """
    if data.controls:
        return _self_test(data.controls)
    parts: list[RenderableType] = [
        Text(f"declared {data.declared}, T={data.seq_len}", MUTED),
        *(Text(note, MUTED) for note in data.notes),
        section("probes", "worst: largest change where there must be none, relative to the largest output"),
        FirstFit((_full(data.probes), _compact(data.probes))),
        *(Text(line, MUTED) for line in _partial(data.probes)),
    ]
    if data.leaks:
        parts += [section("leaks"), marked_lines((Text("LEAK", BAD), sentence) for sentence in _sentences(data.leaks))]
    if data.influence:
        note = "gradient of output i (down) with respect to input j (across), relative to the median"
        parts += [section("influence", note), heat_map(data.influence, max_width=2 * MAP_COLUMNS + 2, log=True)]
    # most modes say the same
    messages = dict.fromkeys((row.name, row.message) for row in data.probes if row.message and row.message not in said)
    if messages:
        lines = ((Text(name, MUTED), Text(message)) for name, message in messages)
        parts += [section("what was seen"), marked_lines(lines)]
    if data.not_proven:
        parts.append(Text(f"\nNot proven: {'; '.join(data.not_proven)}.", MUTED))
    return Group(*parts)


def _full(probes: tuple[ProbeRow, ...]) -> Table:
    columns = [Column("probe"), Column("mode"), Column("T", "right"), Column("dtype"), Column("verdict")]
    result = table([*columns, *_COVERAGE])
    for row in probes:
        add_row(result, row.name, row.mode, str(row.seq_len), row.dtype, _verdict(row), *_coverage(row))
    return result


def _compact(probes: tuple[ProbeRow, ...]) -> Table:
    """Mode and dtype stand in a line above the probes that share them."""
    result = table([Column("probe"), Column("verdict"), *_COVERAGE])
    for (mode, dtype, T), rows in groupby(probes, key=lambda row: (row.mode, row.dtype, row.seq_len)):
        add_row(result, Text(f"{mode}, {dtype}, T={T}", MUTED))
        for row in rows:
            add_row(result, f"  {row.name}", _verdict(row), *_coverage(row))
    return result


_COVERAGE = tuple(Column(name, "right") for name in ("worst", "cuts", "pairs", "forwards", "vjps"))


def _coverage(row: ProbeRow) -> tuple[str, ...]:
    cuts, pairs = f"{row.cuts_tried}/{row.cuts_total}", percent(row.pairs_covered)
    if not row.cuts_tried:  # this probe cuts nothing
        cuts = pairs = ""
    return number(row.worst), cuts, pairs, count(row.forwards), count(row.vjps) if row.vjps else ""


def _partial(probes: tuple[ProbeRow, ...]) -> Iterator[str]:
    """What a ladder of cuts covers, each ladder once."""
    ladders = dict.fromkeys(
        (row.name, row.seq_len, row.cuts_tried, row.cuts_total, row.pairs_covered)
        for row in probes
        if 0 < row.cuts_tried < row.cuts_total
    )
    for name, T, tried, total, pairs in ladders:
        yield (
            f"{name} at T={T}: cuts {tried}/{total}, pairs {percent(pairs)}, adjacent pairs {percent(tried / total)}"
            " (--budget)"
        )


def _self_test(controls: tuple[Control, ...]) -> RenderableType:
    """A row per model, by family; those that the checker is wrong about stand out."""
    broken = [control for control in controls if control.family != "correct"]
    right = len(controls) - len(broken)
    caught = sum(control.caught for control in broken)
    clean = sum(control.caught for control in controls) - caught
    result = table([Column("model"), Column("probe"), Column("found"), Column("worst", "right"), Column("")])
    for family, members in groupby(controls, key=lambda control: control.family):
        add_row(result, Text(family, ACCENT))
        for control in members:
            mark = Text("ok", GOOD) if control.caught else Text(f"must be {control.wanted}", BAD)
            add_row(result, f"  {control.name}", control.probe, control.found, number(control.worst), mark)
    return Group(
        Text(f"{caught} of {len(broken)} broken models caught, {clean} of {right} correct ones clean", MUTED),
        section("controls", "the probe that must speak, and what it said"),
        result,
    )


def _verdict(row: ProbeRow) -> Text:
    return Text(row.verdict, _STYLES[row.verdict])


def _sentences(leaks: tuple[Leak, ...]) -> Iterator[Text]:
    """One sentence per pair; behind it the probes that found it."""
    pairs: dict[tuple[object, ...], list[Leak]] = {}
    for leak in leaks:
        pairs.setdefault((leak.out, leak.in_, leak.shape, leak.stage), []).append(leak)
    for same in pairs.values():
        first = same[0]
        yield Text.assemble(
            (f"output {first.out} depends {'wrongly ' * first.may_depend}on input {first.in_}", "bold"),
            f": relative size {number(first.magnitude)}, ",
            f"{first.cuts}/{first.cuts_total} {first.counted}, " if first.cuts else "",
            first.shape,
            f", first seen behind {first.stage}" if first.stage else "",
            (f" ({'; '.join(dict.fromkeys(f'{leak.probe}, {leak.mode}' for leak in same))})", MUTED),
        )
