"""The command line: its commands and --version."""

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from tfblock_cli import __version__
from tfblock_cli.loading import shipped

COMMANDS = {
    "params": "tfblock params --d 128 --heads 4",
    "forward": "tfblock forward tiny_transformer --head 0.0",
    "causality": "tfblock causality tiny_transformer --seq 32",
    "gradflow": "tfblock gradflow tiny_transformer --placements pre,post,sandwich --depths 6,12 --seeds 3",
}
"""Every command, a function in a file of its name, and an example of its use."""


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The app that these arguments need: with the command that they begin with, else with all of them.

    The options of a command are built from the spec, which takes as long as many a command.
    """
    shipped_ones = f"Shipped experiments: {', '.join(shipped())}."
    app = typer.Typer(
        add_completion=False,
        invoke_without_command=True,
        pretty_exceptions_enable=False,  # __main__ has the one error boundary
        epilog=f"{shipped_ones}\n\nExample: tfblock params gpt2",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(tfblock)
    for name in COMMANDS.keys() & arguments[:1] or COMMANDS:
        command = getattr(import_module(f"tfblock_cli.cli.{name}"), name)
        app.command(epilog=f"{shipped_ones}\n\nExample: {COMMANDS[name]}")(command)
    return app


def tfblock(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """The test bench for decoder-only transformer blocks."""
    if version:
        typer.echo(f"tfblock {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
