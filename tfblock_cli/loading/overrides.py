"""Flags and --set: single keys, put into the table that the file gave."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, get_origin

from pydantic.fields import FieldInfo

from tfblock_cli.errors import Problem
from tfblock_cli.loading.keys import ROOT, Path, axis, dotted, expanded, parsed, step
from tfblock_cli.loading.large import whole_number

MISSING = object()

DERIVED = {
    "model.d_model": ("model.attention.d_head", "model.ffn.d_ff"),
    "model.attention.n_heads": ("model.attention.n_kv_heads", "model.attention.d_head"),
}
"""What a written-out value was probably computed from."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that the user gave: ``Flag("--heads", "model.attention.n_heads", 3)``; it may stand for several keys."""

    name: str
    key: str | tuple[str, ...]
    value: Any

    @property
    def label(self) -> str:
        """As it was typed: a switch has no value."""
        if isinstance(self.value, bool):
            return self.name
        typed = ",".join(map(str, self.value)) if isinstance(self.value, list | tuple) else self.value
        return _short(f"{self.name} {typed}")


@dataclass(frozen=True, slots=True)
class Override:
    """One key, its new value, and what the user typed for it."""

    path: Path
    value: Any
    label: str


def from_flags(flags: Iterable[Flag]) -> list[Override]:
    """Shorter keys first, so that ``--d-ff 64 --ffn mlp`` does not lose d_ff to the table that --ffn replaces."""
    overrides = [
        Override(parsed(key), flag.value, flag.label)
        for flag in flags
        for key in (flag.key if isinstance(flag.key, tuple) else (flag.key,))
    ]
    return sorted(overrides, key=lambda override: len(override.path))


def from_set(text: str) -> Override | Problem:
    """Of ``--set KEY=VALUE``. VALUE is one TOML value; text that is not one is a string."""
    key, equals, value = text.partition("=")
    path, label = parsed(key), _short(f"--set {text}")
    if not equals or "" in path:
        return Problem(label, "expected KEY=VALUE, such as model.norm.eps=1e-5")
    return Override(path, _value(value), label)


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def _value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError):  # a number too long for Python, or a nesting too deep
        with suppress(ValueError):
            return whole_number(text)
        return text
    return table["value"] if len(table) == 1 else text


class Table:
    """The file's table with overrides put in, and who wrote what.

    Attributes:
        file: The table as the file has it.
        values: The table with the overrides.
        origins: What the user typed, for every path that a flag or --set wrote.
    """

    def __init__(self, file: Mapping[str, Any]) -> None:
        self.file = file
        self.values = deepcopy(dict(file))
        self.origins: dict[Path, str] = {}

    def put(self, override: Override) -> None:
        """Set one key. A shorthand on the way is expanded; setting a kind replaces its axis's table.

        Raises:
            LookupError: The way leads through something that holds no such key; the message says so.
        """
        path, value = override.path, override.value
        node: Any = self.values  # a table, or an array where _check has seen that the key is a place in it
        field: FieldInfo | None = ROOT
        for depth, key in enumerate(path, 1):
            _check(node, key, path[:depth])
            field = step(field, node, key)
            empty: Any = [] if field and get_origin(field.annotation) is tuple else {}
            inner = node.get(key, empty) if isinstance(node, dict) else node[key]
            if field and axis(field) and path[depth:] == ("kind",):
                path, value = path[:depth], {"kind": value}
            if depth == len(path):
                node[key] = value
                break
            node[key] = expanded(field, inner) if field and isinstance(inner, str) else inner
            node = node[key]
        self.origins = {other: label for other, label in self.origins.items() if other[: len(path)] != path}
        self.origins[path] = override.label

    def writer(self, path: Path) -> str | None:
        """What the user typed for a path, "" if the file has it, None if it was not written at all."""
        if find(self.values, path) is MISSING:
            short = next((path[:end] for end in range(len(path)) if isinstance(find(self.values, path[:end]), str)), ())
            return self.writer(short) if short else None  # "window=16" has written the window
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                label = self.origins[path[:end]]
                return label if end == len(path) else f"{label} ({dotted(path)})"
        if find(self.file, path) is not MISSING:
            return ""
        return next((label for other, label in self.origins.items() if other[: len(path)] == path), None)

    def warnings(self) -> Iterator[str]:
        """For every override that leaves a value standing which was computed from the one that it changed."""
        for key, dependents in DERIVED.items():
            label = self.writer(parsed(key))
            before, after = find(self.file, parsed(key)), find(self.values, parsed(key))
            if not label or before is MISSING or before == after:
                continue
            for other in dependents:
                value = find(self.values, parsed(other))
                if value is not MISSING and self.writer(parsed(other)) == "":
                    yield f"{label}: {key} was {before}, and {other} = {value} stands as it is written in the file"


def find(table: Any, path: Path) -> Any:
    """The value that is written at a path, or MISSING."""
    for key in path:
        in_table = isinstance(table, Mapping) and key in table
        if not in_table and not (isinstance(table, list) and isinstance(key, int) and key < len(table)):
            return MISSING
        table = table[key]
    return table


def _check(node: Any, key: str | int, path: Path) -> None:
    """Raise LookupError if a table or array has no room for a key."""
    above = dotted(path[:-1]) or "an experiment"
    if isinstance(node, dict):
        if isinstance(key, int):
            raise LookupError(f"{above} is a table: it has keys, and no item {key}")
    elif not isinstance(node, list):
        raise LookupError(f"{above} is not a table, so there is no {dotted(path)}")
    elif not isinstance(key, int):
        raise LookupError(f"{above} is an array: its items are {above}.0 and so on")
    elif key >= len(node):
        raise LookupError(f"{above} has {len(node)} items, counted from 0, so there is no {dotted(path)}")
