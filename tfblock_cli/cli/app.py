"""The command line: its commands and --version."""

from typing import Annotated

import typer

from tfblock_cli import __version__
from tfblock_cli.cli.causality import causality
from tfblock_cli.cli.forward import forward
from tfblock_cli.cli.gradflow import gradflow
from tfblock_cli.cli.params import params
from tfblock_cli.loading import shipped

COMMANDS = {
    params: "tfblock params --d 128 --heads 4",
    forward: "tfblock forward tiny_transformer --head 0.0",
    causality: "tfblock causality tiny_transformer --seq 32",
    gradflow: "tfblock gradflow tiny_transformer --placements pre,post,sandwich --depths 6,12 --seeds 3",
}
"""Every command and an example of its use."""

_SHIPPED = f"Shipped experiments: {', '.join(shipped())}."

app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,  # __main__ has the one error boundary
    epilog=f"{_SHIPPED}\n\nExample: tfblock params gpt2",
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _command, _example in COMMANDS.items():
    app.command(epilog=f"{_SHIPPED}\n\nExample: {_example}")(_command)


@app.callback()
def tfblock(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """The test bench for decoder-only transformer blocks."""
    if version:
        typer.echo(f"tfblock {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
