"""The screen of ``gradflow`` about a target: what every layer, and every parameter of it, gets of the gradient."""

from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal.charts import LogPlot, in_pairs, log_plot
from tfblock_cli.report.terminal.format import count, plural
from tfblock_cli.report.terminal.gradflow import (
    PLOT_HEIGHT,
    geometric_mean,
    matrix,
    mean_cell,
    split,
)
from tfblock_cli.report.terminal.parts import MUTED, Column, add_row, section, table
from tfblock_cli.results.gradflow import Row
from tfblock_cli.results.target_gradflow import TargetGradflowData

_NAMES = {("block", "grad_norm"): "all", ("hidden", "grad_norm"): "output", ("residual", "rms"): "output rms"}
"""What is measured of a layer as a whole, by the group and the metric of its rows."""


def screen(data: TargetGradflowData) -> RenderableType:
    """The protocol, what lies outside the layers, the layers parameter by parameter, and the curves along them."""
    parts: list[RenderableType] = [
        Text(_protocol(data), MUTED),
        section("outside the layers" if data.depth else "by module", _mean_of(data)),
        _outside(data),
    ]
    if data.depth:
        parts += [
            section(f"{data.layers or 'items'}: {data.depth} x {data.layer_type}", f"gradient norms, {_mean_of(data)}"),
            _layers(data),
            Text(
                "all: all parameters of the layer; output: the gradient of what it puts out, and the rms of that", MUTED
            ),
            section("along the layers", _mean_of(data)),
            in_pairs(partial(_plots, data)),
        ]
    return Group(*parts)


def _protocol(data: TargetGradflowData) -> str:
    seeds = ", ".join(map(str, data.seeds))
    no_layers = "" if data.depth else "; no list of layers of one class was found"
    return f"loss {data.loss}; the target's own weights; inputs of the seeds {seeds}{no_layers}"


def _mean_of(data: TargetGradflowData) -> str:
    return f"geometric mean over {plural(len(data.seeds), 'seed')}"


def _outside(data: TargetGradflowData) -> Table:
    result = table([Column("group"), Column("parameters", "right"), Column("gradient norm", "right")])
    groups: dict[str, list[float]] = {}
    for row in data.rows:
        if row.layer is None and row.metric == "grad_norm":
            groups.setdefault(row.group, []).append(row.value)
    for group, values in groups.items():
        facts = [fact for fact in data.parameters if group == "model" or (fact.layer, fact.group) == (None, group)]
        name = "all parameters" if group == "model" else group
        add_row(result, name, count(sum(fact.count for fact in facts)) if facts else "-", mean_cell(values))
    return result


def _layers(data: TargetGradflowData) -> RenderableType:
    """One column per group, the layers as a whole first."""
    columns: dict[str, dict[int, list[float]]] = {name: {} for name in _NAMES.values()}
    for row in data.rows:
        if row.layer is not None:
            columns.setdefault(_NAMES.get((row.group, row.metric), row.group), {}).setdefault(row.layer, []).append(
                row.value
            )
    there = {name: values for name, values in columns.items() if values}
    return split(tuple(there), partial(matrix, columns=there, depth=data.depth))


def _plots(data: TargetGradflowData, width: int) -> Iterator[LogPlot]:
    for title, curves in (
        ("gradient norm", {"all parameters": ("block", "grad_norm"), "output": ("hidden", "grad_norm")}),
        ("rms of the output", {"output": ("residual", "rms")}),
    ):
        found = {name: _curve(data, *of) for name, of in curves.items()}
        shown = {name: curve for name, curve in found.items() if any(value == value for value in curve)}
        if shown:
            yield log_plot(shown, width=width, height=PLOT_HEIGHT, title=title, x_label="layer")


def _curve(data: TargetGradflowData, group: str, metric: str) -> list[float]:
    def values(rows: Sequence[Row], layer: int) -> list[float]:
        return [row.value for row in rows if row.layer == layer]

    rows = [row for row in data.rows if (row.group, row.metric) == (group, metric)]
    return [geometric_mean(values(rows, layer)) for layer in range(data.depth)]
