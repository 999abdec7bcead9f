"""Which keys an experiment file may have, read from the spec classes.

A *path* is a key as a tuple: ("model", "attention", "n_heads"), ("gradflow", "expect", 0, "min").
"""

import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tfblock_cli.spec.base import Axis, Kind, Spec, name_of
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.model import AXES_OF_A_BLOCK, LayerOverride, ModelSpec
from tfblock_cli.spec.target import TargetExperiment

Path = tuple[str | int, ...]

ROOT = FieldInfo.from_annotation(Experiment)
PARTS = {key: ModelSpec.model_fields[key] for key in AXES_OF_A_BLOCK}
TARGET = {"target": TargetExperiment.model_fields["target"]}
"""What stands in the place of [model] where the model is somebody else's."""


def dotted(path: Path) -> str:
    """The path as it is written: model.attention.n_heads."""
    return ".".join(map(str, path))


def parsed(key: str) -> Path:
    """The path of a dotted key; a number is the place in an array."""
    parts = (part.strip() for part in key.split("."))
    return tuple(int(part) if re.fullmatch(r"[0-9]{1,9}", part) else part for part in parts)


def axis(field: FieldInfo | None) -> Axis | None:
    """The axis that a field stands for, if it is one."""
    return next((item for item in field.metadata if isinstance(item, Axis)), None) if field else None


def kinds(field: FieldInfo) -> tuple[type[Kind], ...]:
    """The kinds of a field that is an axis."""
    return get_args(field.annotation)


def expanded(field: FieldInfo, value: Any) -> Any:
    """The full table of a shorthand, if the field is an axis; else the value."""
    found = axis(field)
    return found.expand(value, kinds(field)) if found else value


def fields(field: FieldInfo | None) -> Mapping[str, FieldInfo]:
    """The keys of the table that a field holds; none if it holds none or if they depend on its kind."""
    spec = field.annotation if field else None
    if not (isinstance(spec, type) and issubclass(spec, Spec)):
        return {}
    # An override of some layers has parts of the model under the model's own names.
    more = PARTS if spec is LayerOverride else TARGET if spec is Experiment else {}
    return {**spec.model_fields, **more}


def step(field: FieldInfo | None, value: Any, key: str | int) -> FieldInfo | None:
    """The field at one key further down, in a table or array ``value``; None where there is none."""
    if field is None:
        return None
    if isinstance(key, int):
        item = get_args(field.annotation)[:1] if get_origin(field.annotation) is tuple else ()
        return FieldInfo.from_annotation(item[0]) if item else None
    if axis(field):
        table = expanded(field, value)
        field = of_kind(field, table.get("kind") if isinstance(table, Mapping) else None)
    return fields(field).get(key)


def of_kind(field: FieldInfo, kind: Any) -> FieldInfo | None:
    """The table of one kind of an axis."""
    return next((FieldInfo.from_annotation(cls) for cls in kinds(field) if name_of(cls) == kind), None)


def place(loc: tuple[str | int, ...]) -> tuple[Path, FieldInfo | None]:
    """The path and the field of pydantic's ``loc``, which also names the kind that a table is of."""
    field: FieldInfo | None = ROOT
    path: Path = ()
    for key in loc:
        if field and axis(field):
            field = of_kind(field, key)
        elif field and members(field.annotation):
            break  # what follows is the member of the union that pydantic tried
        else:
            field, path = step(field, None, key), (*path, key)
    return path, field


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, None left out: a key that may be absent has no other form."""
    if get_origin(annotation) not in (Union, UnionType):
        return ()
    found = tuple(member for member in get_args(annotation) if member is not NoneType)
    return found if len(found) > 1 else ()


def every_key(field: FieldInfo = ROOT, path: Path = ()) -> Iterator[Path]:
    """Every path that some experiment can have, shallow tables' own keys first; items of arrays left out."""
    tables = kinds(field) if axis(field) else (field.annotation,)
    for table in tables:
        if isinstance(table, type) and issubclass(table, Spec):
            for key, inner in (table.model_fields | (TARGET if table is Experiment else {})).items():
                yield (*path, key)
                yield from every_key(inner, (*path, key))


def allowed(field: FieldInfo) -> str:
    """What a field takes, in the user's words: "a whole number from 1 to 128"."""
    if axis(field):
        return f"one of {', '.join(map(name_of, kinds(field)))}, or a table with such a kind"
    annotation, limits = field.annotation, {type(item).__name__: item for item in field.metadata}
    if union := members(annotation):
        return " or ".join(allowed(FieldInfo.from_annotation(member)) for member in union)
    if get_origin(annotation) in (Union, UnionType):  # of one type and None
        annotation = next(member for member in get_args(annotation) if member is not NoneType)
    if get_origin(annotation) is Literal:
        choices = [repr(choice) for choice in get_args(annotation)]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if get_origin(annotation) is tuple:
        return f"an array, each {allowed(FieldInfo.from_annotation(get_args(annotation)[0]))}"
    if annotation is bool:
        return "true or false"
    if annotation is int:
        return f"a whole number{_range(limits, 1)}"
    if annotation is float:
        return f"a number{_range(limits, 0)}"
    if annotation is str:
        if field.examples:
            return f"text such as {' or '.join(map(repr, field.examples))}"
        length = limits.get("MaxLen")
        return f"text of 1 to {length.max_length} characters" if length else "text"
    return "a table"


def _range(limits: Mapping[str, Any], unit: int) -> str:
    """In words; for whole numbers above 0 is from 1."""
    low = limits["Ge"].ge if "Ge" in limits else None
    high = limits["Le"].le if "Le" in limits else None
    if "Gt" in limits and unit:
        low = limits["Gt"].gt + unit
    if "Lt" in limits and unit:
        high = limits["Lt"].lt - unit
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return f" above {limits['Gt'].gt}" if "Gt" in limits else ""
