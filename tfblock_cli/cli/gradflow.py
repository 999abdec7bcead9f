"""tfblock gradflow."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tfblock_cli import api
from tfblock_cli.cli.files import PLOT, expect_picture, write_whole
from tfblock_cli.cli.options import GRADFLOW, Request, with_shared_options
from tfblock_cli.cli.run import answer, load_all
from tfblock_cli.cli.streams import note, show
from tfblock_cli.errors import BadInput, NotSaved, Problem
from tfblock_cli.results.progress import Progress
from tfblock_cli.results.result import Result
from tfblock_cli.spec.experiment import Experiment

_PICTURES = (".png", ".svg", ".pdf")
_option = partial(typer.Option, rich_help_panel="Output", metavar="FILE")


@with_shared_options(*GRADFLOW)
def gradflow(
    request: Request,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="METRIC", help="What a metric is, its formula and its source; then stop."),
    ] = None,
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Show every group of every layer.", rich_help_panel="Output")
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
    experiments = load_all(request)
    if plot is not None:
        expect_picture(plot, _PICTURES, len(experiments))
    results: list[Result[Any]] = []

    def measure(experiment: Experiment, progress: Progress) -> Result[Any]:
        results.append(api.gradflow(experiment, progress=progress))
        return results[-1]

    try:
        answer(request, "gradflow", measure, experiments, all_layers=all_layers)
    finally:  # it ends by telling the exit code
        if len(results) == len(experiments):
            files: Files = {
                "--csv": (csv, _write_csv),
                "--junit-xml": (junit_xml, _write_junit),
                PLOT: (plot, _draw),
            }
            _export(request, files, results)


def _explain(name: str) -> None:
    from difflib import get_close_matches

    from tfblock_cli.report.terminal import explain
    from tfblock_cli.report.terminal.console import make_consoles
    from tfblock_cli.results.gradflow import METRICS

    try:
        text = explain(name)
    except KeyError:
        close = get_close_matches(name, METRICS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(METRICS)}, and slope. with one of them"
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
    from tfblock_cli.report.plot import draw_gradflow

    draw_gradflow(results[0].data, file)
