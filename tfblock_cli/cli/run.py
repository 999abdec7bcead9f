"""Answer a request: load, measure, show, keep. The same for every command."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from tfblock_cli.cli import exit_codes
from tfblock_cli.cli.exit_codes import ExitCode
from tfblock_cli.cli.files import expect_runs_dir
from tfblock_cli.cli.options import Request
from tfblock_cli.cli.streams import note, show, write_json
from tfblock_cli.errors import BadInput, NotSaved, Problem
from tfblock_cli.loading import Loaded, load, load_any, resolved_toml, sha256
from tfblock_cli.results.progress import Progress
from tfblock_cli.results.result import Result
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.target import AnyExperiment

if TYPE_CHECKING:
    from rich.console import Console

Asked = TypeVar("Asked", bound=AnyExperiment)
Measure = Callable[[Asked, Progress], Result[Any]]


def load_all(request: Request) -> list[Loaded[Experiment]]:
    """Every experiment of the request, before anything runs.

    Raises:
        BadInput: With the faults of all of them; or their results cannot be kept.
    """
    return _all(request, load)


def load_all_and_targets(request: Request, *, trust: bool) -> list[Loaded[AnyExperiment]]:
    """The same, where some may be about a target; ``trust``: also one that a file names."""
    return _all(request, partial(load_any, trust=trust))


def _all(request: Request, read: Callable[..., Loaded[Asked]]) -> list[Loaded[Asked]]:
    loaded: list[Loaded[Asked]] = []
    problems: list[Problem] = []
    for source in request.experiments or (None,):
        try:
            loaded.append(read(source, flags=request.flags, sets=request.sets or (), defaults=request.presets))
        except BadInput as error:
            problems += error.problems
    try:
        expect_runs_dir(request)
    except BadInput as error:
        problems += error.problems
    if problems:
        raise BadInput(*dict.fromkeys(problems))  # a bad flag is told once, not once per experiment
    return loaded


def answer(
    request: Request,
    command: str,
    measure: Measure[Asked],
    experiments: Sequence[Loaded[Asked]],
    *,
    all_layers: bool = False,
    saved: Callable[[Asked], object] = lambda _: None,
) -> None:
    """Measure each experiment, show and keep what was found, and leave with the worst exit code.

    ``all_layers``: the report shows every layer. ``saved`` is told of every experiment whose result is safe.

    Raises:
        typer.Exit: With the largest of 3, 1 and 0 over the experiments.
    """
    from tfblock_cli.report.terminal.console import make_consoles
    from tfblock_cli.store.record import dumps

    consoles = make_consoles(request.quiet)
    records = [
        _run(request, command, measure, loaded, *consoles, all_layers=all_layers, saved=saved) for loaded in experiments
    ]
    if request.json:
        write_json(dumps(records if len(records) > 1 else records[0]))
    raise typer.Exit(max(record["run"]["exit_code"] for record in records))


def _run(
    request: Request,
    command: str,
    measure: Measure[Asked],
    loaded: Loaded[Asked],
    stdout: "Console",
    stderr: "Console",
    *,
    all_layers: bool,
    saved: Callable[[Asked], object],
) -> dict[str, Any]:
    """One experiment; its record as it was saved."""
    from tfblock_cli.provenance import collect
    from tfblock_cli.report.terminal import render, to_text
    from tfblock_cli.report.terminal.progress import TerminalProgress
    from tfblock_cli.store.record import Run, make, with_id
    from tfblock_cli.store.write import run_id, save

    experiment, started_at, start = loaded.experiment, datetime.now(UTC), time.perf_counter()
    stderr.quiet = request.quiet
    with TerminalProgress(stderr) as progress:
        found = measure(experiment, progress)
    result = replace(found, warnings=(*loaded.warnings, *found.warnings))
    fingerprint = sha256(experiment)
    run = Run(
        id=run_id(started_at, command, experiment.name, fingerprint),
        started_at=started_at,
        duration_s=round(time.perf_counter() - start, 3),
        argv=("tfblock", *sys.argv[1:]),
        exit_code=exit_codes.of(result.verdict, has_warnings=bool(result.warnings), strict=request.strict),
    )
    provenance = collect(
        experiment_sha256=fingerprint,
        source=loaded.source,
        device=experiment.device,
        threads=experiment.threads,
    )
    record = make(result, run=run, provenance=provenance)
    if request.json:
        for warning in () if request.quiet else result.warnings:
            note(f"warning: {warning}")
    elif not request.quiet:
        show(stdout, render(result, all_layers=all_layers))
    if request.no_save:
        return record
    shown = stdout.export_text()  # empty where nothing was: the screen is rendered once, since that takes a while
    try:
        folder = save(
            record,
            runs_dir=request.runs_dir,
            experiment_toml=resolved_toml(experiment),
            report=shown or to_text(result, all_layers=all_layers),
        )
    except NotSaved as error:  # told here: what was found is still shown, and so are the other experiments
        note(f"error: {error}")
        return make(result, run=replace(run, exit_code=ExitCode.NO_ANSWER), provenance=provenance)
    saved(experiment)
    if not request.quiet:
        note(f"saved {folder}")
    return with_id(record, folder.name)
