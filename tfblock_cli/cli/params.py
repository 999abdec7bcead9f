"""tfblock params."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tfblock_cli import api
from tfblock_cli.cli.options import Request, with_shared_options
from tfblock_cli.cli.run import answer, load_all
from tfblock_cli.cli.streams import note
from tfblock_cli.errors import BadInput, NotSaved, Problem
from tfblock_cli.loading import to_toml

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
        if write_experiment.exists() and not force:
            raise BadInput(Problem(_WRITE, f"{write_experiment} is there already; --force replaces it"))
        _write_whole(write_experiment, to_toml(experiments[0].written))
        if not request.quiet:
            note(f"wrote {write_experiment}")
    answer(request, "params", lambda experiment, _: api.params(experiment, verify=verify), experiments)


def _write_whole(file: Path, text: str) -> None:
    """Under another name first: whoever reads the file, whenever, finds all of it or nothing."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise NotSaved(f"{_WRITE}: {file} could not be written: {error.strerror or error}") from error
