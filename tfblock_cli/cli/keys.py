"""What the spec itself says of a key of the experiment file: its type, its choices, its default."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from tfblock_cli.spec.base import Axis, Kind, Spec, axis_of, name_of, names
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.target import TargetExperiment


@cache
def field(key: str) -> FieldInfo:
    """The field of a dotted key, such as ``model.attention.n_heads``; on an axis, of its default kind.

    Raises:
        KeyError: There is no such key.
    """
    *path, last = key.split(".")
    table: type[Spec] = TargetExperiment if path[:1] == ["target"] else Experiment
    for name in path:
        table = _table(table.model_fields[name].rebuild_annotation())
    return table.model_fields[last]


@cache
def choices(key: str) -> tuple[str, ...]:
    """The kinds or words that a key, or each item of a list, may hold; () where it is free."""
    for annotation in _nested(field(key).rebuild_annotation()):
        if _axis(annotation):
            return names(annotation)
        if get_origin(annotation) is Literal:
            return get_args(annotation)
    return ()


@cache
def default(key: str) -> str:
    """The default of a key in words; "" where it has none."""
    found = field(key)
    extra = found.json_schema_extra
    if isinstance(extra, dict) and "derived" in extra:
        return str(extra["derived"])
    return "" if found.is_required() else _words(found.default)


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.kind if isinstance(value, Kind) else f"{value}"


def _nested(annotation: Any) -> Iterator[Any]:
    """The annotation, then what it is made of: ``Annotated[tuple[X, ...], ...]``, the tuple, X."""
    while annotation is not None:
        yield annotation
        annotation = next(iter(get_args(annotation)), None)


def _table(annotation: Any) -> type[Spec]:
    if axis := _axis(annotation):
        return next(kind for kind in axis_of(annotation)[0] if name_of(kind) == axis.default)
    table: type[Spec] = annotation
    return table


def _axis(annotation: Any) -> Axis | None:
    return next((item for item in get_args(annotation) if isinstance(item, Axis)), None)
