"""Write to stdout and stderr so that a reader who has gone changes nothing: no traceback, no other exit code."""

import os
import sys
from typing import TYPE_CHECKING, TextIO

from tfblock_cli.errors import NotSaved

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def open_missing() -> None:
    """A stream that was closed before we started (``>&-``) swallows what is written to it."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def show(console: "Console", report: "RenderableType") -> None:
    """Print a report on stdout.

    Raises:
        NotSaved: It cannot be written for another reason than a closed pipe: a full disk.
    """
    try:
        console.print(report)
    except SystemExit as leaving:
        if not reader_has_gone(leaving):
            raise
    except OSError as error:
        _discard(sys.stdout)
        raise _unwritable(error) from error


def reader_has_gone(leaving: SystemExit) -> bool:
    """Whether Rich or Typer want to leave since stdout is a closed pipe; they print to nowhere from then on."""
    return isinstance(leaving.__context__, BrokenPipeError)


def write_json(text: str) -> None:
    """Write to stdout, byte for byte as in ``result.json``: UTF-8 and line feeds wherever we run.

    Raises:
        NotSaved: As for ``show``.
    """
    _write(sys.stdout, text.encode("utf-8"))


def note(text: str) -> None:
    """Write one line to stderr."""
    _write(sys.stderr, f"{text}\n".encode(sys.stderr.encoding or "utf-8", "backslashreplace"))


def flush() -> None:
    """Write out what others have left in the buffers, since Python's own attempt at exit would complain."""
    _write(sys.stdout, b"")
    _write(sys.stderr, b"")


def _write(stream: TextIO, content: bytes) -> None:
    try:
        stream.flush()
        stream.buffer.write(content)
        stream.buffer.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as error:
        _discard(stream)
        if stream is sys.stdout:
            raise _unwritable(error) from error


def _unwritable(error: OSError) -> NotSaved:
    return NotSaved(f"stdout could not be written: {error.strerror or error}")


def _discard(stream: TextIO) -> None:
    """Send what is left in the buffer, and all that follows, to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
