"""Pictures in files. The only place that knows matplotlib, which is an extra: ``pip install 'tfblock[plot]'``."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from tfblock_cli.errors import NotSaved
from tfblock_cli.results.causality import CausalityData
from tfblock_cli.results.gradflow import GradflowData

DECADES = 16
"""Below the largest influence: what a float64 resolves. Smaller ones have the colour of the smallest."""


def draw_influence(data: CausalityData, file: Path, *, title: str) -> bool:
    """Draw the gradient map on a logarithmic scale, white where it is exactly 0; False if there is none.

    Args:
        data: With its map.
        file: Ends in .png or .svg.
        title: Of the picture.

    Raises:
        NotSaved: The file cannot be written.
    """
    values = [value for row in data.influence for value in row if value > 0 and math.isfinite(value)]
    if not values:
        return False
    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    high = max(values)
    low = min(max(min(values), high * 10.0**-DECADES), high / 10)
    cells = [[max(value, low) if value > 0 else math.nan for value in row] for row in data.influence]
    image = axes.imshow(cells, norm=LogNorm(low, high), interpolation="nearest")
    axes.set(xlabel="input j", ylabel="output i", title=f"{title}: which output depends on which input")
    figure.colorbar(image, label="|d output i / d input j|, relative to the median; white: exactly 0")
    try:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise NotSaved(f"the picture was not written: {error.strerror or error}") from error
    return True


# colours that the colour-blind can tell apart (Okabe and Ito 2008), and dashes where they do not suffice
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
_DASHES = ("-", "--", "-.", ":")
_AGAINST_BLOCK = (
    ("gradient norm of the block", "block", "grad_norm"),
    ("rms of the residual stream", "residual", "rms"),
)
_UNDATED = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def draw_gradflow(data: GradflowData, file: Path) -> None:
    """Gradient norm and residual rms against the block: a row per depth, a band from the smallest to the largest seed.

    Args:
        data: With its rows.
        file: Ends in .png, .svg or .pdf; the same numbers give the same bytes.

    Raises:
        NotSaved: The file cannot be written.
    """
    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "tfblock"}):
        figure = Figure(figsize=(7.0, 2.4 * len(data.depths) + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(data.depths), len(_AGAINST_BLOCK), squeeze=False)
        for depth, row in zip(data.depths, grid, strict=True):
            for (title, group, metric), axes in zip(_AGAINST_BLOCK, row, strict=True):
                axes.set(xlabel="block", ylabel=title, title=f"{depth} blocks")
                _draw_curves(axes, _by_block(data, depth, group, metric))
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
        try:
            figure.savefig(file, dpi=200, metadata=_UNDATED[file.suffix.lower()])
        except OSError as error:
            raise NotSaved(f"the picture was not written: {error.strerror or error}") from error


def _by_block(data: GradflowData, depth: int, group: str, metric: str) -> dict[str, list[list[float]]]:
    """By placement and block, one value per seed; what has no logarithm is a gap."""
    values: dict[str, list[list[float]]] = {fact.placement: [[] for _ in range(depth)] for fact in data.placements}
    for row in data.rows:
        if (row.depth, row.group, row.metric, row.stage) == (depth, group, metric, "init") and row.layer is not None:
            value = row.value if row.value > 0 and math.isfinite(row.value) else math.nan
            values[row.placement][row.layer].append(value)
    return values


def _draw_curves(axes: Axes, values: Mapping[str, Sequence[Sequence[float]]]) -> None:
    if any(value > 0 for blocks in values.values() for seeds in blocks for value in seeds):
        axes.set_yscale("log")
    for i, (placement, blocks) in enumerate(values.items()):
        colour, dashes = _COLOURS[i % len(_COLOURS)], _DASHES[i // len(_COLOURS) % len(_DASHES)]
        where = range(len(blocks))
        middle = [math.exp(math.fsum(map(math.log, seeds)) / len(seeds)) for seeds in blocks]
        axes.plot(where, middle, dashes, color=colour, lw=1.4, label=placement)
        axes.fill_between(where, [*map(min, blocks)], [*map(max, blocks)], color=colour, alpha=0.15, lw=0)
