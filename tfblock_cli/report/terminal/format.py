"""How numbers read on the screen: counts are exact, measured numbers have three significant digits."""

import math
from collections.abc import Sequence

ABSENT = "-"
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")

Limit = float | int | str | tuple[float | None, float | None] | None


def count(n: int | None) -> str:
    """An exact count with thousands separators: 590,464."""
    return ABSENT if n is None else f"{n:,}"


def number(x: float | None, digits: int = 3) -> str:
    """A measured number to ``digits`` significant digits: 0, 0.123, 12.3, 1.23e-5, 4.00e3, nan, inf."""
    if x is None:
        return ABSENT
    if not math.isfinite(x) or x == 0:
        return f"{x:.0f}".replace("-0", "0")
    mantissa, exponent = f"{x:.{digits - 1}e}".split("e")  # rounded first: 9.999 is a 10.0
    power = int(exponent)
    if -3 <= power < 3:
        return f"{x:.{max(digits - 1 - power, 0)}f}"
    return f"{mantissa}e{power}"


def percent(share: float | None) -> str:
    """A share between 0 and 1 in per cent. Only nothing is 0 %, and only everything is 100 %."""
    if share is None:
        return ABSENT
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    text = f"{100 * share:.1f}"
    return {"0.0": "<0.1", "100.0": ">99.9"}.get(text, text) + " %"


def size(n: int | None) -> str:
    """Bytes in the largest binary unit that leaves at least 1: 1023 B, 1.00 KiB, 475 MiB."""
    if n is None:
        return ABSENT
    if abs(n) < 1024:
        return f"{n} B"
    value = n / 1024
    for unit in _UNITS[:-1]:
        text = _three_digits(value)
        if abs(float(text)) < 1024:
            return f"{text} {unit}"
        value /= 1024
    return f"{_three_digits(value)} {_UNITS[-1]}"


def shape(sizes: Sequence[int]) -> str:
    """A shape as the reader writes it: (1, 4, 10, 10)."""
    return f"({', '.join(str(size) for size in sizes)})"


def plural(n: int, noun: str) -> str:
    """The count with its noun: 1 check, 2 checks."""
    return f"{count(n)} {noun}" if n == 1 else f"{count(n)} {noun}s"


def claim(value: float | int | str | None, op: str, limit: Limit) -> tuple[str, str]:
    """What was found and what was demanded, with as many digits as it takes to tell the two apart."""
    bounds = limit if isinstance(limit, tuple) else (limit,)
    for digits in (3, 6):
        found = _plain(value, digits)
        if all(bound == value or _plain(bound, digits) != found for bound in bounds):
            return found, _limit(op, limit, digits)
    return _plain(value, None), _limit(op, limit, None)


def _three_digits(value: float) -> str:
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"


def _plain(value: float | int | str | None, digits: int | None) -> str:
    if value is None:
        return "no value"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return count(value)
    return repr(value) if digits is None else number(value, digits)


def _limit(op: str, limit: Limit, digits: int | None) -> str:
    if not isinstance(limit, tuple):
        return f"{op} {_plain(limit, digits)}"
    low, high = limit
    if low is None:
        return "anything" if high is None else f"<= {_plain(high, digits)}"
    if high is None:
        return f">= {_plain(low, digits)}"
    return f"{_plain(low, digits)} to {_plain(high, digits)}"
