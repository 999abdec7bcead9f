"""tfblock causality."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfblock_cli import api
from tfblock_cli.cli.files import PLOT, expect_apart, expect_picture, expect_runs_dir
from tfblock_cli.cli.options import CAUSALITY, TARGET, TRUST, Request, with_shared_options
from tfblock_cli.cli.run import answer, load_all_and_targets
from tfblock_cli.cli.streams import note
from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.loading import Flag, load
from tfblock_cli.results.progress import Progress
from tfblock_cli.spec.target import AnyExperiment

if TYPE_CHECKING:
    from tfblock_cli.results.causality import CausalityData
    from tfblock_cli.results.result import Result

_SELF_TEST = "--self-test"
_PICTURES = (".png", ".svg")


@with_shared_options(*TARGET, *CAUSALITY)
def causality(
    request: Request,
    trust: TRUST = False,
    self_test: Annotated[
        bool,
        typer.Option(
            _SELF_TEST,
            help="Check the checker on models whose causality is known, not an experiment; exit code 3 if it is wrong.",
            rich_help_panel="Causality",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            PLOT,
            metavar="FILE",
            help="Draw which output depends on which input: a .png or .svg (extra: plot).",
            rich_help_panel="Output",
        ),
    ] = None,
) -> None:
    """Does any output see the future? Every cut is tried; one leaking pair is exit code 1."""
    if plot is not None:
        _expect_drawable(plot, request, self_test=self_test)
    if self_test:
        _self_test(request)
    answer(
        request,
        "causality",
        lambda experiment, progress: _measure(experiment, progress, plot, quiet=request.quiet),
        load_all_and_targets(request, trust=trust),
    )


def _self_test(request: Request) -> None:
    if request.experiments:
        raise BadInput(Problem(_SELF_TEST, "asks no experiment: leave it out"))
    expect_runs_dir(request)
    sizes = {"model.d_model": 8, "model.attention.n_heads": 2, "model.vocab_size": 0, "input.seq_len": 12}
    flags = (Flag(_SELF_TEST, "name", "self_test"), *request.flags)
    loaded = load(None, flags=flags, sets=request.sets or (), defaults=sizes)
    answer(request, "causality", lambda experiment, progress: api.self_test(experiment, progress=progress), [loaded])


def _measure(
    experiment: AnyExperiment, progress: Progress, plot: Path | None, *, quiet: bool
) -> "Result[CausalityData]":
    result = api.causality(experiment, progress=progress)
    if plot is not None:
        from tfblock_cli.report.plot import draw_influence

        drawn = draw_influence(result.data, plot, title=experiment.name)
        if not quiet:
            note(f"wrote {plot}" if drawn else f"{PLOT}: there is no gradient map, so {plot} was not written")
    return result


def _expect_drawable(plot: Path, request: Request, *, self_test: bool) -> None:
    if self_test:
        raise BadInput(Problem(PLOT, "draws one experiment"))
    expect_picture(plot, _PICTURES, len(request.experiments or ()))
    expect_apart(request, {PLOT: plot}, read=request.experiments)
