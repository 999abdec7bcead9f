"""The JSON schema of ``result.json``, made from the dataclasses so that the two cannot differ.

It is published as ``docs/result.schema.json``; ``pytest tests/store --update-golden`` writes it anew.
Unknown keys are allowed: adding a key does not change the schema version.
"""

import inspect
from collections.abc import Iterator
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tfblock_cli.results.causality import CausalityData
from tfblock_cli.results.forward import ForwardData
from tfblock_cli.results.gradflow import GradflowData
from tfblock_cli.results.params import ParamsData
from tfblock_cli.results.result import Check, Verdict, field_names
from tfblock_cli.results.target_gradflow import TargetGradflowData
from tfblock_cli.store.record import SCHEMA, SCHEMA_VERSION, Run

DATA: dict[str, Any] = {
    "params": ParamsData,
    "forward": ForwardData,
    "causality": CausalityData,
    "gradflow": GradflowData | TargetGradflowData,  # of a model, of a target
}
"""The class of ``data``, by command."""

_SCALARS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # nan and inf are written as null
    str: {"type": "string"},
    NoneType: {"type": "null"},
    datetime: {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_PROVENANCE = {
    "experiment_sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "source": {"type": "string"},
    "tfblock": _TEXT_OR_NULL,
    "python": {"type": "string"},
    "torch": _TEXT_OR_NULL,
    "platform": {"type": "string"},
    "device": {"type": "string"},
    "threads": {"type": "integer"},
    "git": {
        "type": ["object", "null"],
        "required": ["sha", "dirty"],
        "properties": {"sha": {"type": "string"}, "dirty": {"type": "boolean"}},
    },
}


def result_schema() -> dict[str, Any]:
    """The schema (JSON Schema, draft 2020-12) of one ``result.json``."""
    properties = {
        "schema": {"const": SCHEMA},
        "schema_version": {"const": SCHEMA_VERSION},
        "command": {"enum": list(DATA)},
        "verdict": _schema(Verdict),
        "checks": _schema(tuple[Check, ...]),
        "warnings": _schema(tuple[str, ...]),
        "data": {"type": "object", "description": "What the command found; its keys depend on the command."},
        "experiment": {
            "type": "object",
            "description": "The resolved experiment, every default written out.",
        },
        "run": _schema(Run),
        "provenance": {"type": "object", "required": list(_PROVENANCE), "properties": _PROVENANCE},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The result of one tfblock command",
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "allOf": [
            {
                "if": {"properties": {"command": {"const": command}}},
                "then": {"properties": {"data": _schema(data)}},
            }
            for command, data in DATA.items()
        ],
        "$defs": {
            class_.__name__: _object(class_)
            for class_ in dict.fromkeys(found for root in (Check, Run, *DATA.values()) for found in _classes(root))
        },
    }


def _schema(hint: Any) -> dict[str, Any]:
    """The schema of what ``to_json`` makes of a value with this type hint."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    if field_names(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (UnionType, Union):
        return {"anyOf": [_schema(arg) for arg in args]}
    if origin is tuple and args[-1] is ...:
        return {"type": "array", "items": _schema(args[0])}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [_schema(arg) for arg in args],
            "items": False,
            "minItems": len(args),
        }
    if origin is dict and args[0] is str:
        return {"type": "object", "additionalProperties": _schema(args[1])}
    raise TypeError(f"no JSON schema for {hint!r}")


def _object(class_: type) -> dict[str, Any]:
    """The schema of a dataclass or named tuple. A number that is null and must not be has its reason beside it."""
    properties: dict[str, Any] = {}
    rules: list[dict[str, Any]] = []
    hints = _fields(class_)
    for key, hint in hints.items():
        properties[key] = _schema(hint)
        members = get_args(hint) or (hint,)
        if float in members:
            reason = f"{key}_reason"
            properties[reason] = {"enum": ["nan", "inf", "-inf"]}
            is_null = {"properties": {key: {"type": "null"}}}
            rules.append({"if": {"required": [reason]}, "then": is_null})
            if NoneType not in members:
                rules.append({"if": is_null, "then": {"required": [reason]}})
    schema = {
        "type": "object",
        "description": inspect.getdoc(class_),
        "required": list(hints),
        "properties": properties,
    }
    return {**schema, "allOf": rules} if rules else schema


def _fields(class_: Any) -> dict[str, Any]:
    """The type hints by JSON key: a field whose name Python reserves (``in_``) loses its underscore."""
    hints = get_type_hints(class_)
    return {name.rstrip("_"): hints[name] for name in field_names(class_)}


def _classes(hint: Any) -> Iterator[type]:
    """The dataclasses and named tuples that a type hint names, inner ones included."""
    if field_names(hint):
        yield hint
        for inner in _fields(hint).values():
            yield from _classes(inner)
    for arg in get_args(hint):
        yield from _classes(arg)
