"""The screen of ``gradflow``: the placements side by side, along the depth of the stack."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal.charts import LogPlot, letters, log_plot
from tfblock_cli.report.terminal.format import number, plural
from tfblock_cli.report.terminal.parts import MUTED, Column, FirstFit, add_row, marked_lines, section, table
from tfblock_cli.results.gradflow import METRICS, GradflowData, Summary

# What the screen has room for, beside the metrics of the checks; the result has them all.
_HEADLINES = ("grad.embedding", "grad.input", "grad.block.last_first", "rms.last", "cosine.last")
# What is drawn against the block: title, and the group and metric of its rows.
_PLOTS = (("gradient norm", "block", "grad_norm"), ("residual rms", "residual", "rms"))
_PLOT_HEIGHT = 12
_PLOT_WIDTHS = (58, 78)  # two beside each other on 120 columns, or one on 80


def screen(data: GradflowData, checked: Collection[str]) -> RenderableType:
    """The protocol, the placements, the summary per placement and depth, and the curves of every depth.

    Args:
        data: All of it.
        checked: The metrics that an expectation speaks of; they are shown beside the headlines.
    """
    marks = letters(fact.placement for fact in data.placements)
    measured = dict.fromkeys(row.metric for row in data.summary)
    metrics = tuple(metric for metric in measured if metric in _HEADLINES or metric in checked)
    left_out = [metric for metric in measured if metric not in metrics]
    parts: list[RenderableType] = [
        Text(_protocol(data), MUTED),
        section("placements"),
        _placements(data, marks),
        section("at initialization", _reading(data)),
        _summary(data, metrics),
    ]
    parts.append(Text())
    parts.append(marked_lines((Text(metric, MUTED), Text(METRICS[metric], MUTED)) for metric in metrics))
    if left_out:
        parts.append(Text(f"in the JSON result as well: {', '.join(left_out)}", MUTED))
    parts += _plots(data)
    return Group(*parts)


def _protocol(data: GradflowData) -> str:
    seeds, depths = (", ".join(map(str, values)) for values in (data.seeds, data.depths))
    return f"loss {data.loss}; depths {depths}; seeds {seeds}; baseline {data.baseline}"


def _reading(data: GradflowData) -> str:
    over = f"geometric mean over {plural(len(data.seeds), 'seed')}"
    return f"{over}; below it the ratio to {data.baseline} [smallest..largest seed]"


def _placements(data: GradflowData, marks: Mapping[str, str]) -> Table:
    result = table(
        [
            Column(""),
            Column("placement"),
            Column("formula"),
            Column("norms per block", "right"),
            Column("final norm"),
        ]
    )
    for fact in data.placements:
        final = "yes" if fact.final_norm else "no"
        add_row(result, marks[fact.placement], fact.placement, fact.formula, str(fact.norms_per_block), final)
    return result


def _summary(data: GradflowData, metrics: tuple[str, ...]) -> RenderableType:
    """All metrics in one table, or in as many tables as the width asks for."""
    found = {(row.placement, row.depth, row.metric): row for row in data.summary}
    layouts: list[RenderableType] = []
    for per_table in range(max(len(metrics), 1), 0, -1):
        chunks = [metrics[i : i + per_table] for i in range(0, len(metrics), per_table)]
        tables = [_summary_table(data, chunk, found) for chunk in chunks]
        layouts.append(Group(*_apart(tables)))
    return FirstFit(tuple(layouts))


def _summary_table(data: GradflowData, metrics: Sequence[str], found: Mapping[tuple[str, int, str], Summary]) -> Table:
    result = table([Column("depth", "right"), Column("placement"), *(Column(metric) for metric in metrics)])
    for depth in data.depths:
        for fact in data.placements:
            cells = [_cell(found.get((fact.placement, depth, metric))) for metric in metrics]
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
    if row.ratio_low != row.ratio_high:
        ratio += f" [{number(row.ratio_low)}..{number(row.ratio_high)}]"
    return Text.assemble(number(row.geomean), "\n", (ratio, MUTED))


def _plots(data: GradflowData) -> Iterable[RenderableType]:
    for depth in data.depths:
        yield section(f"depth {depth}", f"geometric mean over {plural(len(data.seeds), 'seed')}")
        yield FirstFit(
            (_beside(_pair(data, depth, _PLOT_WIDTHS[0])), Group(*_apart(_pair(data, depth, _PLOT_WIDTHS[1]))))
        )


def _apart(parts: Sequence[RenderableType]) -> list[RenderableType]:
    """The parts with a blank line between two of them."""
    return [part for i, each in enumerate(parts) for part in ([Text(), each] if i else [each])]


def _pair(data: GradflowData, depth: int, width: int) -> list[LogPlot]:
    return [
        log_plot(
            _curves(data, depth, group, metric),
            width=width,
            height=_PLOT_HEIGHT,
            title=title,
            x_label="block",
        )
        for title, group, metric in _PLOTS
    ]


def _beside(plots: Sequence[LogPlot]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(*plots)
    return grid


def _curves(data: GradflowData, depth: int, group: str, metric: str) -> dict[str, list[float]]:
    """One curve per placement: at each block the geometric mean over the seeds."""
    values: dict[str, dict[int, list[float]]] = {fact.placement: {} for fact in data.placements}
    for row in data.rows:
        if (row.depth, row.group, row.metric, row.stage) == (
            depth,
            group,
            metric,
            "init",
        ) and row.layer is not None:
            values[row.placement].setdefault(row.layer, []).append(row.value)
    return {
        placement: [_geometric_mean(by_layer.get(layer, ())) for layer in range(depth)]
        for placement, by_layer in values.items()
    }


def _geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean, or nan (a gap in the curve) where there is no value, or one without a logarithm."""
    if not values or not all(value > 0 and math.isfinite(value) for value in values):
        return math.nan
    return math.exp(math.fsum(map(math.log, values)) / len(values))
