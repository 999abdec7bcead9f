"""READ: file, flags and --set -> Experiment, or every complaint about them at once."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.loading.complaints import problems, too_large
from tfblock_cli.loading.keys import parsed
from tfblock_cli.loading.overrides import MISSING, Flag, Override, Table, find, from_flags, from_set
from tfblock_cli.loading.source import Source, read, readable
from tfblock_cli.spec.experiment import Experiment


@dataclass(frozen=True, slots=True)
class Loaded:
    """An experiment and where it comes from.

    Attributes:
        experiment: With nothing left open.
        written: What the file, the flags and --set said, and nothing more; ``to_toml`` writes it.
        source: The file or shipped name as the user gave it; "" for flags alone.
        warnings: What the user should know and may ignore.
    """

    experiment: Experiment
    written: dict[str, Any]
    source: str
    warnings: tuple[str, ...]


def load(
    source: str | Path | None = None,
    *,
    flags: Sequence[Flag] = (),
    sets: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Loaded:
    """The experiment of a file, with later ones changing earlier ones: defaults < file < flags < sets.

    Args:
        source: A TOML file, the name of a shipped experiment or a run folder; None for flags alone.
        flags: What the user gave.
        sets: KEY=VALUE each, left to right.
        defaults: A command's own, by dotted key.

    Raises:
        BadInput: With every fault at once.
    """
    if source is None and not flags and not sets:
        raise BadInput(Problem("", f"no experiment: {readable()}, or --d and --heads"))
    given = Source({}, "", "tfblock") if source is None else read(source)
    table = Table(given.table)
    wrong = _put_all(table, [*from_flags(flags), *map(from_set, sets)])
    if large := too_large(table, given.label):
        raise BadInput(*large, *wrong)
    try:
        experiment = Experiment.model_validate(_with_defaults(table, {"name": given.name, **(defaults or {})}))
    except ValidationError as error:
        raise BadInput(*problems(error, table, given.label), *wrong) from None
    if wrong:
        raise BadInput(*wrong)
    return Loaded(experiment, table.values, given.label, tuple(table.warnings()))


def _put_all(table: Table, overrides: Iterable[Override | Problem]) -> list[Problem]:
    """Put every override into the table; what does not fit comes back."""
    wrong = []
    for override in overrides:
        if isinstance(override, Problem):
            wrong.append(override)
            continue
        try:
            table.put(override)
        except LookupError as error:
            wrong.append(Problem(override.label, str(error)))
    return wrong


def _with_defaults(table: Table, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The table with what it leaves open and a command decides."""
    filled = Table(table.values)
    for key, value in defaults.items():
        path = parsed(key)
        if find(table.values, path) is MISSING:
            with suppress(LookupError):  # something on the way is no table, which is told as the file's fault
                filled.put(Override(path, value, key))
    return filled.values
