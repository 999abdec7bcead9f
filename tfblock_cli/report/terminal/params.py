"""The screen of ``params``: parameters, FLOPs and bytes."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal.format import ABSENT, count, percent, plural, size
from tfblock_cli.report.terminal.parts import (
    BAD,
    GOOD,
    MUTED,
    Bar,
    Column,
    FirstFit,
    add_row,
    marked_lines,
    section,
    table,
)
from tfblock_cli.results.params import Component, Flops, LayerGroup, Memory, ParamsData, Verification

# The letters of the formulas and the keys of the resolved experiment where they stand.
_LETTERS = {
    "D": ("model", "d_model"),
    "L": ("model", "n_layers"),
    "H": ("model", "attention", "n_heads"),
    "K": ("model", "attention", "n_kv_heads"),
    "E": ("model", "attention", "d_head"),
    "F": ("model", "ffn", "d_ff"),
    "V": ("model", "vocab_size"),
    "P": ("model", "max_seq_len"),
}


def screen(data: ParamsData, experiment: Mapping[str, Any]) -> RenderableType:
    """The total and what it leaves out, then components, layers, FLOPs, memory and the verification."""
    parts: list[RenderableType] = [
        Text(_letters(experiment), MUTED),
        Text(),
        _headline(data),
        section("components", "they add up to the total"),
        FirstFit((_components(data, bars=True), _components(data, bars=False))),
        section("layers", "parameters of one layer"),
        _layers(data.per_layer),
        section(
            "FLOPs",
            f"B={data.flops.batch_size} T={data.flops.seq_len}; 2 FLOPs per multiply-add, matrix multiplications only",
        ),
        _flops(data.flops),
        section("memory", f"{data.memory.dtype}, {plural(data.memory.bytes_per_element, 'byte')} per element"),
        _memory(data.memory),
    ]
    if data.verified is not None:
        parts += [section("verification"), _verified(data.verified)]
    return Group(*parts)


def _letters(experiment: Mapping[str, Any]) -> str:
    found = []
    for letter, keys in _LETTERS.items():
        value: Any = experiment
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            found.append(f"{letter}={value}")
    return " ".join(found)


def _headline(data: ParamsData) -> Table:
    rows = [
        (data.total, "parameters, tied weights once"),
        (data.total_without_embeddings, "without the token and position tables"),
        (data.total_without_positions, "without the position table"),
        (data.by_path, "by path: tied weights once per place of use"),
    ]
    if data.active != data.total:
        rows.append((data.active, "active for one token"))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right")
    grid.add_column(overflow="fold")
    for i, (n, text) in enumerate(rows):
        grid.add_row(Text(count(n)), Text(text), style="bold" if i == 0 else "")
    return grid


def _components(data: ParamsData, *, bars: bool) -> Table:
    weights, biases = (sum(getattr(row, part) for row in data.components) for part in ("weights", "biases"))
    columns = [
        Column("component", footer="total"),
        Column("parameters", "right", count(data.total)),
        Column("weights", "right", count(weights)),
        Column("biases", "right", count(biases)),
        Column("share", "right"),
        *([Column("")] if bars else []),
        Column("formula"),
    ]
    result = table(columns)
    for row in data.components:
        cells = [Text(text) for text in (row.name, count(row.count), count(row.weights), count(row.biases))]
        bar = [Bar(row.share)] if bars else []
        result.add_row(*cells, Text(percent(row.share)), *bar, Text(_formula(row)))
    return result


def _formula(row: Component) -> str:
    if row.tied_to is None:
        return row.formula
    return f"tied to {row.tied_to}" if not row.formula else f"{row.formula}, tied to {row.tied_to}"


def _layers(groups: tuple[LayerGroup, ...]) -> Table:
    names = ("attention", "ffn", "norms", "total")
    result = table([Column("layers"), Column("how many", "right"), *(Column(name, "right") for name in names)])
    for group in groups:
        add_row(result, group.layers, count(group.n), *(count(getattr(group, name)) for name in names))
    return result


def _flops(flops: Flops) -> Table:
    result = table([Column("stage"), Column("dense", "right"), Column("visible pairs", "right"), Column("formula")])
    for i, stage in enumerate(flops.stages, start=1):
        last = i == len(flops.stages)
        add_row(result, stage.name, count(stage.dense), count(stage.visible), stage.formula, end_section=last)
    add_row(result, "forward", count(flops.dense), count(flops.visible), style="bold")
    add_row(result, "backward", count(flops.backward_dense), count(flops.backward_visible), "2 forward")
    add_row(result, "training", count(flops.train_dense), count(flops.train_visible), "forward + backward")
    add_row(result, "per token", count(flops.per_token_dense), ABSENT, "forward / (B T)")
    return result


def _memory(memory: Memory) -> Table:
    result = table([Column("what"), Column("bytes", "right"), Column("", "right"), Column("counted")])
    for name, n, counted in (
        ("weights", memory.weights, "every parameter once"),
        ("gradients", memory.gradients, "one per parameter"),
        ("AdamW", memory.adamw, "two moments per parameter"),
        ("activations", memory.activations, "kept for one backward pass, without the loss"),
        ("logits", memory.logits, "B T V"),
        ("KV cache per token", memory.kv_cache_per_token, "one sequence, all layers"),
        ("KV cache", memory.kv_cache, "B sequences of max_seq_len tokens"),
    ):
        add_row(result, name, count(n), size(n), counted)
    return result


def _verified(verification: Verification) -> RenderableType:
    differences = verification.differences
    if not differences:
        return marked_lines(
            [
                (
                    Text("ok", GOOD),
                    Text(
                        f"the built model has the same {plural(verification.tensors, 'tensor')} and "
                        f"{plural(verification.parameters, 'parameter')}, name by name"
                    ),
                )
            ]
        )
    return marked_lines((Text("DIFFERS", BAD), Text(difference)) for difference in differences)
