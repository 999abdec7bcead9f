"""The two consoles: stdout carries the report, stderr everything else."""

import os
import sys
from io import StringIO, TextIOWrapper
from typing import TextIO

from rich.console import Console, RenderableType

PIPE_WIDTH = 120
MIN_WIDTH = 60  # narrower, a table would have to drop columns; a terminal wraps the line instead


def make_consoles(quiet: bool) -> tuple[Console, Console]:
    """The consoles of stdout and stderr, made once and handed down. ``quiet`` silences the first.

    That of stdout remembers what it printed, so that ``report.txt`` is the screen.

    A terminal gives its own width. Elsewhere the width is COLUMNS, or 120. NO_COLOR and TERM are respected.
    """
    return _console(sys.stdout, stderr=False, quiet=quiet), _console(sys.stderr, stderr=True, quiet=False)


def to_plain(renderable: RenderableType, width: int) -> str:
    """The text of a renderable, ``width`` columns wide, without colour."""
    file = StringIO()
    console = Console(
        file=file,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(renderable)
    return file.getvalue()


def _console(stream: TextIO, *, stderr: bool, quiet: bool) -> Console:
    if isinstance(stream, TextIOWrapper):
        # An experiment's name may hold a letter that the terminal's encoding lacks: show "?", do not crash.
        stream.reconfigure(errors="replace")
    console = Console(stderr=stderr, quiet=quiet, record=not stderr, markup=False, highlight=False, emoji=False)
    columns = os.environ.get("COLUMNS", "")
    if not stream.isatty() and not (columns.isdecimal() and int(columns)):
        console.width = PIPE_WIDTH
    if console.width < MIN_WIDTH:
        console.width = MIN_WIDTH
    return console
