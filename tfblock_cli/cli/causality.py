"""tfblock causality."""

from tfblock_cli import api
from tfblock_cli.cli.options import Request, with_shared_options
from tfblock_cli.cli.run import answer, load_all


@with_shared_options()
def causality(request: Request) -> None:
    """Does any output see the future? Every cut is tried; one leaking pair is exit code 1."""
    answer(
        request,
        "causality",
        lambda experiment, progress: api.causality(experiment, progress=progress),
        load_all(request),
    )
