"""The entry point, and the ONE error boundary: an exception becomes a message on stderr and an exit code.

Only what is needed to fail well is imported at the top, so that Ctrl-C during the slow imports ends well too.
"""

import gc
import os
import sys

from tfblock_cli.cli import streams
from tfblock_cli.cli.exit_codes import ExitCode
from tfblock_cli.errors import BadInput, NotSaved, Problem


def main() -> None:
    """Run the command line and end the process with its exit code."""
    streams.open_missing()
    # pydantic would look through every installed package for plugins: slow, and none may change how we read.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    code = run(sys.argv[1:])
    try:
        streams.flush()
    except NotSaved as error:
        streams.note(f"error: {error}")
        code = ExitCode.NO_ANSWER
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command line; whatever went wrong has been told."""
    try:
        return _run_app(arguments)
    except BadInput as error:
        if error.__cause__ and "--debug" in arguments:  # code that is not ours raised it
            _show_traceback(error)
        for problem in error.problems:
            streams.note(f"error: {problem}")
        return ExitCode.USAGE
    except NotSaved as error:
        streams.note(f"error: {error}")
        return ExitCode.NO_ANSWER
    except KeyboardInterrupt:
        streams.note("interrupted")
        return ExitCode.INTERRUPTED
    except SystemExit as leaving:
        if streams.reader_has_gone(leaving):  # of the help: all is well
            return ExitCode.OK
        return _unexpected(leaving, arguments)  # a model under test must not choose our exit code
    except Exception as error:
        return _unexpected(error, arguments)


def _unexpected(error: BaseException, arguments: list[str]) -> int:
    if "--debug" in arguments:  # not from the parsed options: reading them may be what failed
        _show_traceback(error)
    streams.note(f"error: {_in_one_line(error)}")
    return ExitCode.NO_ANSWER


def _show_traceback(error: BaseException) -> None:
    import traceback

    streams.note("".join(traceback.format_exception(error)).rstrip())


def _run_app(arguments: list[str]) -> int:
    gc.disable()  # what is imported stays: looking through it for garbage takes a tenth of the start
    from typer.exceptions import TyperException

    from tfblock_cli.cli.app import make_app

    app = make_app(arguments)
    gc.freeze()
    gc.enable()
    try:
        code = app(arguments, prog_name="tfblock", standalone_mode=False)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        hint = f"; see {context.command_path} --help" if context else ""
        raise BadInput(Problem("", f"{error.format_message()}{hint}")) from None
    if code == ExitCode.INTERRUPTED:  # Typer has caught it
        raise KeyboardInterrupt
    return code or ExitCode.OK


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        return f"out of memory; a smaller model, --batch, --seq or --dtype needs less. {text}".rstrip()
    return f"unexpected {type(error).__name__}: {text}; --debug shows where, and we would like to know of it"


if __name__ == "__main__":
    main()
