"""Result: what a probe found, and Check: one claim that it tested."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, Literal, TypeVar

Command = Literal["params", "forward", "causality", "gradflow"]
Verdict = Literal["pass", "fail", "inconclusive", "none"]
Data = TypeVar("Data", covariant=True)
Json = None | bool | int | float | str | list[Any] | dict[str, Any]
Op = Literal["==", "!=", "<", "<=", ">", ">=", "in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim: ``value op limit``.

    Attributes:
        name: What was tested, in lower_snake_case: ``attention_rows_sum_to_one``.
        subject: What it was tested on: a stage, a placement, a parameter name.
        passed: Whether the claim holds; None when the data cannot tell (the verdict is then inconclusive).
        value: What was found.
        op: How value and limit are compared.
        limit: What was demanded; a pair (low, high) for ``in``.
        message: One sentence for the person who has to mend it.
    """

    name: str
    subject: str
    passed: bool | None
    value: float | int | str | None
    op: Op
    limit: float | int | str | tuple[float | None, float | None] | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[Data]):
    """What one command found out about one experiment.

    Attributes:
        command: Which of the four it is.
        data: The command's own figures, a frozen dataclass of this package.
        checks: The claims that decide the verdict.
        warnings: What the reader must know beside the verdict; ``--strict`` turns them into a failure.
        experiment: The resolved experiment as plain data.
    """

    command: Command
    data: Data
    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = ()
    experiment: Mapping[str, Any]

    @property
    def verdict(self) -> Verdict:
        """A failed check outranks one that could not be judged; without checks there is nothing to pass."""
        if not self.checks:
            return "none"
        if any(check.passed is False for check in self.checks):
            return "fail"
        if any(check.passed is None for check in self.checks):
            return "inconclusive"
        return "pass"


def to_json(value: Any) -> Json:
    """Plain JSON data of a dataclass, named tuple, mapping, sequence or number.

    JSON has no nan and no inf: a non-finite number under a key becomes null, and its reason stands beside it
    as ``<key>_reason`` ("nan", "inf" or "-inf").
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if names := field_names(type(value)):
        return _object({name: getattr(value, name) for name in names})
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} is not plain data: {value!r}")


def field_names(class_: Any) -> tuple[str, ...]:
    """Of a dataclass or of a named tuple; none of anything else."""
    if is_dataclass(class_):
        return tuple(field.name for field in fields(class_))
    return getattr(class_, "_fields", ())


def _object(mapping: Mapping[str, Any]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for name, value in mapping.items():
        key = name.rstrip("_")  # a field whose name Python reserves: in_
        result[key] = to_json(value)
        if isinstance(value, float) and not math.isfinite(value):
            result[f"{key}_reason"] = str(value)
    return result
