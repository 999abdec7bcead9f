"""Prints: what foreign code writes to stdout goes to stderr, for stdout is the report's."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from threading import current_thread, main_thread
from typing import TextIO

STDOUT, STDERR = 1, 2
"""File descriptors, which programs that are started and code in C write to."""


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """While it lasts, what is printed and what is written past ``sys.stdout`` goes to stderr; then all is as it was.

    What is written past it stays where it is in a thread (another one's output would be led astray) and where file
    descriptor 1 is not the process's stdout.
    """
    with _descriptor_to_stderr(), redirect_stdout(sys.stderr):
        yield


@contextmanager
def _descriptor_to_stderr() -> Iterator[None]:
    """File descriptor 1 is a copy of 2 for a while; of nowhere where 2 is not stderr."""
    saved = None
    if current_thread() is main_thread() and _is(sys.__stdout__, STDOUT):
        _flush()  # what is still ours
        with suppress(OSError):
            saved = os.dup(STDOUT)
    if saved is None:
        yield
        return
    try:
        with suppress(OSError):
            _replace_stdout()
        yield
    finally:
        _flush()  # what is still theirs
        os.dup2(saved, STDOUT)
        os.close(saved)


def _replace_stdout() -> None:
    if _is(sys.__stderr__, STDERR):
        os.dup2(STDERR, STDOUT)
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT)
    os.close(nowhere)


def _is(stream: TextIO | None, descriptor: int) -> bool:
    """Whether a stream is open and writes to it. One that was closed before we started is None, its number anything."""
    try:
        return stream is not None and stream.fileno() == descriptor and bool(os.fstat(descriptor))
    except (OSError, ValueError, AttributeError):
        return False


def _flush() -> None:
    """Write out what waits in Python's buffers and in C's, which would otherwise come out at the wrong time."""
    for stream in (sys.stdout, sys.__stdout__):
        with suppress(OSError, ValueError, AttributeError):  # closed, or its reader has gone: told when we write
            if stream is not None:
                stream.flush()
    with suppress(ImportError, OSError, AttributeError, TypeError):  # Windows names no library
        from ctypes import CDLL

        CDLL(None).fflush(None)
