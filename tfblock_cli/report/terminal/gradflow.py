"""The screen of ``gradflow``: the placements side by side, along the depth of the stack."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal import training
from tfblock_cli.report.terminal.charts import LogPlot, in_pairs, letters, log_plot
from tfblock_cli.report.terminal.format import number, plural
from tfblock_cli.report.terminal.parts import MUTED, Column, FirstFit, add_row, apart, marked_lines, section, table
from tfblock_cli.results.gradflow import GradflowData, Summary
from tfblock_cli.results.metrics import METRICS, SLOPE, metric

# What the screen has room for, beside the metrics of the checks; the result has them all.
_HEADLINES = ("grad.embedding", "grad.input", "grad.block.last_first", "rms.last", "cosine.last", "noise.response")
_SLOPES = ("grad.down.last", "grad.matrices", "rms.last", "noise.response")
# What is drawn against the block: title, and the group and metric of its rows.
_PLOTS = (("gradient norm", "block", "grad_norm"), ("residual rms", "residual", "rms"))
PLOT_HEIGHT = 12


def screen(data: GradflowData, checked: Collection[str], *, all_layers: bool = False) -> RenderableType:
    """The protocol, the placements, the summary per placement and depth, and the curves of every depth.

    Args:
        data: All of it.
        checked: The metrics that an expectation speaks of; they are shown beside the headlines.
        all_layers: Show every group of every layer as well.
    """
    marks = letters(fact.placement for fact in data.placements)
    measured = dict.fromkeys(row.metric for row in data.summary if row.depth)
    metrics = tuple(name for name in measured if name in _HEADLINES or name in checked)
    left_out = [name for name in measured if name not in metrics]
    parts: list[RenderableType] = [
        Text(_protocol(data), MUTED),
        section("placements"),
        _placements(data, marks),
        *_overrides(data, marks),
        section("at initialization", _reading(data)),
        _summary(data, metrics),
        Text(),
        marked_lines((Text(name, MUTED), Text(METRICS[name].words, MUTED)) for name in metrics),
    ]
    if left_out:
        parts.append(Text(f"in the JSON result as well: {', '.join(left_out)}", MUTED))
    parts += _slopes(data, checked)
    if all_layers:
        parts += _matrices(data)
    parts += _plots(data)
    parts += training.parts(data)
    return Group(*parts)


def explain(name: str) -> RenderableType:
    """What a metric is, how it is computed, what it tells and where that is said."""
    found = metric(name)
    lines = {"is": found.words, "formula": found.formula, "tells": found.tells}
    lines |= {"undefined": f"where {found.undefined}"} if found.undefined else {}
    lines |= {"source": found.source or "-"}
    return Group(Text(name, "bold"), marked_lines((Text(key, MUTED), Text(text)) for key, text in lines.items()))


def _protocol(data: GradflowData) -> str:
    seeds, depths = (", ".join(map(str, values)) for values in (data.seeds, data.depths))
    return f"loss {data.loss}; depths {depths}; seeds {seeds}; baseline {data.baseline}"


def _interval(data: GradflowData) -> str:
    return "[95 % interval]" if len(data.seeds) > 1 else "(one seed has no interval)"


def _reading(data: GradflowData) -> str:
    over = f"geometric mean over {plural(len(data.seeds), 'seed')}"
    return f"{over}; below it the ratio to {data.baseline}, seed by seed {_interval(data)}"


def _placements(data: GradflowData, marks: Mapping[str, str]) -> Table:
    result = table(
        [
            Column(""),
            Column("placement"),
            Column("formula"),
            Column("norms", "right"),
            Column("final norm"),
            Column("gain", "right"),
        ]
    )
    for fact in data.placements:
        final = "yes" if fact.final_norm else "no"
        gain = number(fact.branch_gain, 2)
        add_row(result, marks[fact.placement], fact.placement, fact.formula, str(fact.norms_per_block), final, gain)
    return result


def _overrides(data: GradflowData, marks: Mapping[str, str]) -> Iterator[RenderableType]:
    """What a placement's own method changes of equally drawn weights."""
    yield Text("norms: per block, outside attention and FFN; gain: std x sqrt(fan_in) of the weaker branch", MUTED)
    lines = [(marks[fact.placement], ", ".join(fact.overrides)) for fact in data.placements if fact.overrides]
    if lines:
        yield Text("the same weights everywhere, but for what belongs to a method:", MUTED)
        yield marked_lines((Text(mark), Text(text)) for mark, text in lines)


def _summary(data: GradflowData, metrics: tuple[str, ...]) -> RenderableType:
    """All metrics in one table, or in as many tables as the width asks for."""
    found = {(row.placement, row.depth, row.metric): row for row in data.summary}
    return split(metrics, lambda chunk: _summary_table(data, chunk, found))


def split(columns: Sequence[str], make: Callable[[Sequence[str]], Table]) -> FirstFit:
    """A table of all columns, or as many tables as the width asks for."""
    layouts: list[RenderableType] = []
    for per_table in range(max(len(columns), 1), 0, -1):
        chunks = [columns[i : i + per_table] for i in range(0, len(columns), per_table)]
        layouts.append(Group(*apart([make(chunk) for chunk in chunks])))
    return FirstFit(tuple(layouts))


def _summary_table(data: GradflowData, metrics: Sequence[str], found: Mapping[tuple[str, int, str], Summary]) -> Table:
    result = table([Column("depth", "right"), Column("placement"), *(Column(name) for name in metrics)])
    for depth in data.depths:
        for fact in data.placements:
            cells = [_cell(found.get((fact.placement, depth, name))) for name in metrics]
            end = fact is data.placements[-1]
            add_row(result, str(depth), fact.placement, *cells, end_section=end)
    return result


def _cell(row: Summary | None) -> Text:
    if row is None:
        return Text("-", MUTED)
    if row.geomean is None:  # a value without a logarithm: neither a mean nor a ratio means anything
        return Text(f"{number(row.low)}..{number(row.high)}")
    if row.ratio is None:
        return Text.assemble(number(row.geomean), "\n", ("baseline", MUTED))
    ratio = f"x{number(row.ratio)}"
    if row.ratio_ci_low is not None:
        ratio += f" [{number(row.ratio_ci_low)}..{number(row.ratio_ci_high)}]"
    return Text.assemble(number(row.geomean), "\n", (ratio, MUTED))


def _slopes(data: GradflowData, checked: Collection[str]) -> Iterator[RenderableType]:
    """The powers of the depth, one row per placement."""
    found = {(row.placement, row.metric): row for row in data.summary if not row.depth}
    there = dict.fromkeys(name.removeprefix(SLOPE) for _, name in found)
    names = tuple(name for name in there if name in _SLOPES or f"{SLOPE}{name}" in checked)
    if not names:
        return

    def make(chunk: Sequence[str]) -> Table:
        result = table([Column("placement"), *(Column(name) for name in chunk)])
        for fact in data.placements:
            rows = [found.get((fact.placement, f"{SLOPE}{name}")) for name in chunk]
            add_row(result, fact.placement, *map(_slope_cell, rows))
        return result

    depths = ", ".join(map(str, data.depths))
    yield section("over the depths", f"L = {depths}: each grows as L to the power of, mean {_interval(data)}")
    yield split(names, make)


def _slope_cell(row: Summary | None) -> Text:
    if row is None:
        return Text("-", MUTED)
    ends = "" if row.ci_low is None or row.ci_high is None else f" [{row.ci_low:+.2f}..{row.ci_high:+.2f}]"
    return Text.assemble(f"{row.mean:+.2f}", (ends, MUTED))


def _matrices(data: GradflowData) -> Iterator[RenderableType]:
    """Every group of every layer: one table per placement and depth, geometric means over the seeds."""
    for depth in data.depths:
        for fact in data.placements:
            columns: dict[str, dict[int, list[float]]] = {}
            for row in data.rows:
                if (row.depth, row.placement, row.stage) == (depth, fact.placement, "init") and row.layer is not None:
                    name = row.group if row.metric == "grad_norm" else row.metric
                    columns.setdefault(name, {}).setdefault(row.layer, []).append(row.value)
            yield section(f"{fact.placement}, depth {depth}", "gradient norms by layer and group; rms and cosine")
            yield split(tuple(columns), partial(matrix, columns=columns, depth=depth))


def matrix(chunk: Sequence[str], columns: Mapping[str, Mapping[int, Sequence[float]]], depth: int) -> Table:
    """Some of the columns, each of them values by layer, as a table with a row per layer."""
    result = table([Column("layer", "right"), *(Column(name, "right") for name in chunk)])
    for layer in range(depth):
        add_row(result, str(layer), *(mean_cell(columns[name].get(layer, ())) for name in chunk))
    return result


def mean_cell(values: Sequence[float]) -> str:
    """The geometric mean; the arithmetic one where a value has no logarithm, as a cosine may."""
    if not values:
        return "-"
    mean = geometric_mean(values)
    return number(math.fsum(values) / len(values) if math.isnan(mean) else mean)


def _plots(data: GradflowData) -> Iterable[RenderableType]:
    for depth in data.depths:
        yield section(f"depth {depth}", f"geometric mean over {plural(len(data.seeds), 'seed')}")
        yield in_pairs(partial(_pair, data, depth))


def _pair(data: GradflowData, depth: int, width: int) -> list[LogPlot]:
    return [
        log_plot(
            _curves(data, depth, group, name),
            width=width,
            height=PLOT_HEIGHT,
            title=title,
            x_label="block",
        )
        for title, group, name in _PLOTS
    ]


def _curves(data: GradflowData, depth: int, group: str, name: str) -> dict[str, list[float]]:
    """One curve per placement: at each block the geometric mean over the seeds."""
    values: dict[str, dict[int, list[float]]] = {fact.placement: {} for fact in data.placements}
    for row in data.rows:
        if (row.depth, row.group, row.metric, row.stage) == (depth, group, name, "init") and row.layer is not None:
            values[row.placement].setdefault(row.layer, []).append(row.value)
    return {
        placement: [geometric_mean(by_layer.get(layer, ())) for layer in range(depth)]
        for placement, by_layer in values.items()
    }


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean, or nan (a gap in the curve) where there is no value, or one without a logarithm."""
    if not values or not all(value > 0 and math.isfinite(value) for value in values):
        return math.nan
    return math.exp(math.fsum(map(math.log, values)) / len(values))
