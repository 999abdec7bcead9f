"""Pictures in files. The only place that knows matplotlib, which is an extra: ``pip install 'tfblock[plot]'``."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from tfblock_cli.errors import NotSaved
from tfblock_cli.results.causality import CausalityData
from tfblock_cli.results.gradflow import GradflowData
from tfblock_cli.results.target_gradflow import TargetGradflowData
from tfblock_cli.results.training import Condition

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


_AGAINST_LAYER = (
    ("gradient norm of the layer", "block", "grad_norm"),
    ("rms of what the layer puts out", "residual", "rms"),
)


def _style() -> AbstractContextManager[None]:
    return rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "tfblock"})


def draw_gradflow(data: GradflowData, file: Path) -> None:
    """Gradient norm and residual rms against the block: a row per depth, a band from the smallest to the largest seed.

    Below them, where there was training, the loss against the step, for every depth, learning rate and warmup.

    Args:
        data: With its rows.
        file: Ends in .png, .svg or .pdf; the same numbers give the same bytes.

    Raises:
        NotSaved: The file cannot be written.
    """
    with _style():
        conditions = data.training.conditions if data.training else ()
        rows = len(data.depths) + math.ceil(len(conditions) / len(_AGAINST_BLOCK))
        figure = Figure(figsize=(7.0, 2.4 * rows + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, len(_AGAINST_BLOCK), squeeze=False)
        for depth, row in zip(data.depths, grid, strict=False):
            for (title, group, metric), axes in zip(_AGAINST_BLOCK, row, strict=True):
                axes.set(xlabel="block", ylabel=title, title=f"{depth} blocks")
                _draw_curves(axes, _by_block(data, depth, group, metric))
        below = [axes for row in grid[len(data.depths) :] for axes in row]
        for condition, axes in zip(conditions, below, strict=False):
            _draw_losses(axes, data, condition)
        for axes in below[len(conditions) :]:
            axes.set_axis_off()
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
        _save(figure, file)


def draw_layers(data: TargetGradflowData, file: Path) -> None:
    """Gradient norm of every layer of a target, and rms of what it puts out.

    Args:
        data: With its rows, of one layer or more.
        file: As for ``draw_gradflow``.

    Raises:
        NotSaved: The file cannot be written.
    """
    with _style():
        figure = Figure(figsize=(7.0, 2.9), layout="constrained")
        FigureCanvasAgg(figure)
        for (title, group, metric), axes in zip(_AGAINST_LAYER, figure.subplots(1, len(_AGAINST_LAYER)), strict=True):
            axes.set(xlabel="layer", ylabel=title)
            axes.xaxis.get_major_locator().set_params(integer=True)
            by_layer: list[list[float]] = [[] for _ in range(data.depth)]
            for row in data.rows:
                if (row.group, row.metric) == (group, metric) and row.layer is not None:
                    by_layer[row.layer].append(row.value if row.value > 0 and math.isfinite(row.value) else math.nan)
            _draw_curves(axes, {"": [values or [math.nan] for values in by_layer]})
        _save(figure, file)


def _save(figure: Figure, file: Path) -> None:
    try:
        figure.savefig(file, dpi=200, metadata=_UNDATED[file.suffix.lower()])
    except OSError as error:
        raise NotSaved(f"the picture was not written: {error.strerror or error}") from error


def _draw_losses(axes: Axes, data: GradflowData, condition: Condition) -> None:
    """One curve per placement, and the entropies between which a network learns."""
    assert data.training is not None
    axes.set(xlabel="step", ylabel="training loss (nats)", title=condition.words)
    for entropy, name in (
        (data.training.unigram_loss, "frequencies alone"),
        (data.training.bigram_entropy, "bigram entropy"),
    ):
        axes.axhline(entropy, color="0.6", lw=0.8, ls=":")
        axes.annotate(name, (0.01, entropy), xycoords=("axes fraction", "data"), va="bottom", color="0.4")
    for i, fact in enumerate(data.placements):
        by_step = data.losses(fact.placement, condition)
        means = [math.fsum(seeds) / len(seeds) for seeds in by_step.values()]
        _draw(axes, i, fact.placement, [*by_step], means, [*by_step.values()])


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
        middle = [math.exp(math.fsum(map(math.log, seeds)) / len(seeds)) for seeds in blocks]
        _draw(axes, i, placement, range(len(blocks)), middle, blocks)


def _draw(
    axes: Axes, i: int, name: str, where: Sequence[int], middle: Sequence[float], spread: Sequence[Sequence[float]]
) -> None:
    """Curve number i, with a band from the smallest to the largest value."""
    colour, dashes = _COLOURS[i % len(_COLOURS)], _DASHES[i // len(_COLOURS) % len(_DASHES)]
    axes.plot(where, middle, dashes, color=colour, lw=1.4, label=name)
    axes.fill_between(where, [*map(min, spread)], [*map(max, spread)], color=colour, alpha=0.15, lw=0)
