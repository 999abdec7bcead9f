"""tfblock gradflow."""

from tfblock_cli import api
from tfblock_cli.cli.options import GRADFLOW, Request, with_shared_options
from tfblock_cli.cli.run import answer, load_all


@with_shared_options(*GRADFLOW)
def gradflow(request: Request) -> None:
    """How do gradients flow under different norm placements, at equal weights and inputs?"""
    answer(
        request,
        "gradflow",
        lambda experiment, progress: api.gradflow(experiment, progress=progress),
        load_all(request),
    )
