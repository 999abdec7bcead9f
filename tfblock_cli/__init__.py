"""tfblock: the test bench for decoder-only transformer blocks.

The names below are the Python API. They are imported when they are first used: ``import tfblock_cli`` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfblock_cli.api import (
        assert_causal,
        build,
        causality,
        check_causality,
        check_gradients,
        forward,
        gradflow,
        load,
        params,
    )
    from tfblock_cli.modules.block import Block
    from tfblock_cli.modules.decoder import Decoder

__version__ = "0.1.0"
__all__ = [
    "Block",
    "Decoder",
    "assert_causal",
    "build",
    "causality",
    "check_causality",
    "check_gradients",
    "forward",
    "gradflow",
    "load",
    "params",
]

_HOMES = {"Block": "tfblock_cli.modules.block", "Decoder": "tfblock_cli.modules.decoder"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "tfblock_cli.api")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
