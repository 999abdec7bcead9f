"""READ: file, flags and --set -> Experiment, or every complaint about them at once."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.loading.complaints import both, no_target, problems, untrusted
from tfblock_cli.loading.keys import parsed
from tfblock_cli.loading.large import without_large
from tfblock_cli.loading.overrides import MISSING, Flag, Override, Table, find, from_flags, from_set
from tfblock_cli.loading.source import Source, read, readable
from tfblock_cli.spec.base import Spec
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.target import HUGGING_FACE, AnyExperiment, TargetExperiment
from tfblock_cli.spec.train import TEXTS

Asked = TypeVar("Asked", bound=Spec, covariant=True)

OF_A_TARGET = {"model.d_model": "target.d_model", "model.vocab_size": "target.vocab_size"}
"""What the flags --d and --vocab set where the model is a target."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Asked]):
    """An experiment and where it comes from.

    Attributes:
        experiment: With nothing left open.
        written: What the file, the flags and --set said, and nothing more; ``to_toml`` writes it.
        source: The file or shipped name as the user gave it; "" for flags alone.
        warnings: What the user should know and may ignore.
    """

    experiment: Asked
    written: dict[str, Any]
    source: str
    warnings: tuple[str, ...]


def load(
    source: str | Path | None = None,
    *,
    flags: Sequence[Flag] = (),
    sets: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Loaded[Experiment]:
    """The experiment of a file, with later ones changing earlier ones: defaults < file < flags < sets.

    Args:
        source: A TOML file, the name of a shipped experiment or a run folder; None for flags alone.
        flags: What the user gave.
        sets: KEY=VALUE each, left to right.
        defaults: A command's own, by dotted key.

    Raises:
        BadInput: With every fault at once; a [target] is one.
    """
    table, given, wrong = _read(source, flags, sets)
    if "target" in table.values:
        raise BadInput(no_target(table, given.label), *wrong)
    return _resolve(Experiment, table, given, wrong, defaults or {})


def load_any(
    source: str | Path | None = None,
    *,
    flags: Sequence[Flag] = (),
    sets: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Loaded[AnyExperiment]:
    """As ``load``, of a [model] or a [target].

    Args:
        source: As there.
        flags: As there; --d and --vocab say of a target what it takes.
        sets: As there.
        defaults: As there.
        trust: Whether a target that the file names, and not the user, may run.

    Raises:
        BadInput: With every fault at once.
    """
    table, given, wrong = _read(source, flags, sets)
    if "target" not in table.values:
        return _resolve(Experiment, table, given, wrong, defaults or {})
    if "model" in table.values:
        raise BadInput(both(table, given.label), *wrong)
    if table.writer(("target", "factory")) == "" and not trust:
        wrong.append(untrusted(given.label))
    factory = find(table.values, ("target", "factory"))
    if isinstance(factory, str):
        if factory.startswith(HUGGING_FACE) and factory != HUGGING_FACE:  # so that it is found from anywhere
            table.values["target"]["factory"] = HUGGING_FACE + os.path.abspath(factory.removeprefix(HUGGING_FACE))
        if source is None:
            given = replace(given, name=_name(factory))
    return _resolve(TargetExperiment, table, given, wrong, defaults or {})


def target_experiment(table: Mapping[str, Any]) -> TargetExperiment:
    """The experiment of a table that has a [target] and came from no file.

    Raises:
        BadInput: With every fault at once.
    """
    written = Table(table)
    return _resolve(TargetExperiment, written, Source(written.values, "", "target"), [], {}).experiment


def _read(source: str | Path | None, flags: Sequence[Flag], sets: Sequence[str]) -> tuple[Table, Source, list[Problem]]:
    """The file with everything put in, and what did not fit."""
    if source is None and not flags and not sets:
        raise BadInput(Problem("", f"no experiment: {readable()}, or --d and --heads"))
    given = Source({}, "", "tfblock") if source is None else read(source)
    table = Table(given.table)
    overrides = [*from_flags(flags), *map(from_set, sets)]
    if "target" in table.file or any(isinstance(one, Override) and one.path[0] == "target" for one in overrides):
        overrides = [*from_flags(map(_of_a_target, flags)), *map(from_set, sets)]
    return table, given, _put_all(table, overrides)


def _of_a_target(flag: Flag) -> Flag:
    return replace(flag, key=OF_A_TARGET.get(flag.key, flag.key)) if isinstance(flag.key, str) else flag


def _name(factory: str) -> str:
    """The last word: mine of pkg.mod:mine and of hf:models/mine/config.json."""
    words = re.split(r"[/\\:]", factory.removesuffix("/").removesuffix("/config.json"))
    return words[-1][:100] or "target"


def _resolve(
    spec: type[Asked], table: Table, given: Source, wrong: list[Problem], defaults: Mapping[str, Any]
) -> Loaded[Asked]:
    """The experiment, or every complaint about it."""
    text = find(table.values, ("gradflow", "train", "text"))
    if isinstance(text, str) and text and text not in TEXTS:  # a path: absolute, so that it is found from anywhere
        table.values["gradflow"]["train"]["text"] = os.path.abspath(text)
    try:
        experiment = spec.model_validate(without_large(_with_defaults(table, {"name": given.name, **defaults})))
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
