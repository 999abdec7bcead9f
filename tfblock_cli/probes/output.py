"""Which part of what anybody's module returns is the output."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.probes.factory import did_you_mean


def reader(output_key: str | int) -> Callable[[Any], Tensor]:
    """Picks the output by attribute, key or index; "": the tensor itself, else its logits, else its first item."""
    return _usual if output_key == "" else lambda output: _tensor(_picked(output, output_key), f"output {output_key}")


def _usual(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if logits is None and isinstance(output, Sequence) and output and not isinstance(output, str):
        logits = output[0]
    if logits is None:
        raise _no_output(output, "it has no logits")
    return _tensor(logits, "its output")


def _picked(output: Any, key: str | int) -> Any:
    """By key, then by attribute, then by index."""
    if isinstance(output, Mapping) and key in output:
        return output[key]
    if isinstance(key, str) and not isinstance(output, Tensor) and hasattr(output, key):
        return getattr(output, key)
    if isinstance(output, Sequence) and re.fullmatch(r"-?\d{1,9}", str(key)):
        index = int(key)
        if -len(output) <= index < len(output):
            return output[index]
        raise _no_output(output, f"there is no item {key} among {len(output)}")
    raise _no_output(output, f"there is no {key!r}", str(key))


def _no_output(output: Any, what: str, word: str = "") -> BadInput:
    """With what there is."""
    names = [str(key) for key in output] if isinstance(output, Mapping) else []
    has = f", which has {', '.join(names)}" if names else ""
    rule = "name the output (output_key, --output-key) by attribute, key or index"
    message = f"it returns a {type(output).__name__}{has}; {what}{did_you_mean(word, names)}; {rule}"
    return BadInput(Problem("", message))


def _tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    raise BadInput(Problem("", f"{what} is a {type(value).__name__}, not a tensor"))
