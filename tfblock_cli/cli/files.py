"""Files and folders that the user asked for by name: what cannot be written is told before anything runs."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from tfblock_cli.cli.options import RUNS_DIR, Request
from tfblock_cli.errors import BadInput, Problem

PLOT = "--plot"


def expect_runs_dir(request: Request) -> None:
    """Raise BadInput, before anything runs, unless results can be kept where they shall be; nothing is made yet."""
    if request.no_save:
        return
    folder = request.runs_dir  # save makes it, and those above it
    there = next(filter(os.path.lexists, (folder, *folder.parents)), folder)
    where = f"{RUNS_DIR} {folder}"
    if not os.path.isdir(there):  # unlike Path.is_dir it raises nothing where we may not look
        raise BadInput(Problem(where, f"{there} is not a folder"))
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(Problem(where, f"{there} is not writable"))


def expect_apart(request: Request, files: Mapping[str, Path | None], *, read: Sequence[str] | None = ()) -> None:
    """Raise BadInput, before anything runs, where a file would be written over another one that was named.

    Args:
        request: With the folder that results are kept in.
        files: To be written, by option; None where it was not given.
        read: Experiments, some of which are files.
    """
    taken = {os.path.realpath(name): f"EXPERIMENT {name}" for name in read or () if os.path.isfile(name)}
    problems = []
    for flag, file in files.items():
        if file is None:
            continue
        where, real = f"{flag} {file}", os.path.realpath(file)
        if real in taken:
            problems.append(Problem(f"{taken[real]} and {where}", "are the same file"))
        elif not request.no_save and Path(os.path.realpath(request.runs_dir)).is_relative_to(real):
            problems.append(Problem(f"{where} and {RUNS_DIR} {request.runs_dir}", f"{file} cannot be both"))
        taken.setdefault(real, where)
    if problems:
        raise BadInput(*problems)


def expect_room(flag: str, file: Path) -> None:
    """Raise BadInput, before anything runs, unless a file can be written there."""
    folder = file.parent
    if not folder.is_dir():
        raise BadInput(Problem(f"{flag} {file}", f"there is no folder {folder}"))
    if file.is_dir():
        raise BadInput(Problem(f"{flag} {file}", "is a folder, not a file"))
    if not os.access(folder, os.W_OK):  # of the file itself too: it is put in the place of one that is there
        raise BadInput(Problem(f"{flag} {file}", f"{folder} is not writable"))


def expect_picture(file: Path, endings: Sequence[str], experiments: int) -> None:
    """Raise BadInput, before anything runs, unless one picture of one experiment can be drawn."""
    if experiments > 1:
        raise BadInput(Problem(PLOT, "draws one experiment"))
    if file.suffix.lower() not in endings:
        raise BadInput(Problem(f"{PLOT} {file}", f"must end in {' or '.join(endings)}"))
    if find_spec("matplotlib") is None:
        raise BadInput(Problem(PLOT, "needs matplotlib, which is not installed: pip install 'tfblock[plot]'"))
    expect_room(PLOT, file)
