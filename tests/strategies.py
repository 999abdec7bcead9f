"""Random small valid tables over every axis, kind and key of the spec. No torch here.

The keys are read from the spec classes, so a new kind or key is drawn as soon as it exists.
"""

from typing import Annotated, Any, Literal, get_args, get_origin

from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from tfblock_cli.spec.attention import Pattern
from tfblock_cli.spec.base import Axis, Kind, axis_of, name_of
from tfblock_cli.spec.experiment import DType, Experiment, Kernel
from tfblock_cli.spec.ffn import FFN
from tfblock_cli.spec.initialization import AnyInitialization
from tfblock_cli.spec.norm import Norm, OptionalNorm
from tfblock_cli.spec.norm_placement import NormPlacement, Placement
from tfblock_cli.spec.position import Position
from tfblock_cli.spec.settings import AtOneDepth, Slope

Table = dict[str, Any]
BOOLEANS = st.booleans()
LARGEST_SEQ_LEN = 8


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Of a key inside a kind: floats are above 0, counts small."""
    if get_origin(annotation) is Literal:
        return st.sampled_from(get_args(annotation))
    if get_origin(annotation) is tuple:
        return st.lists(values(get_args(annotation)[0]), min_size=1, max_size=3)
    if get_origin(annotation) is Annotated:
        return values(get_args(annotation)[0])
    small = {bool: BOOLEANS, int: st.integers(1, 12), float: st.floats(1e-6, 2.0)}
    return small[annotation]


def tables(kind: type[Kind]) -> st.SearchStrategy[Table]:
    """Of one kind, with any of its keys."""
    keys = {
        name: axes(field.rebuild_annotation()) if is_axis(field) else values(field.annotation)
        for name, field in kind.model_fields.items()
        if name != "kind"
    }
    required = {name: keys.pop(name) for name in tuple(keys) if kind.model_fields[name].is_required()}
    return st.fixed_dictionaries({"kind": st.just(name_of(kind))} | required, optional=keys)


def is_axis(field: FieldInfo) -> bool:
    """Whether the key is itself one of several kinds."""
    return any(isinstance(item, Axis) for item in field.metadata)


def axes(annotation: Any) -> st.SearchStrategy[str | Table]:
    """A shorthand, an alias or a table of any kind."""
    kinds, _ = axis_of(annotation)
    short = [name for kind in kinds if not has_required_keys(kind) for name in (name_of(kind), *kind.aliases)]
    return st.one_of(st.sampled_from(short) if short else st.nothing(), *map(tables, kinds))


def has_required_keys(kind: type[Kind]) -> bool:
    """Whether its name alone does not describe it."""
    return any(field.is_required() for field in kind.model_fields.values())


def placement_kinds(n_layers: int) -> list[type[Kind]]:
    """That make sense in a stack of n_layers."""
    return [kind for kind in axis_of(NormPlacement)[0] if issubclass(kind, Placement) and kind.min_layers <= n_layers]


def placements(n_layers: int) -> st.SearchStrategy[str | Table]:
    """A norm placement of a stack of n_layers."""
    kinds = placement_kinds(n_layers)
    short = [name for kind in kinds for name in (name_of(kind), *kind.aliases)]
    return st.one_of(st.sampled_from(short), *map(tables, kinds))


@st.composite
def attention_tables(draw: st.DrawFn, *, even: bool) -> tuple[Table, int]:
    """[model.attention], and a d_model that goes with it."""
    n_kv_heads = draw(st.sampled_from([1, 2]))
    n_heads = n_kv_heads * draw(st.sampled_from([1, 2]))
    d_head = draw(st.sampled_from([2, 4] if even else [1, 2, 3, 4]))
    norms = {"qk_norm": axes(OptionalNorm), "inner_norm": axes(OptionalNorm)}
    keys = {"bias": BOOLEANS, "out_bias": BOOLEANS, "pattern": axes(Pattern)} | norms
    table: Table = {"n_heads": n_heads} | draw(st.fixed_dictionaries({}, optional=keys))
    d_model = n_heads * d_head
    if n_kv_heads != n_heads or draw(BOOLEANS):
        table["n_kv_heads"] = n_kv_heads
    if draw(BOOLEANS):
        table["d_head"] = d_head
        d_model = draw(st.integers(1, 16))
    return table, d_model


@st.composite
def override_tables(draw: st.DrawFn, n_layers: int) -> Table:
    """One of [[model.layers]]."""
    index = st.integers(-n_layers, n_layers - 1)
    slices = st.sampled_from(["0::2", "::-1", f"{n_layers - 1}:", ":1", "-1:"])
    keys = {
        "norm": axes(Norm),
        "norm_placement": placements(n_layers),
        "attention": st.fixed_dictionaries(
            {}, optional={"bias": BOOLEANS, "out_bias": BOOLEANS, "pattern": axes(Pattern)}
        ),
        "ffn": axes(FFN) | st.fixed_dictionaries({}, optional={"d_ff": st.integers(1, 12), "bias": BOOLEANS}),
    }
    at = st.lists(index, min_size=1, max_size=3) | slices
    return draw(st.fixed_dictionaries({"at": at}, optional=keys))


@st.composite
def model_tables(draw: st.DrawFn, *, overrides: bool = True) -> Table:
    """[model] as a user may write it: d_model <= 16, at most 4 layers, T <= 8."""
    position = draw(axes(Position))
    turned = "rope" in (position, position["kind"] if isinstance(position, dict) else None)
    attention, d_model = draw(attention_tables(even=turned or draw(BOOLEANS)))
    n_layers = draw(st.integers(1, 4))
    vocab_size = draw(st.sampled_from([0, 3, 11]))
    keys: dict[str, st.SearchStrategy[Any]] = {
        "max_seq_len": st.integers(LARGEST_SEQ_LEN, 16),
        "final_norm": BOOLEANS | st.just("auto"),
        "bias": BOOLEANS,
        "head_bias": BOOLEANS,
        "tie_embeddings": BOOLEANS if vocab_size else st.just(False),
        "dropout": st.floats(0, 1),
        "norm": axes(Norm),
        "norm_placement": placements(n_layers),
        "initialization": axes(AnyInitialization),
        "ffn": axes(FFN) | st.fixed_dictionaries({}, optional={"d_ff": st.integers(1, 12)}),
    }
    if overrides:
        keys["layers"] = st.lists(override_tables(n_layers), max_size=2)
    sizes = {"d_model": d_model, "n_layers": n_layers, "vocab_size": vocab_size}
    return {**sizes, "position": position, "attention": attention} | draw(st.fixed_dictionaries({}, optional=keys))


@st.composite
def gradflow_tables(draw: st.DrawFn, model: Table) -> Table:
    """[gradflow] of a model: what it asks for can be measured there."""
    vocab_size = model["vocab_size"]
    shallowest = model.get("n_layers", 2) if "layers" in model else 1  # where every override finds its layers
    depths = draw(st.lists(st.integers(shallowest, 4), min_size=1, max_size=2, unique=True))
    kinds = placement_kinds(min(depths))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique=True))
    named = st.sampled_from([name_of(kind) for kind in chosen])
    compared = [draw(st.just(name_of(kind)) | tables(kind)) for kind in chosen]
    number = st.floats(-10, 10)
    absent = {"grad.input" if vocab_size else "grad.embedding"}
    if not vocab_size or model.get("tie_embeddings"):
        absent.add("grad.head")
    here = [metric for metric in get_args(AtOneDepth) if metric not in absent]
    limits = st.tuples(number, number).map(lambda pair: {"min": min(pair), "max": max(pair)})
    expect = st.builds(
        lambda table, limits: table | limits,
        st.fixed_dictionaries(
            {"metric": st.sampled_from(here), "placement": named},
            optional={"over": named, "depth": st.sampled_from([0, *depths])},
        ),
        limits | number.map(lambda low: {"min": low}),
    )
    if len(depths) > 1:
        slope = st.sampled_from([f"slope.{metric}" for metric in here if f"slope.{metric}" in get_args(Slope)])
        expect |= st.fixed_dictionaries({"metric": slope, "placement": named, "min": number})
    keys = {
        "baseline": named,
        "seeds": st.integers(1, 3),
        "loss": st.sampled_from(["random_projection", *(["cross_entropy"] if vocab_size else [])]),
        "expect": st.lists(expect, max_size=2),
    }
    return {"placements": compared, "depths": depths} | draw(st.fixed_dictionaries({}, optional=keys))


@st.composite
def experiment_tables(draw: st.DrawFn, *, overrides: bool = True) -> Table:
    """A whole file as a user may write it."""
    model = draw(model_tables(overrides=overrides))
    sizes = {"batch_size": st.integers(1, 2), "seq_len": st.integers(1, LARGEST_SEQ_LEN)}
    keys: dict[str, st.SearchStrategy[Any]] = {
        "name": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
        "seed": st.integers(0, 2**63 - 1),
        "dtype": st.sampled_from(get_args(DType)),
        "kernel": st.sampled_from(get_args(Kernel)),
        "gradflow": gradflow_tables(model),
        "causality": st.just({"declare": "causal"}) | st.just({}),
    }
    given = draw(st.fixed_dictionaries({"input": st.fixed_dictionaries(sizes)}, optional=keys))
    return {**given, "model": model}


def experiments(*, overrides: bool = True) -> st.SearchStrategy[Experiment]:
    """The same with nothing left open."""
    return experiment_tables(overrides=overrides).map(Experiment.model_validate)
