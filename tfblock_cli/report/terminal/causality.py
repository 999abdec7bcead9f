"""The screen of ``causality``: the probes, the leaks in words, and what was not proven."""

from collections.abc import Collection, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal.format import count, number, percent
from tfblock_cli.report.terminal.parts import (
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
from tfblock_cli.results.causality import CausalityData, Leak, ProbeRow, ProbeVerdict

_STYLES: dict[ProbeVerdict, str] = {
    "clean": GOOD,
    "noise": DOUBT,
    "LEAK": BAD,
    "no-flow": BAD,
    "inconclusive": DOUBT,
}


def screen(data: CausalityData, said: Collection[str]) -> RenderableType:
    """A row per probe; then each leak as a sentence, what the probes say, and what they cannot say.

    What is ``said`` elsewhere on the screen, at a check, is not repeated.
    """
    parts: list[RenderableType] = [
        Text(f"declared {data.declared}, T={data.seq_len}", MUTED),
        section("probes", "worst: largest change where there must be none, relative to the largest output"),
        FirstFit((_full(data.probes), _compact(data.probes))),
    ]
    if data.leaks:
        parts += [section("leaks"), marked_lines((Text("LEAK", BAD), sentence) for sentence in _sentences(data.leaks))]
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
    """Mode and dtype stand below the probe's name."""
    result = table([Column("probe"), Column("T", "right"), Column("verdict"), *_COVERAGE])
    for row in probes:
        name = Text.assemble(row.name, (f"\n  {row.mode}, {row.dtype}", MUTED))
        add_row(result, name, str(row.seq_len), _verdict(row), *_coverage(row))
    return result


_COVERAGE = tuple(Column(name, "right") for name in ("worst", "cuts", "pairs", "forwards"))


def _coverage(row: ProbeRow) -> tuple[str, ...]:
    cuts, pairs = f"{row.cuts_tried}/{row.cuts_total}", percent(row.pairs_covered)
    if not row.cuts_tried:  # this probe cuts nothing
        cuts = pairs = ""
    return number(row.worst), cuts, pairs, count(row.forwards)


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
            (f"output {first.out} depends on input {first.in_}", "bold"),
            f": relative size {number(first.magnitude)}, {first.cuts}/{first.cuts_total} cuts, {first.shape}",
            f", first seen behind {first.stage}" if first.stage else "",
            (f" ({'; '.join(f'{leak.probe}, {leak.mode}' for leak in same)})", MUTED),
        )
