"""The screen of ``forward``: every stage with its shape and figures, and one head as a picture."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal.charts import heat_map
from tfblock_cli.report.terminal.format import number, shape
from tfblock_cli.report.terminal.parts import (
    BAD,
    GOOD,
    MUTED,
    Column,
    FirstFit,
    add_row,
    marked_lines,
    section,
    table,
)
from tfblock_cli.results.forward import ForwardData, HeadWeights, StageRow

_MAP_WIDTH = 100
_NUMBERS = tuple(Column(name, "right") for name in ("mean", "std", "absmax"))


def screen(data: ForwardData) -> RenderableType:
    """The letters, a row for every stage in the order of the computation, and the head that was asked for."""
    letters = " ".join(f"{letter}={n}" for letter, n in data.letters.items())
    parts: list[RenderableType] = [
        Text(letters, MUTED),
        Text(f"\n{shape(data.input_shape)} -> {shape(data.output_shape)}", "bold"),
        section("stages"),
        FirstFit((_full(data.stages, grouped=False), _full(data.stages, grouped=True), _compact(data.stages))),
    ]
    if data.head is not None:
        parts += [
            section(f"attention weights of layer {data.head.layer}, head {data.head.head}"),
            _head(data.head),
        ]
    return Group(*parts)


def _full(stages: tuple[StageRow, ...], *, grouped: bool) -> Table:
    """Everything in columns. ``grouped``: a block's name is said once, above its stages."""
    names = [Column(name) for name in ("stage", "letters", "shape", "dtype")]
    result = table([*names, *_NUMBERS, Column("finite"), Column("note")])
    for row, name in _named(stages, result) if grouped else ((row, row.name) for row in stages):
        finite = {True: Text("yes", GOOD), False: Text("NO", BAD), None: Text("-", MUTED)}[row.finite]
        add_row(result, name, *_shapes(row), row.dtype, *_figures(row), finite, row.note)
    return result


def _compact(stages: tuple[StageRow, ...]) -> Group:
    """The usual dtype is said once, and everything unusual is a numbered note below the table."""
    usual = Counter(row.dtype for row in stages).most_common(1)[0][0]
    numbers: dict[str, str] = {}
    result = table([Column("stage"), Column("letters"), Column("shape"), *_NUMBERS, Column("")])
    for row, name in _named(stages, result):
        unusual = [note for note in (row.note, row.dtype if row.dtype != usual else "") if note]
        marks = Text(" ".join(numbers.setdefault(note, str(len(numbers) + 1)) for note in unusual), MUTED)
        if row.finite is False:
            marks.append("!", BAD)
        add_row(result, name, *_shapes(row), *_figures(row), marks)
    legend = [(Text(number, MUTED), Text(note, MUTED)) for note, number in numbers.items()]
    if any(row.finite is False for row in stages):
        legend.append((Text("!", BAD), Text("not finite", BAD)))
    return Group(result, Text(f"\n{usual} where no note says otherwise", MUTED), marked_lines(legend))


def _named(stages: tuple[StageRow, ...], to: Table) -> Iterator[tuple[StageRow, str]]:
    """Each stage with its name inside its block; the block's name becomes a line of the table."""
    block = ""
    for row in stages:
        parent, name = _split(row.name)
        if parent and parent != block:
            add_row(to, Text(parent, "bold"))
        block = parent
        yield row, f"  {name}" if parent else name


def _split(name: str) -> tuple[str, str]:
    """blocks.0.attention.scores is attention.scores of blocks.0; what stands in no block has no parent."""
    parts = name.split(".")
    if len(parts) > 2 and parts[1].isdecimal():
        return ".".join(parts[:2]), ".".join(parts[2:])
    return "", name


def _shapes(row: StageRow) -> tuple[str, str]:
    return " ".join(row.symbolic), shape(row.shape)


def _figures(row: StageRow) -> tuple[str, str, str]:
    return number(row.mean), number(row.std), number(row.absmax)


def _head(head: HeadWeights) -> Group:
    last = len(head.weights) - 1
    legend = f"down: query t = 0..{last}; across: key s = 0..{last}"
    return Group(heat_map(head.weights, max_width=_MAP_WIDTH), Text(legend, MUTED))
