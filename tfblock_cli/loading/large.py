"""Whole numbers beyond the 64 bits of TOML."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BEYOND = 2**63
_PRINTABLE_BITS = 14_000  # Python refuses to write out, or to read, more than 4300 decimal digits


@dataclass(frozen=True, slots=True)
class Large:
    """Stands for such a number: no key takes it, so it is refused with everything else, and not shown in full."""

    text: str

    def __str__(self) -> str:
        return self.text if len(self.text) <= 24 else f"{self.text[:10]}... ({len(self.text.lstrip('-'))} digits)"


def whole_number(text: str) -> int | Large:
    """What was typed.

    Raises:
        ValueError: It is no whole number.
    """
    found = re.fullmatch(r"\s*\+?(-?)0*([1-9][0-9]{19,})\s*", text)
    return Large(found[1] + found[2]) if found else _small(int(text))


def without_large(value: Any) -> Any:
    """A table, array or value with every such number replaced by what stands for it."""
    if isinstance(value, Mapping):
        return {key: without_large(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_large(inner) for inner in value]
    return _small(value) if isinstance(value, int) else value


def _small(value: int) -> int | Large:
    if -BEYOND <= value < BEYOND:
        return value
    bits = value.bit_length()
    return Large(str(value) if bits < _PRINTABLE_BITS else f"one of {bits:,} bits")
