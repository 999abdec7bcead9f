"""Files that the user asked for by name."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tfblock_cli.errors import BadInput, Problem

PLOT = "--plot"


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
