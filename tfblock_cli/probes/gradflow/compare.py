"""run: every placement, at every depth, with every seed, from the same weights and the same input."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

from tfblock_cli.account.memory import comparison_bytes
from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.modules.initialization import Memo
from tfblock_cli.probes.gradflow import facts, guards
from tfblock_cli.probes.gradflow.cell import Model, Seen, measure_all
from tfblock_cli.probes.gradflow.expect import judge
from tfblock_cli.probes.gradflow.metrics import metrics, slopes, summarize
from tfblock_cli.probes.gradflow.statistics import Values
from tfblock_cli.probes.gradflow.training.cells import Executors, Finished
from tfblock_cli.probes.gradflow.training.stage import Variants, expect_memory, expect_text, summary, train
from tfblock_cli.probes.room import require
from tfblock_cli.results.gradflow import GradflowData, Row, Summary
from tfblock_cli.results.metrics import SLOPE
from tfblock_cli.results.progress import NoProgress, Progress
from tfblock_cli.results.result import Result
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.model import brought_inner_norm
from tfblock_cli.spec.norm_placement import Placement


def run(
    experiment: Experiment,
    *,
    progress: Progress | None = None,
    jobs: int = 1,
    executors: Executors | None = None,
    finished: Finished | None = None,
) -> Result[GradflowData]:
    """Compare the placements of [gradflow].

    For each seed the weights are drawn once, by parameter name, and every placement gets the same ones (times its
    own gains), the same input and the same loss. Unless the file says otherwise, a placement whose residual stream is
    un-normalised gets a final norm, and one that ends in a norm gets none.

    Args:
        experiment: With its [gradflow].
        progress: Told about every cell, and about every step of training.
        jobs: How many training runs at once; the numbers are the same for any.
        executors: What runs them: from a number of workers to an executor as ``concurrent.futures`` has it.
        finished: Training runs of an earlier call, which are not run again; those of this call are added.

    Raises:
        BadInput: The memory does not suffice, the device has no numbers, or the text of [gradflow.train] does not fit.
    """
    if experiment.device == "meta":
        raise BadInput(Problem("device", "there are no numbers on the device meta, and a gradient is one"))
    settings = experiment.gradflow
    learned = expect_text(experiment) if settings.train.steps else None  # asked for before anything runs
    progress = progress or NoProgress()
    seeds = range(experiment.seed, experiment.seed + settings.seeds)
    variants: Variants = {
        (placement.kind, depth): variant_of(experiment, placement, depth)
        for depth, placement in product(settings.depths, settings.placements)
    }
    most = max(settings.depths)
    deepest: dict[str, Experiment] = {kind: variants[kind, most] for kind, depth in variants if depth == most}
    need = comparison_bytes([*deepest.values()]) + Memo.ROOM
    require(need, experiment.device, f"a backward pass through {most} layers")
    if learned is not None:
        expect_memory(variants, jobs)
    progress.start("gradflow", 2 * len(variants) * len(seeds))
    with _no_collector():
        cells = _cells(variants, seeds, progress)
    progress.stop()
    found = tuple(guards.guards(experiment, cells, deepest))
    against = ", ".join(guard.name for guard in found if guard.placements and not guard.allowed)
    trained = None
    if learned is not None and not against:  # what cannot answer need not train for minutes first
        trained = train(
            experiment,
            variants,
            learned,
            progress=progress,
            finished={} if finished is None else finished,
            jobs=jobs,
            executors=executors,
        )
    with _no_collector():
        table = _Table(cells, has_vocabulary=experiment.model.vocab_size > 0)
        untrained = f"nothing was trained, since the comparison cannot answer: {against}"
        return Result(
            command="gradflow",
            data=GradflowData(
                loss=settings.loss,
                baseline=settings.baseline,
                placements=tuple(facts.facts(variant, experiment.model) for variant in deepest.values()),
                depths=settings.depths,
                seeds=tuple(seeds),
                guards=found,
                forwards=2 * len(cells) + (trained.cost("forwards") if trained else 0),
                vjps=len(cells) + (trained.cost("vjps") if trained else 0),
                rows=(*table.rows(), *(trained.rows() if trained else ())),
                summary=tuple(table.summaries(settings.baseline)),
                training=summary(experiment, trained) if trained else None,
            ),
            checks=(
                *guards.checks(found),
                *(trained.checks() if trained else ()),
                *judge(settings, table, trained, invalid=against),
            ),
            warnings=(
                *guards.warnings(found),
                *facts.warnings(experiment),
                *([untrained] if learned is not None and against else ()),
            ),
            experiment=experiment.model_dump(),
        )


def variant_of(experiment: Experiment, placement: Placement, depth: int) -> Experiment:
    """The experiment of the cells of one placement at one depth."""
    model = experiment.model
    # the placement compared is that of every layer; facts.warnings tells of the overrides that give way
    layers = [override.model_dump() | {"norm_placement": {}} for override in model.layers]
    changes = {"norm_placement": placement.model_dump(), "n_layers": depth, "layers": layers}
    # part of the method, as gains are: what the file's placement brought goes with it; what the file has else is left
    brought = brought_inner_norm(model.norm, model.norm_placement)
    brings = brought_inner_norm(model.norm, placement).model_dump()
    for name, part in (("attention", model.attention), ("ffn", model.ffn)):
        if part.inner_norm == brought:
            changes[name] = part.model_dump() | {"inner_norm": brings}
    return experiment.model_copy(update={"model": model.changed(**changes)})


@contextmanager
def _no_collector() -> Iterator[None]:
    """Leave all to reference counts: there are no cycles to find, and who looks for them walks through all of torch."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _cells(variants: Variants, seeds: Iterable[int], progress: Progress) -> guards.Cells:
    """Every variant with every seed. The models of one depth are in memory together, and are built once."""
    found: dict[tuple[str, int, int], Seen] = {}
    for depth in dict.fromkeys(depth for _, depth in variants):
        of_depth = {place: variant for place, variant in variants.items() if place[1] == depth}
        models = _models(of_depth.values())
        for seed in seeds:
            seen = measure_all(models, seed, Memo(), progress.advance)
            found |= {(kind, depth, seed): cell for (kind, _), cell in zip(of_depth, seen, strict=True)}
    return {(kind, depth, seed): found[kind, depth, seed] for seed in seeds for kind, depth in variants}


def _models(variants: Iterable[Experiment]) -> list[Model]:
    """One each; those that can share weights are built around the same ones."""
    first: dict[Any, Model] = {}
    models = []
    for variant in variants:
        model = Model(variant, first.get(variant.model.shared_weights))
        first.setdefault(variant.model.shared_weights, model)
        models.append(model)
    return models


class _Table:
    """The cells as rows, as values per metric, and as summaries over the seeds."""

    def __init__(self, cells: guards.Cells, *, has_vocabulary: bool) -> None:
        self.cells = cells
        self.source = "embedding" if has_vocabulary else "input"
        self.found: dict[tuple[str, int, str], dict[int, float]] = {}
        for (kind, depth, seed), seen in cells.items():
            for metric, value in metrics(seen, has_vocabulary=has_vocabulary).items():
                self.found.setdefault((kind, depth, metric), {})[seed] = value
        depths = {depth for _, depth, _ in cells}
        if len(depths) > 1:
            for kind, metric in dict.fromkeys((kind, metric) for kind, _, metric in self.found if metric != "loss"):
                over = {depth: self.found[kind, depth, metric] for depth in depths}
                self.found[kind, 0, f"{SLOPE}{metric}"] = slopes(over)

    def values(self, placement: str, depth: int, metric: str) -> Values:
        """One metric of one placement at one depth (0: a slope over all of them), seed by seed."""
        return self.found[placement, depth, metric]

    def is_finite(self, placement: str, depth: int) -> bool:
        """Whether every loss, gradient and stream of one placement is, at one depth (0: at all of them)."""
        return all(
            seen.is_finite for (kind, at, _), seen in self.cells.items() if kind == placement and depth in (0, at)
        )

    def summaries(self, baseline: str) -> Iterator[Summary]:
        """Every metric of every placement at every depth, then the slopes."""
        for (placement, depth, metric), values in self.found.items():
            under = None if placement == baseline else self.values(baseline, depth, metric)
            yield summarize(placement, depth, metric, values, under)

    def rows(self) -> Iterator[Row]:
        """Every number that was measured, long format."""
        for (placement, depth, seed), seen in self.cells.items():
            row = partial(Row, placement, seed, depth, "init", 0)
            yield row(None, "model", "loss", seen.loss)
            yield row(None, self.source, "grad_norm", seen.source)
            if seen.head is not None:
                yield row(None, "head", "grad_norm", seen.head)
            yield row(None, "embedded", "grad_norm", seen.embedded)
            yield row(None, "model", "noise_response", seen.noise)
            for layer, groups in enumerate(seen.groups):
                yield row(layer, "block", "grad_norm", seen.blocks[layer])
                for group, norm in groups.items():
                    yield row(layer, group, "grad_norm", norm)
                yield row(layer, "hidden", "grad_norm", seen.hidden[layer])
                yield row(layer, "residual", "rms", seen.rms[layer])
                yield row(layer, "residual", "cosine", seen.cosine[layer])
