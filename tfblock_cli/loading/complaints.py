"""What pydantic says of a table, said in the user's words."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from tfblock_cli.errors import Problem
from tfblock_cli.loading.keys import Path, allowed, axis, dotted, every_key, fields, kinds, parsed, place
from tfblock_cli.loading.large import Large, without_large
from tfblock_cli.loading.overrides import MISSING, Table, find
from tfblock_cli.spec.base import name_of

FLAGS = {
    "model": "--d and --heads",
    "model.d_model": "--d",
    "model.attention.n_heads": "--heads",
    "target.factory": "--target",
}
"""What gives a key that every experiment needs on the command line."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A rule that is broken, the keys that break it, and whether it was met by values that nobody wrote."""

    paths: tuple[Path, ...]
    message: str
    follows: bool


def problems(error: ValidationError, table: Table, label: str) -> list[Problem]:
    """Every fault once, in the order of the file.

    What values that nobody wrote do wrong follows from what was written, so it is told only if nothing else is.
    """
    complaints = list(dict.fromkeys(_complaint(line, table) for line in error.errors(include_url=False)))
    told = [complaint for complaint in complaints if not complaint.follows] or complaints
    order = {path: number for number, path in enumerate(_paths(table.values))}
    told.sort(key=lambda complaint: _rank(complaint.paths, order))
    return [Problem(_where(complaint.paths, table, label), complaint.message) for complaint in told]


def both(table: Table, label: str) -> Problem:
    """Of an experiment with a [model] and a [target]."""
    rule = "an experiment has a [model], which tfblock builds, or a [target], which somebody else has built; not both"
    return Problem(_where((("model",), ("target",)), table, label), rule)


def no_target(table: Table, label: str) -> Problem:
    """Of a [target] where only a [model] will do."""
    rule = "a [target] can be asked by tfblock causality and tfblock gradflow; everything else is about a [model]"
    return Problem(_where((("target",),), table, label), rule)


def untrusted(label: str) -> Problem:
    """Of a [target] that a file names."""
    return Problem(f"{label}: target.factory", "this names code to run; give --trust, or name it by --target")


def _complaint(line: Any, table: Table) -> Complaint:
    path, field = place(line["loc"])
    follows = table.writer(path) is None
    match line["type"]:
        case "fault":
            paths = tuple(path + (parsed(key) if key else ()) for key in line["ctx"]["keys"])
            follows = all(table.writer(path) is None for path in paths)
            return Complaint(paths, line["ctx"]["message"], follows)
        case "missing":
            typed = any(path[:end] in table.origins for end in range(len(path)))  # and not in the file
            return Complaint((path[:-1] if typed else path,), _missing(path, table), follows=False)
        case "extra_forbidden":
            return Complaint((path,), _unknown(path, place(line["loc"][:-1])[1]), follows)
        case "union_tag_invalid":
            return Complaint((path,), _wrong(field, line["input"]["kind"]), follows)
        case _:
            written = find(table.values, path)
            value = line["input"] if follows or written is MISSING else written
            origin = f"{dotted(path)}{_rule(field)}: " if follows else ""
            return Complaint((path,), origin + _wrong(field, value), follows)


def _missing(path: Path, table: Table) -> str:
    key = dotted(path)
    flag = f": give {'it or ' if table.file else ''}{FLAGS[key]}" if key in FLAGS else ""
    return f"there is no [model] table{flag}" if path == ("model",) else f"{key} is missing{flag}"


def _wrong(field: FieldInfo | None, value: Any) -> str:
    if field is None:
        return f"{_shown(value)} is not allowed here"
    choices = tuple(map(name_of, kinds(field))) if axis(field) else get_args(field.annotation)
    is_choice = axis(field) or get_origin(field.annotation) is Literal
    guess = _close(value, choices) if is_choice and isinstance(value, str) else None
    return f"expected {allowed(field)}, got {_shown(value)}{_did_you_mean(repr(guess) if guess else None)}"


def _unknown(path: Path, parent: FieldInfo | None) -> str:
    """With the closest key of the same table or of another one, or with all keys of the table."""
    above, key, known = path[:-1], str(path[-1]), fields(parent)
    if key in known:
        return f"goes with a [model]; a [target] has no {dotted(path)}"
    words = {str(other[-1]): other for other in reversed([*every_key()]) if other[-1] != "kind"}
    words |= {name: (*above, name) for name in known}
    counted = (name for name in (f"n_{key}", f"d_{key}") if name in words)  # heads, layers: as the flags have it
    guess = next(counted, None) or _close(key, words)
    if guess and words[guess][-2:] != path[-2:]:  # that would be the same key of another kind
        return f"unknown key{_did_you_mean(dotted(words[guess]))}"
    return f"unknown key; {dotted(above) or 'an experiment'} has {', '.join(known)}"


def _close(word: str, words: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, [*words], 1, 0.6)), None)


def _did_you_mean(guess: str | None) -> str:
    return f"; did you mean {guess}?" if guess else ""


def _rule(field: FieldInfo | None) -> str:
    extra = field.json_schema_extra if field else None
    return f" follows from {extra['derived']}" if isinstance(extra, dict) and "derived" in extra else ""


def _shown(value: Any) -> str:
    """A value as the file has it, long ones cut short."""
    match without_large(value):
        case Large() as large:
            return f"{large}, which is beyond 64 bits"
        case bool():
            return str(value).lower()
        case str():
            return f"the text {value!r}" if len(value) <= 60 else f"the text {value[:57]!r}..."
        case float() if not math.isfinite(value):
            return f"{value}, which is not finite"
        case int() | float():
            return str(value)
        case Mapping():
            return "a table"
        case list() | tuple():
            return "an array"
        case _:
            return f"the date or time {value}"


def _where(paths: Iterable[Path], table: Table, label: str) -> str:
    """The file with its keys, then the flags: "x.toml: model.d_model, --heads 3"."""
    writers = {path: writer for path in paths if (writer := table.writer(path)) is not None}
    in_file = ", ".join(dotted(path) for path, writer in writers.items() if not writer)
    place_in_file = f"{label}: {in_file}" if in_file and label else in_file
    typed = dict.fromkeys(writer for writer in writers.values() if writer)
    return ", ".join([*filter(None, [place_in_file]), *typed]) or label


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every path of a table, in its order."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


def _rank(paths: tuple[Path, ...], order: Mapping[Path, int]) -> int:
    """Where the first of the paths stands; what is missing stands where its table does."""
    for cut in range(max(map(len, paths), default=0)):
        found = [order[above] for path in paths if (above := path[: max(len(path) - cut, 0)]) in order]
        if found:
            return min(found)
    return -1
