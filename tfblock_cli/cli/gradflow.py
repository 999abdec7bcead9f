"""tfblock gradflow."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfblock_cli import api
from tfblock_cli.cli.files import PLOT, expect_apart, expect_picture, expect_room
from tfblock_cli.cli.options import GRADFLOW, TARGET, TRUST, Request, with_shared_options
from tfblock_cli.cli.run import answer, load_all_and_targets
from tfblock_cli.cli.streams import note, show
from tfblock_cli.errors import BadInput, NotSaved, Problem
from tfblock_cli.loading import Loaded
from tfblock_cli.results.metrics import TRAINED
from tfblock_cli.results.progress import Progress
from tfblock_cli.results.result import Result
from tfblock_cli.spec.target import AnyExperiment, TargetExperiment
from tfblock_cli.store.whole import write_whole

if TYPE_CHECKING:
    from tfblock_cli.store.partial import Partial

_PICTURES = (".png", ".svg", ".pdf")
_option = partial(typer.Option, rich_help_panel="Output", metavar="FILE")
_run = partial(typer.Option, rich_help_panel="Gradient flow")


@with_shared_options(*TARGET, *GRADFLOW)
def gradflow(
    request: Request,
    trust: TRUST = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="METRIC", help="What a metric is, its formula and its source; then stop."),
    ] = None,
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Show every group of every layer.", rich_help_panel="Output")
    ] = False,
    jobs: Annotated[
        int, _run("--jobs", metavar="N", min=1, max=1024, help="Training runs at once, each in a process of its own.")
    ] = 1,
    quick: Annotated[
        bool, _run("--quick", help="Train with the first seed and the first learning rate only, as in CI.")
    ] = False,
    csv: Annotated[Path | None, _option("--csv", help="Write every number in long format.")] = None,
    junit_xml: Annotated[Path | None, _option("--junit-xml", help="Write the checks as CI servers read them.")] = None,
    plot: Annotated[
        Path | None, _option(PLOT, help="Draw gradient norm and rms against the block: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """How do gradients flow under different norm placements, at equal weights and inputs?"""
    if explain is not None:
        _explain(explain)
        return
    experiments = load_all_and_targets(request, trust=trust)
    if quick:
        experiments = [*map(_quick, experiments)]
    if plot is not None:
        expect_picture(plot, _PICTURES, len(experiments))
    for flag, file in (("--csv", csv), ("--junit-xml", junit_xml)):
        if file is not None:
            expect_room(flag, file)
    expect_apart(request, {"--csv": csv, "--junit-xml": junit_xml, PLOT: plot}, read=request.experiments)
    _expect_texts([loaded.experiment for loaded in experiments])
    results: list[Result[Any]] = []

    def measure(experiment: AnyExperiment, progress: Progress) -> Result[Any]:
        finished = None if request.no_save else _partial(request, experiment)
        drawn = plot is not None
        results.append(api.gradflow(experiment, jobs=jobs, finished=finished, needs_layers=drawn, progress=progress))
        return results[-1]

    def forget(experiment: AnyExperiment) -> None:
        _partial(request, experiment).remove()

    try:
        answer(request, "gradflow", measure, experiments, all_layers=all_layers, saved=forget)
    finally:  # it ends by telling the exit code
        if len(results) == len(experiments):
            files: Files = {
                "--csv": (csv, _write_csv),
                "--junit-xml": (junit_xml, _write_junit),
                PLOT: (plot, _draw),
            }
            _export(request, files, results)


def _expect_texts(experiments: Sequence[AnyExperiment]) -> None:
    """Raise BadInput, before the first one runs, for every text that cannot be had or learned."""
    trained = [one for one in experiments if not isinstance(one, TargetExperiment) and one.gradflow.train.steps]
    if not trained:
        return
    from tfblock_cli.probes.gradflow.training import expect_text

    problems: list[Problem] = []
    for experiment in trained:
        try:
            expect_text(experiment)
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*dict.fromkeys(problems))


def _partial(request: Request, experiment: AnyExperiment) -> "Partial":
    """Its training runs that a killed process left."""
    from tfblock_cli.loading import sha256
    from tfblock_cli.store.partial import Partial

    return Partial(request.runs_dir, sha256(experiment))


def _quick(loaded: Loaded[AnyExperiment]) -> Loaded[AnyExperiment]:
    """The same with one learning rate and one seed of training, and without the expectations that want more."""
    experiment = loaded.experiment
    if isinstance(experiment, TargetExperiment) or not experiment.gradflow.train.steps:
        return replace(loaded, warnings=(*loaded.warnings, "--quick: nothing is trained, so nothing is shorter"))
    settings, train = experiment.gradflow, experiment.gradflow.train
    lr = train.lr[0]
    expect = tuple(
        one for one in settings.expect if one.metric not in TRAINED or (one.lr in ("all", lr) and one.mode == "all")
    )
    short = settings.model_copy(update={"train": train.model_copy(update={"lr": (lr,), "seeds": 1}), "expect": expect})
    left_out = len(settings.expect) - len(expect)
    warning = f"--quick: lr {lr:g} and one seed alone are asked for; expectations left out: {left_out}"
    shorter = experiment.model_copy(update={"gradflow": short})
    return replace(loaded, experiment=shorter, warnings=(*loaded.warnings, warning))


def _explain(name: str) -> None:
    from difflib import get_close_matches

    from tfblock_cli.report.terminal import explain
    from tfblock_cli.report.terminal.console import make_consoles
    from tfblock_cli.results.metrics import METRICS, TRAINED

    try:
        text = explain(name)
    except KeyError:
        close = get_close_matches(name, (*METRICS, *TRAINED), 1)
        known = f"there are {', '.join(METRICS)}, slope. with one of them, and {', '.join(TRAINED)}"
        hint = f"did you mean {close[0]}?" if close else known
        raise BadInput(Problem(f"--explain {name}", f"no such metric; {hint}")) from None
    show(make_consoles(quiet=False)[0], text)


Files = dict[str, tuple[Path | None, Callable[[Path, list[Result[Any]]], None]]]
"""By flag: the file, if it is wanted, and what writes it."""


def _export(request: Request, asked: Files, results: list[Result[Any]]) -> None:
    for flag, (file, write) in asked.items():
        if file is None:
            continue
        try:
            write(file, results)
        except OSError as error:
            raise NotSaved(f"{flag}: {file} could not be written: {error.strerror or error}") from error
        if not request.quiet:
            note(f"wrote {file}")


def _write_csv(file: Path, results: list[Result[Any]]) -> None:
    from tfblock_cli.report.long_format import to_csv

    write_whole(file, to_csv(results))


def _write_junit(file: Path, results: list[Result[Any]]) -> None:
    from tfblock_cli.report.junit import to_junit

    write_whole(file, to_junit(results))


def _draw(file: Path, results: list[Result[Any]]) -> None:
    from tfblock_cli.report.plot import draw_gradflow, draw_layers
    from tfblock_cli.results.target_gradflow import TargetGradflowData

    if isinstance(data := results[0].data, TargetGradflowData):
        draw_layers(data, file)
    else:
        draw_gradflow(data, file)
