"""run: every placement, at every depth, with every seed, from the same weights and the same input."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from math import isfinite

from tfblock_cli.account.memory import backward_bytes
from tfblock_cli.modules.initialization import Memo
from tfblock_cli.probes.gradflow.cell import Seen, measure
from tfblock_cli.probes.gradflow.expect import judge
from tfblock_cli.probes.gradflow.metrics import Values, metrics, summarize
from tfblock_cli.probes.room import require
from tfblock_cli.results.gradflow import GradflowData, PlacementFacts, Row, Summary
from tfblock_cli.results.progress import NoProgress, Progress
from tfblock_cli.results.result import Check, Result
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.norm_placement import Placement

Cells = dict[tuple[str, int, int], Seen]
"""(placement, depth, seed) to what was seen."""


def run(experiment: Experiment, *, progress: Progress | None = None) -> Result[GradflowData]:
    """Compare the placements of [gradflow].

    For each seed the weights are drawn once, by parameter name, and every placement gets the same ones (times its
    own gains), the same input and the same loss. A placement whose residual stream is un-normalised
    gets a final norm; one that ends in a norm gets none.

    Raises:
        BadInput: The memory does not suffice.
    """
    settings = experiment.gradflow
    progress = progress or NoProgress()
    seeds = range(experiment.seed, experiment.seed + settings.seeds)
    deepest = _variant(experiment, settings.placements[0], max(settings.depths), experiment.seed)
    require(backward_bytes(deepest), experiment.device, f"a backward pass through {max(settings.depths)} layers")
    progress.start("gradflow", len(settings.placements) * len(settings.depths) * len(seeds))
    cells: Cells = {}
    for seed in seeds:
        memo: Memo = {}
        for depth, placement in product(settings.depths, settings.placements):
            cells[placement.kind, depth, seed] = measure(_variant(experiment, placement, depth, seed), memo)
            progress.advance()
    progress.stop()
    table = _Table(cells, has_vocabulary=experiment.model.vocab_size > 0)
    return Result(
        command="gradflow",
        data=GradflowData(
            loss=settings.loss,
            baseline=settings.baseline,
            placements=tuple(
                _facts(_variant(experiment, kind, max(settings.depths), 0)) for kind in settings.placements
            ),
            depths=settings.depths,
            seeds=tuple(seeds),
            rows=tuple(table.rows()),
            summary=tuple(table.summaries(settings.baseline)),
        ),
        checks=(*_finite(cells), *judge(settings, table.values)),
        warnings=tuple(_warnings(experiment)),
        experiment=experiment.model_dump(),
    )


def _variant(experiment: Experiment, placement: Placement, depth: int, seed: int) -> Experiment:
    """The experiment of one cell."""
    model = experiment.model.changed(norm_placement=placement.model_dump(), n_layers=depth, final_norm="auto")
    return experiment.model_copy(update={"model": model, "seed": seed})


def _facts(experiment: Experiment) -> PlacementFacts:
    placement, block = experiment.model.norm_placement, experiment.model.blocks()[0]
    return PlacementFacts(
        placement=placement.kind,
        formula=placement.formula,
        norms_per_block=len(block.norm_names),
        final_norm=placement.final_norm,
    )


def _warnings(experiment: Experiment) -> Iterator[str]:
    if experiment.model.dropout:
        yield f"dropout = {experiment.model.dropout} is switched off: its noise would hide the placements' effect"
    if experiment.model.final_norm != "auto":
        yield (
            f"final_norm = {str(experiment.model.final_norm).lower()} is set aside: a placement whose stream is "
            "un-normalised gets a final norm, the others none, or the comparison would be one of losses"
        )


def _finite(cells: Cells) -> Iterator[Check]:
    """One check per placement: no seed and no depth may give nan or inf."""
    for placement in dict.fromkeys(kind for kind, _, _ in cells):
        broken = [
            f"seed {seed}, {depth} layers"
            for (kind, depth, seed), seen in cells.items()
            if kind == placement and not all(map(isfinite, (seen.loss, seen.source, *seen.blocks, *seen.rms)))
        ]
        yield Check(
            name="finite",
            subject=placement,
            passed=not broken,
            value=len(broken),
            op="==",
            limit=0,
            message=f"nan or inf in {'; '.join(broken)}" if broken else "no nan, no inf",
        )


class _Table:
    """The cells as rows, as values per metric, and as summaries over the seeds."""

    def __init__(self, cells: Cells, *, has_vocabulary: bool) -> None:
        self.cells = cells
        self.source = "embedding" if has_vocabulary else "input"
        self.metrics = {cell: metrics(seen, has_vocabulary=has_vocabulary) for cell, seen in cells.items()}

    def values(self, placement: str, depth: int, metric: str) -> Values:
        """One metric of one placement at one depth, seed by seed."""
        return {
            seed: found[metric]
            for (kind, layers, seed), found in self.metrics.items()
            if kind == placement and layers == depth
        }

    def summaries(self, baseline: str) -> Iterator[Summary]:
        """Every metric of every placement at every depth."""
        for (placement, depth), names in {
            (kind, depth): found for (kind, depth, _), found in self.metrics.items()
        }.items():
            for metric in names:
                under = None if placement == baseline else self.values(baseline, depth, metric)
                yield summarize(placement, depth, metric, self.values(placement, depth, metric), under)

    def rows(self) -> Iterator[Row]:
        """Every number that was measured, long format."""
        for (placement, depth, seed), seen in self.cells.items():
            row = partial(_row, placement, depth, seed)
            yield row("model", "loss", seen.loss)
            yield row(self.source, "grad_norm", seen.source)
            for layer, (grad, rms, cosine) in enumerate(zip(seen.blocks, seen.rms, seen.cosine, strict=True)):
                yield row("block", "grad_norm", grad, layer)
                yield row("residual", "rms", rms, layer)
                yield row("residual", "cosine", cosine, layer)


def _row(placement: str, depth: int, seed: int, group: str, metric: str, value: float, layer: int | None = None) -> Row:
    return Row(
        placement=placement,
        seed=seed,
        depth=depth,
        stage="init",
        step=0,
        layer=layer,
        group=group,
        metric=metric,
        value=value,
    )
