"""ModelSpec: a decoder as a list of blocks, and BlockSpec: one of them, with everything resolved."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ModelWrapValidatorHandler, TypeAdapter, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from tfblock_cli.spec.attention import Attention
from tfblock_cli.spec.base import (
    LARGEST,
    MOST_LAYERS,
    Count,
    Items,
    Layers,
    Spec,
    Table,
    axis_of,
    derived,
    expand,
    fault,
    items,
    lines_of,
    name_of,
    table_of,
    validate_all,
)
from tfblock_cli.spec.ffn import FFN
from tfblock_cli.spec.initialization import GPT2, AnyInitialization
from tfblock_cli.spec.norm import InnerNorm, NoNorm, Norm, RMSNorm
from tfblock_cli.spec.norm_placement import Branch, Function, NormPlacement, Placement, Pre
from tfblock_cli.spec.position import Learned, Position, RoPE
from tfblock_cli.spec.size import Letters, Role, Size, StageSpec, Weight, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """Block ``index`` = 0..n_layers - 1 of a model, nothing left open."""

    index: int
    n_layers: int
    d_model: int
    norm: Norm
    norm_placement: NormPlacement
    attention: Attention
    ffn: FFN
    position: Position
    dropout: float

    @property
    def parts(self) -> tuple[Any, ...]:
        """What makes a block what it is; blocks with equal parts have equal weights and stages."""
        return (self.norm, self.norm_placement, self.attention, self.ffn)

    @property
    def norm_names(self) -> tuple[str, ...]:
        """The block's norms, each once."""
        attention, ffn = self.norm_placement.norm_names()
        return tuple(dict.fromkeys(attention + ffn))

    @property
    def scale_names(self) -> tuple[str, ...]:
        """The branches that the placement multiplies by a vector of its own."""
        return () if self.norm_placement.initial_scale is None else ("attention", "ffn")

    def weights(self) -> Iterator[Weight]:
        """Every parameter of the block."""
        D = Size(self.d_model, "D")
        for weight in self.attention.weights(D):
            yield weight.under("attention")
        for weight in self.ffn.weights(D):
            yield weight.under("ffn")
        yield from self.norm_weights()

    def norm_weights(self) -> Iterator[Weight]:
        """Those of its norms and of the placement's own vectors."""
        D = Size(self.d_model, "D")
        for name in self.norm_names:
            yield from self.norm.weights(f"norms.{name}", D)
        for name in self.scale_names:
            yield Weight(name=f"scales.{name}.weight", shape=(D,), role="scale", kind="gain")

    def stages(self, letters: Letters) -> tuple[StageSpec, ...]:
        """Every named point, in the order in which the placement's formula comes by: it is run on a float."""
        stream = (letters.B, letters.T, letters.D)
        order: list[StageSpec] = []

        def passing(*stages: StageSpec) -> Function:
            def visit(x: float) -> float:
                order.extend(stages)
                return x

            return visit

        attention, ffn = (
            Branch(
                f=passing(*(stage.under(name) for stage in part.stages(letters))),
                norms=tuple(passing(StageSpec(name=f"norms.{norm}", shape=stream)) for norm in norms),
                out=passing(StageSpec(name=f"residual.{name}", shape=stream)),
                scale=passing(StageSpec(name=f"scales.{name}", shape=stream)),
            )
            for name, part, norms in zip(
                ("attention", "ffn"),
                (self.attention, self.ffn),
                self.norm_placement.norm_names(),
                strict=True,
            )
        )
        self.norm_placement.block(1.0, attention, ffn, self.index + 1, self.n_layers)
        return tuple(order)


SLICE = re.compile(r"^-?\d{0,9}(:-?\d{0,9}){1,2}$")
AXES_OF_A_BLOCK = ("norm", "norm_placement", "attention", "ffn")


class LayerOverride(Spec):
    """What is different in some layers: ``at = [0, 5]`` or a slice such as ``at = "1::2"``.

    A table that names a kind replaces the axis; other keys change those keys alone.
    """

    at: Items[Annotated[int, Field(ge=-LARGEST, le=LARGEST)]] | Annotated[str, Field(pattern=SLICE, examples=["1::2"])]
    norm: str | Table = Field(default_factory=dict)
    norm_placement: str | Table = Field(default_factory=dict)
    attention: Table = Field(default_factory=dict)
    ffn: str | Table = Field(default_factory=dict)

    @property
    def changes(self) -> dict[str, str | Table]:
        """What it changes, by axis."""
        return {key: change for key in AXES_OF_A_BLOCK if (change := getattr(self, key))}

    def layers(self, n_layers: int) -> tuple[int, ...]:
        """The layers that it speaks of."""
        return layers_at(self.at, n_layers)


def layers_at(at: str | tuple[int, ...], n_layers: int) -> tuple[int, ...]:
    """The layers that a slice or a list of indices names.

    Raises:
        IndexError: There is no such layer.
        ValueError: The slice has step 0.
    """
    if isinstance(at, str):
        start, stop, step = ([int(part) if part else None for part in at.split(":")] + [None])[:3]
        return tuple(range(n_layers)[start:stop:step])
    return tuple(range(n_layers)[index] for index in at)


class ModelSpec(Spec):
    """A decoder-only transformer.

    Attributes:
        d_model: Width D of the residual stream.
        n_layers: Blocks L.
        vocab_size: V; 0 is a stack without embedding and head that maps (B, T, D) to (B, T, D).
        max_seq_len: Rows P of a learned position table, and the longest sequence allowed.
        final_norm: Whether a norm follows the last block; "auto" is what the norm placement declares.
        bias: Default of attention.bias, attention.out_bias, ffn.bias and head_bias.
        head_bias: Whether the output layer has a bias; ``bias`` unless given.
        tie_embeddings: Whether the output layer uses the token table.
        dropout: On the attention weights and behind the last FFN matrix; never on the residual stream.
        layers: What is different in some layers.
    """

    d_model: Count
    n_layers: Layers = 2
    vocab_size: Annotated[int, Field(ge=0, le=LARGEST)] = 256
    max_seq_len: Count = 2048
    final_norm: bool | Literal["auto"] = "auto"
    bias: bool = False
    head_bias: bool = derived("bias")
    tie_embeddings: bool = False
    dropout: Annotated[float, Field(ge=0, le=1)] = 0.0
    norm: Norm = RMSNorm()
    norm_placement: NormPlacement = Pre()
    position: Position = RoPE()
    initialization: AnyInitialization = GPT2()
    attention: Attention
    ffn: FFN = derived("swiglu with d_ff = 4 · d_model")
    layers: Items[LayerOverride] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _resolve(cls, table: Any, handler: ModelWrapValidatorHandler["ModelSpec"]) -> "ModelSpec":
        if not isinstance(table, Mapping):
            return handler(table)
        attention = table.get("attention")
        d_head_given = isinstance(attention, Mapping) and "d_head" in attention
        table = with_defaults(table)
        model = validate_all(cls.__name__, table, handler, _faults(table, d_head_given=d_head_given))
        return validate_all(cls.__name__, table, lambda _: model, model._layer_faults())

    def _layer_faults(self) -> Iterator[PydanticCustomError | InitErrorDetails]:
        """What is wrong with the overrides, which can only be seen once the rest is sound."""
        parts, faults = self._overridden()
        yield from faults
        placements = {part["norm_placement"].kind: part["norm_placement"] for part in parts if "norm_placement" in part}
        for kind, placement in ({self.norm_placement.kind: self.norm_placement} | placements).items():
            if placement.min_layers > self.n_layers:
                message = f"{kind} needs at least {placement.min_layers} layers, not {self.n_layers}"
                yield fault(message, "layers" if kind in placements else "norm_placement", "n_layers")

    def changed(self, **keys: Any) -> "ModelSpec":
        """The same model with other values of some keys, validated anew."""
        return ModelSpec.model_validate(self.model_dump() | keys)

    @property
    def shared_weights(self) -> tuple[Any, ...]:
        """What of the placement its sub-layers and their first weights depend on; equal values can share them."""
        gains = tuple(self.norm_placement.gain(role, self.n_layers) for role in get_args(Role))
        return (self.attention.inner_norm, self.ffn.inner_norm, gains)

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block."""
        return self.norm_placement.final_norm if self.final_norm == "auto" else self.final_norm

    def blocks(self) -> tuple[BlockSpec, ...]:
        """The layers, first to last: the only place where they can differ."""
        parts, _ = self._overridden()
        shared = {axis: getattr(self, axis) for axis in AXES_OF_A_BLOCK}
        return tuple(
            BlockSpec(
                index=index,
                n_layers=self.n_layers,
                d_model=self.d_model,
                position=self.position,
                dropout=self.dropout,
                **shared | changed,
            )
            for index, changed in enumerate(parts)
        )

    def _overridden(self) -> tuple[list[Table], list[PydanticCustomError | InitErrorDetails]]:
        """The axes that are different in every layer, and what is wrong with the overrides, each fault once."""
        parts: list[Table] = [{} for _ in range(self.n_layers)]
        faults: dict[Any, PydanticCustomError | InitErrorDetails] = {}
        for number, override in enumerate(self.layers):
            for layer, (axis, change) in product(override.layers(self.n_layers), override.changes.items()):
                try:
                    parts[layer][axis] = self._changed(axis, parts[layer].get(axis, getattr(self, axis)), change)
                except ValidationError as error:
                    for line in lines_of(error):
                        between_keys = isinstance(line["type"], PydanticCustomError)  # and names the axis itself
                        line["loc"] = ("layers", number) if between_keys else ("layers", number, axis, *line["loc"])
                        faults.setdefault((line["loc"], str(line["type"])), line)
        changes: list[list[Table]] = [[] for _ in parts]
        for override in self.layers:
            for layer in override.layers(self.n_layers):
                changes[layer].append(override.changes)
        for part, changed in zip(parts, changes, strict=True):
            if changed:
                part |= self._inner_norms(part, changed)
        return parts, list(faults.values())

    def _inner_norms(self, part: Table, changed: list[Table]) -> Table:
        """The attention and the FFN of a layer, as far as their inner norms follow from its own norm and placement.

        What the layer says of an inner norm stands, and so does one that the model's placement did not bring.
        """
        brought = brought_inner_norm(self.norm, self.norm_placement)
        brings = brought_inner_norm(*(part.get(axis, getattr(self, axis)) for axis in ("norm", "norm_placement")))
        found = {}
        for axis in ("attention", "ffn"):
            changes = [change.get(axis, {}) for change in changed]
            told = any(isinstance(change, Mapping) and "inner_norm" in change for change in changes)
            replaced = any(isinstance(change, str) or "kind" in change for change in changes)
            sub_layer = part.get(axis, getattr(self, axis))
            if not told and sub_layer.inner_norm != brings and (replaced or sub_layer.inner_norm == brought):
                found[axis] = sub_layer.model_copy(update={"inner_norm": brings})
        return found

    def _changed(self, axis: str, part: Spec, change: str | Table) -> Any:
        """One axis of one layer: replaced if the change names a kind, else changed key by key."""
        rest = {"d_model": self.d_model, "bias": self.bias, "position": self.position.model_dump()}
        table = change if isinstance(change, str) or "kind" in change else _standing(part, rest) | change
        d_head_given = isinstance(table, Mapping) and "d_head" in table
        whole = with_defaults(rest | {axis: table})
        return validate_all(
            axis, whole[axis], _adapter(axis).validate_python, _faults(whole, d_head_given=d_head_given)
        )

    def outer_weights(self) -> Iterator[Weight]:
        """Every parameter outside the blocks, in the order of the computation; a tied head has no weight."""
        D, V = Size(self.d_model, "D"), Size(self.vocab_size, "V")
        if V:
            yield Weight(name="embed.weight", shape=(V, D), role="embed", kind="matrix")
        yield from self.position.weights(Size(self.max_seq_len, "P"), D)
        if self.has_final_norm:
            yield from self.norm.weights("final_norm", D)
        if V:
            for weight in linear("head", "head", D, V, bias=self.head_bias):
                if weight.kind == "bias" or not self.tie_embeddings:
                    yield weight

    def weights(self) -> Iterator[Weight]:
        """Every parameter once, under its name in the built model."""
        yield from self.outer_weights()
        for block in self.blocks():
            for weight in block.weights():
                yield weight.under(f"blocks.{block.index}")

    def letters(self, batch_size: int, seq_len: int) -> Letters:
        """The letters of an input of batch_size sequences of seq_len tokens."""
        return Letters(Size(batch_size, "B"), Size(seq_len, "T"), Size(seq_len, "S"), Size(self.d_model, "D"))

    def stages(self, letters: Letters) -> Iterator[StageSpec]:
        """Every named point, in the order of the computation."""
        before, after = self._ends(letters)
        yield from before
        for block in self.blocks():
            for stage in block.stages(letters):
                yield stage.under(f"blocks.{block.index}")
        yield from after

    def outer_stages(self, letters: Letters) -> tuple[StageSpec, ...]:
        """Those outside the blocks."""
        before, after = self._ends(letters)
        return before + after

    def _ends(self, letters: Letters) -> tuple[tuple[StageSpec, ...], tuple[StageSpec, ...]]:
        """The stages before the first block and behind the last."""
        stream = (letters.B, letters.T, letters.D)
        before, after = [StageSpec(name="embedded", shape=stream)], []
        if isinstance(self.position, Learned):
            before.insert(0, StageSpec(name="position", shape=(letters.T, letters.D)))
        if self.vocab_size:
            before.insert(0, StageSpec(name="embed", shape=stream))
        if self.has_final_norm:
            after.append(StageSpec(name="final_norm", shape=stream))
        if self.vocab_size:
            V = Size(self.vocab_size, "V")
            after.append(StageSpec(name="head", shape=(letters.B, letters.T, V), inner=letters.D))
        return tuple(before), tuple(after)


def _standing(part: Spec, rest: Table) -> Table:
    """What of a part stands when a layer changes some of its keys: all but the sizes that only follow from others.

    With H heads and K = H, a layer of other H has K = H as well; with K < H, K stands.
    """
    table = part.model_dump()
    if isinstance(part, Attention):
        follows = with_defaults(rest | {"attention": {"n_heads": part.n_heads}})["attention"]
        divides = rest["d_model"] % part.n_heads == 0  # else d_head was given, whatever its value
        for key in ("n_kv_heads", "d_head") if divides else ("n_kv_heads",):
            if table[key] == follows[key]:
                del table[key]
    return table


def brought_inner_norm(norm: InnerNorm, placement: Placement) -> InnerNorm:
    """The norm that a placement's method has inside attention and FFN."""
    return norm if placement.inner_norm else NoNorm()


@cache
def _adapter(axis: str) -> TypeAdapter[Any]:
    return TypeAdapter(ModelSpec.__annotations__[axis])


def with_defaults(table: Mapping[str, Any]) -> Table:
    """The table of a model with every default written out that follows from another key.

    Where the other key is missing or wrong, 1 stands in, so that its fault is told once and not twice.
    """
    model = dict(table)
    d_model = _count(model.get("d_model"))
    bias = model.get("bias", False)
    model.setdefault("head_bias", bias)
    attention = model.get("attention", {})
    if isinstance(attention, Mapping):
        n_heads = _count(attention.get("n_heads"))
        biases = {"bias": bias, "out_bias": bias}
        model["attention"] = {"n_kv_heads": n_heads, "d_head": max(d_model // n_heads, 1)} | biases | dict(attention)
    ffn = expand(FFN, model.get("ffn", {}))
    model["ffn"] = {"d_ff": 4 * d_model, "bias": bias} | dict(ffn) if isinstance(ffn, Mapping) else ffn
    if _wants_inner_norm(model):
        norm = model.get("norm", "rmsnorm")
        for part in ("attention", "ffn"):
            if isinstance(model[part], Mapping):
                model[part] = {"inner_norm": norm} | dict(model[part])
    return model


def _wants_inner_norm(model: Table) -> bool:
    """Whether the method of the norm placement has norms inside attention and FFN."""
    placement = expand(NormPlacement, model.get("norm_placement", {}))
    kind = placement.get("kind") if isinstance(placement, Mapping) else None
    kinds, _ = axis_of(NormPlacement)
    return any(cls.inner_norm for cls in kinds if issubclass(cls, Placement) and name_of(cls) == kind)


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 1


def _faults(model: Table, *, d_head_given: bool) -> Iterator[PydanticCustomError | InitErrorDetails]:
    """Rules between keys, on a table whose single keys may be wrong: those are told elsewhere."""
    attention = model["attention"] if isinstance(model["attention"], Mapping) else {}
    counts = (model.get("d_model"), *(attention.get(key) for key in ("n_heads", "n_kv_heads", "d_head")))
    if all(_count(count) == count and type(count) is int for count in counts):
        d_model, n_heads, n_kv_heads, d_head = map(_count, counts)
        position = expand(Position, model.get("position", {}))
        if d_model % n_heads and not d_head_given:
            yield fault(
                f"d_model = {d_model} is not divisible by n_heads = {n_heads}; change one or give attention.d_head",
                "d_model",
                "attention.n_heads",
            )
        elif d_head % 2 and isinstance(position, Mapping) and position.get("kind") == "rope":
            yield fault(
                f"rope turns pairs of features, and d_head = {d_head} is odd",
                "position",
                *(("attention.d_head",) if d_head_given else ("d_model", "attention.n_heads")),
            )
        if n_heads % n_kv_heads:
            yield fault(
                f"n_heads = {n_heads} is not divisible by n_kv_heads = {n_kv_heads}: every key-value head serves as "
                "many query heads as the others",
                "attention.n_heads",
                "attention.n_kv_heads",
            )
    if model.get("vocab_size") == 0 and model.get("tie_embeddings") is True:
        yield fault("a stack without a vocabulary has no embedding to tie", "tie_embeddings", "vocab_size")
    n_layers, overrides = model.get("n_layers", 2), model.get("layers", ())
    if type(n_layers) is int and 0 < n_layers <= MOST_LAYERS and isinstance(overrides, list | tuple):
        for number, override in enumerate(overrides):
            at = override.get("at") if isinstance(override, Mapping) else None
            if message := misses(at, n_layers):
                yield fault(message, f"layers.{number}.at")
    yield from _faults_of_overrides(model)


def _faults_of_overrides(model: Table) -> Iterator[InitErrorDetails]:
    """What the keys of overrides have wrong in themselves: told beside the faults of the rest.

    Where an earlier override has brought another kind, they are looked at once the rest is sound.
    """
    replaced = set()
    for number, override in enumerate(items(model.get("layers"))):
        for axis in AXES_OF_A_BLOCK:
            written = table_of(override).get(axis)
            change = {"kind": written} if isinstance(written, str) else table_of(written)
            if "kind" in change:
                replaced.add(axis)
                table = change
            elif axis in replaced or not change:
                continue
            else:
                table = table_of(model["attention"] if axis == "attention" else _full(axis, model)) | change
            kinds = 0 if axis == "attention" else 1  # pydantic names the kind, too
            try:
                _adapter(axis).validate_python(with_defaults({**model, axis: table})[axis])
            except ValidationError as error:
                for line in lines_of(error):
                    key = next(iter(line["loc"][kinds:]), "kind")
                    if key in change and not isinstance(line["type"], PydanticCustomError):  # a rule between keys
                        yield {**line, "loc": ("layers", number, axis, *line["loc"])}


def _full(axis: str, model: Table) -> Any:
    """The table of an axis of a model; of its default kind if the model has none."""
    return expand(ModelSpec.__annotations__[axis], model.get(axis, {}))


def misses(at: Any, n_layers: int) -> str:
    """What is wrong with a sound ``at`` for so many layers, or ""; an unsound one is told elsewhere."""
    there = f"the layers are 0 to {n_layers - 1}"
    if isinstance(at, str) and SLICE.match(at):
        try:
            return "" if layers_at(at, n_layers) else f"at = {at!r} names no layer: {there}"
        except ValueError:
            return f"at = {at!r} has step 0"
    indices = at if isinstance(at, list | tuple) and all(type(index) is int for index in at) else [0]
    missing = [str(index) for index in indices if not -n_layers <= index < n_layers]
    if missing:
        return f"there is no layer {', '.join(missing)}: {there}"
    return "" if indices else f"at = [] names no layer: {there}"
