"""Spec, the base of every description, and Axis, which turns a union of them into one tagged value."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

T = TypeVar("T")
Table = dict[str, Any]


class Spec(BaseModel):
    """A frozen table of the experiment file: unknown keys, other types, nan and inf are refused."""

    # A validator is built when it is first used: no run needs all of them.
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Table:
        """As pydantic has it, except that a key with a ``derived`` default need not be written."""
        result = handler.resolve_ref_schema(handler(schema))
        derived = {name for name, key in result.get("properties", {}).items() if "derived" in key}
        required = [name for name in result.get("required", ()) if name not in derived]
        result.pop("required", None)
        return {**result, "required": required} if required else result


LARGEST = 2**31 - 1
Count = Annotated[int, Field(gt=0, le=LARGEST)]
"""A whole number of something; the upper limit catches slips of the finger before they are multiplied."""
MOST_LAYERS = 10_000
Layers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
"""A number of blocks; every block is an object of its own, so the limit is lower."""


def derived(rule: str) -> Any:
    """A key whose default follows from other keys by ``rule``; it is filled in before the table is validated."""
    return Field(json_schema_extra={"derived": rule})


def fault(message: str, *keys: str) -> PydanticCustomError:
    """A rule that is broken. ``keys`` are relative to the place that raises it; "" is that place itself."""
    return PydanticCustomError("fault", "{message}", {"message": message, "keys": keys})


def lines_of(error: ValidationError, *above: str | int) -> Iterator[InitErrorDetails]:
    """The lines of an error, to be raised again from a place further up."""
    for line in error.errors(include_url=False):
        kind: Any = line["type"]
        if kind == "fault":
            kind = PydanticCustomError(kind, "{message}", line["ctx"])
        yield {"type": kind, "loc": (*above, *line["loc"]), "input": line["input"], "ctx": line.get("ctx", {})}


def validate_all(
    title: str,
    table: Any,
    handler: Callable[[Any], T],
    faults: Iterable[PydanticCustomError | InitErrorDetails],
) -> T:
    """What ``handler`` makes of the table, or every fault at once: its own and those between keys."""
    lines: list[InitErrorDetails] = [
        {"type": fault, "loc": (), "input": table} if isinstance(fault, PydanticCustomError) else fault
        for fault in faults
    ]
    try:
        value = handler(table)
    except ValidationError as error:
        lines += lines_of(error)
    else:
        if not lines:
            return value
    raise ValidationError.from_exception_data(title, lines)


Items = Annotated[tuple[T, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)]
"""A TOML array, kept as a tuple."""


class OneOrMore:
    """Annotates a tuple: an array, whose only item may stand without brackets."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: tuple(value) if isinstance(value, list) else (value,) if isinstance(value, str) else value,
            handler.generate_schema(source),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Table:
        array = handler(schema)
        return {"anyOf": [array["items"], array]}


def table_of(value: Any) -> Table:
    """A table that may be no table, for rules that look at one before it is validated."""
    return dict(value) if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """The items of what may be no array."""
    return list(value) if isinstance(value, list | tuple) else []


def listed(values: Iterable[Any]) -> str:
    """Values in a sentence."""
    return ", ".join(map(str, values))


class Kind(Spec):
    """One variant of an axis. Its ``kind`` is the literature's name in lower_snake_case.

    Attributes:
        aliases: Other names in use for the same thing; they become ``kind`` on load.
    """

    aliases: ClassVar[tuple[str, ...]] = ()
    kind: str


class Axis:
    """Annotates a union of kinds: ``Norm = Annotated[RMSNorm | LayerNorm, Axis("rmsnorm")]``.

    The union is the registry. A value is a table with a ``kind``, the bare name of a kind (``norm = "rmsnorm"``),
    or a table without a kind, which is one of the default kind.
    """

    def __init__(self, default: str) -> None:
        self.default = default
        self.aliases: list[str] = []

    def expand(self, value: Any, kinds: tuple[type[Kind], ...]) -> Any:
        """The full table of a shorthand; anything that is no shorthand is returned as it is."""
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, Mapping):
            return value
        kind = value.get("kind", self.default)
        canonical = {alias: name_of(cls) for cls in kinds for alias in cls.aliases}
        return {"kind": canonical.get(kind, kind) if isinstance(kind, str) else kind} | {
            key: value[key] for key in value if key != "kind"
        }

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = get_args(source)
        self.aliases = sorted(alias for kind in kinds for alias in kind.aliases)
        union = handler.generate_schema(Annotated[source, Field(discriminator="kind")])
        return core_schema.no_info_before_validator_function(lambda value: self.expand(value, kinds), union)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Table:
        tables = handler(schema)
        references = tables["discriminator"]["mapping"]
        names = sorted(  # a kind with a key that must be given has no shorthand
            kind
            for kind, table in references.items()
            if not handler.resolve_ref_schema({"$ref": table}).get("required")
        )
        forms = [{"enum": names + self.aliases}, *tables["oneOf"]]
        if self.aliases:
            forms.append({"type": "object", "properties": {"kind": {"enum": self.aliases}}, "required": ["kind"]})
        return {"anyOf": forms}


def axis_of(annotation: Any) -> tuple[tuple[type[Kind], ...], Axis]:
    """The kinds and the Axis of an annotated union: what ``--help``, the loader and the tests read."""
    union, *metadata = get_args(annotation)
    assert isinstance(union, UnionType)
    return get_args(union), next(item for item in metadata if isinstance(item, Axis))


def expand(annotation: Any, value: Any) -> Any:
    """The full table of a shorthand on the axis that ``annotation`` describes."""
    kinds, axis = axis_of(annotation)
    return axis.expand(value, kinds)


def name_of(kind: type[Kind]) -> str:
    """The literature's name of a kind."""
    name = kind.model_fields["kind"].default
    assert isinstance(name, str)
    return name


def names(annotation: Any) -> tuple[str, ...]:
    """The names of all kinds of an axis, in the order in which they were written, aliases last."""
    kinds, _ = axis_of(annotation)
    return (*map(name_of, kinds), *(alias for kind in kinds for alias in kind.aliases))
