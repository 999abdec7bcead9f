"""tfblock params."""

from pathlib import Path
from typing import Annotated

import typer

from tfblock_cli import api
from tfblock_cli.cli.files import expect_apart, expect_room
from tfblock_cli.cli.options import Request, with_shared_options
from tfblock_cli.cli.run import answer, load_all
from tfblock_cli.cli.streams import note
from tfblock_cli.errors import BadInput, NotSaved, Problem
from tfblock_cli.loading import to_toml
from tfblock_cli.store.whole import write_whole

_WRITE = "--write-experiment"


@with_shared_options()
def params(
    request: Request,
    verify: Annotated[
        bool, typer.Option("--verify", help="Build the model without memory and compare it name by name.")
    ] = False,
    write_experiment: Annotated[
        Path | None,
        typer.Option(_WRITE, metavar="FILE", help="Write what was asked as an experiment file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=f"Let {_WRITE} replace a file that is there.")] = False,
) -> None:
    """How many parameters, FLOPs and bytes? Exact, per component and layer, without torch."""
    experiments = load_all(request)
    if write_experiment is not None:
        if len(experiments) > 1:
            raise BadInput(Problem(_WRITE, f"writes one experiment, not {len(experiments)}"))
        expect_room(_WRITE, write_experiment)
        expect_apart(request, {_WRITE: write_experiment})  # its own experiment --force may replace
        if write_experiment.exists() and not force:
            raise BadInput(Problem(_WRITE, f"{write_experiment} is there already; --force replaces it"))
        try:
            write_whole(write_experiment, to_toml(experiments[0].written))
        except OSError as error:
            reason = error.strerror or error
            raise NotSaved(f"{_WRITE}: {write_experiment} could not be written: {reason}") from error
        if not request.quiet:
            note(f"wrote {write_experiment}")
    answer(request, "params", lambda experiment, _: api.params(experiment, verify=verify), experiments)
