"""tfblock forward."""

import re
from typing import Annotated

import typer

from tfblock_cli import api
from tfblock_cli.cli.options import Request, with_shared_options
from tfblock_cli.cli.run import answer, load_all
from tfblock_cli.errors import BadInput, Problem


@with_shared_options(presets=api.FORWARD_DEFAULTS)
def forward(
    request: Request,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="LAYER.HEAD", help="Draw the attention weights of one head, such as 0.3."),
    ] = None,
) -> None:
    """Which shape and which numbers at every stage?"""
    chosen = None if head is None else _layer_and_head(head)
    experiments = load_all(request)
    answer(
        request,
        "forward",
        lambda experiment, progress: api.forward(experiment, head=chosen, progress=progress),
        experiments,
    )


def _layer_and_head(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", text, re.ASCII)
    if not found:
        raise BadInput(Problem(f"--head {text}", "give a layer and a head, both counted from 0, such as 0.3"))
    return int(found[1]), int(found[2])
