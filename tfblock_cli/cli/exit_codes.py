"""Exit codes: what the caller learns without reading a word. README.md lists them."""

from enum import IntEnum

from tfblock_cli.results.result import Verdict


class ExitCode(IntEnum):
    """What the process ends with."""

    OK = 0
    """Everything that was checked holds, or nothing was to be checked."""
    CHECK_FAILED = 1
    """A check failed; with --strict also: there are warnings."""
    USAGE = 2
    """A bad option or experiment: nothing ran, nothing was saved."""
    NO_ANSWER = 3
    """The question could not be answered: inconclusive, an internal error, or a result that was not saved."""
    INTERRUPTED = 130
    """Ctrl-C: 128 + SIGINT, as shells have it."""


_OF_VERDICT: dict[Verdict, ExitCode] = {
    "pass": ExitCode.OK,
    "none": ExitCode.OK,
    "fail": ExitCode.CHECK_FAILED,
    "inconclusive": ExitCode.NO_ANSWER,
}


def of(verdict: Verdict, *, has_warnings: bool, strict: bool) -> ExitCode:
    """The exit code of one run. ``strict`` makes a warning a failure; it does not hide a worse code."""
    code = _OF_VERDICT[verdict]
    return ExitCode.CHECK_FAILED if code == ExitCode.OK and strict and has_warnings else code
