"""Experiment: one question about one model, with nothing left open."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from tfblock_cli.spec.base import (
    MOST_LAYERS,
    Count,
    Spec,
    Table,
    axis_of,
    expand,
    fault,
    items,
    listed,
    name_of,
    names,
    table_of,
    validate_all,
)
from tfblock_cli.spec.model import ModelSpec, misses
from tfblock_cli.spec.norm_placement import NormPlacement, Placement
from tfblock_cli.spec.settings import CausalitySettings, GradflowSettings, canonical
from tfblock_cli.spec.train import Trained, train_faults

DType = Literal["float64", "float32", "bfloat16", "float16"]
Kernel = Literal["sdpa", "eager"]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Device = Annotated[str, Field(pattern=r"^(cpu|meta|(cuda|mps)(:\d+)?)$", examples=["cpu", "cuda:1"])]
Threads = Annotated[int, Field(gt=0, le=1024)]
BYTES: Mapping[DType, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class InputSpec(Spec):
    """[input]: B sequences of T tokens."""

    batch_size: Count = 1
    seq_len: Count = 16


class Experiment(Spec):
    """One question about one model.

    Attributes:
        name: Of its run folders; the file's stem unless given.
        seed: Everything random comes from it.
        dtype: Of weights and activations.
        device: Where torch runs: cpu, cuda, cuda:1, mps or meta (shapes without numbers).
        kernel: sdpa (torch's fused attention) or eager (scores and weights spelled out).
        threads: That torch may use.
    """

    name: Name = "tfblock"
    seed: Seed = 0
    dtype: DType = "float32"
    device: Device = "cpu"
    kernel: Kernel = "sdpa"
    threads: Threads = 1
    input: InputSpec = InputSpec()
    model: ModelSpec
    causality: CausalitySettings = CausalitySettings()
    gradflow: GradflowSettings = Field(json_schema_extra={"derived": "from model"})

    @model_validator(mode="wrap")
    @classmethod
    def _resolve(cls, table: Any, handler: ModelWrapValidatorHandler["Experiment"]) -> "Experiment":
        if not isinstance(table, Mapping):
            return handler(table)
        table = _with_defaults(table)
        return validate_all(cls.__name__, table, handler, _faults(table))


def _kind(placement: Any) -> Any:
    return table_of(expand(NormPlacement, placement)).get("kind")


def _with_defaults(table: Mapping[str, Any]) -> Table:
    """The table with the defaults of [gradflow] written out, which follow from [model]."""
    experiment = dict(table)
    gradflow, model = experiment.get("gradflow", {}), table_of(experiment.get("model"))
    if isinstance(gradflow, Mapping):
        placements = gradflow.get("placements", ["pre"])
        first = placements[0] if isinstance(placements, list | tuple) and placements else "pre"
        loss = "random_projection" if model.get("vocab_size", 256) == 0 else "cross_entropy"
        defaults = {"baseline": _kind(first), "depths": [model.get("n_layers", 2)], "loss": loss}
        experiment["gradflow"] = defaults | dict(gradflow)
    return experiment


def _faults(experiment: Table) -> Iterator[PydanticCustomError]:
    """Rules between tables, on tables whose single keys may be wrong: those are told elsewhere."""
    model = table_of(experiment.get("model"))
    seq_len = table_of(experiment.get("input")).get("seq_len", 16)
    max_seq_len = model.get("max_seq_len", 2048)
    if type(seq_len) is int and type(max_seq_len) is int and seq_len > max_seq_len > 0:
        yield fault(
            f"seq_len = {seq_len} is longer than max_seq_len = {max_seq_len}",
            "input.seq_len",
            "model.max_seq_len",
        )
    has_vocabulary = model.get("vocab_size", 256) != 0
    yield from _depth_faults(table_of(experiment.get("gradflow")), model)
    yield from train_faults(table_of(experiment.get("gradflow")), model)
    yield from _gradflow_faults(
        table_of(experiment.get("gradflow")),
        has_vocabulary=has_vocabulary,
        has_head=has_vocabulary and model.get("tie_embeddings") is not True,
    )


def _depth_faults(gradflow: Table, model: Table) -> Iterator[PydanticCustomError]:
    """Depths can be told apart, and every override of some layers finds its layers at each of them."""
    written = gradflow.get("depths")
    depths = [depth for depth in items(written) if type(depth) is int and 0 < depth <= MOST_LAYERS]
    if written in ([], ()):
        yield fault("depths is empty: name at least one", "gradflow.depths")
    if len(set(depths)) < len(depths):
        yield fault(f"a depth stands twice in {listed(depths)}; rows are told apart by it", "gradflow.depths")
    for number, override in enumerate(items(model.get("layers"))):
        for depth in dict.fromkeys(depths):
            message = misses(table_of(override).get("at"), depth)
            if message and depth != model.get("n_layers", 2):  # which is told of the model itself
                yield fault(f"at a depth of {depth}, {message}", f"model.layers.{number}.at", "gradflow.depths")
    shallow = min(depths, default=MOST_LAYERS)
    kinds = [_kind(placement) for placement in items(gradflow.get("placements"))]
    for kind in axis_of(NormPlacement)[0]:
        if issubclass(kind, Placement) and name_of(kind) in kinds and shallow < kind.min_layers:
            yield fault(f"{name_of(kind)} needs at least {kind.min_layers} layers, not {shallow}", "gradflow.depths")


def _gradflow_faults(gradflow: Table, *, has_vocabulary: bool, has_head: bool) -> Iterator[PydanticCustomError]:
    """What [gradflow] asks for must be there to be measured."""
    if gradflow.get("loss") == "cross_entropy" and not has_vocabulary:
        yield fault("cross_entropy needs a vocabulary; use random_projection", "gradflow.loss", "model.vocab_size")
    depths = items(gradflow.get("depths"))
    expects = [table_of(expect) for expect in items(gradflow.get("expect", ()))]
    missing = "grad.input" if has_vocabulary else "grad.embedding"
    for number, expect in enumerate(expects):
        where = f"gradflow.expect.{number}"
        metric = str(expect.get("metric"))
        if metric.removeprefix("slope.") == missing:
            there = "grad.embedding, since the model has a" if has_vocabulary else "grad.input, since the model has no"
            yield fault(f"{missing} is not measured here; use {there} vocabulary", f"{where}.metric")
        if metric.removeprefix("slope.") == "grad.head" and not has_head:
            yield fault("grad.head is not measured: the model has no output matrix of its own", f"{where}.metric")
        if metric.startswith("slope.") and len(set(map(str, depths))) < 2:
            message = f"a slope needs two depths, not depths = {listed(depths)}"
            yield fault(message, f"{where}.metric", "gradflow.depths")
        if metric.startswith("slope.") and expect.get("depth", 0):
            yield fault("a slope is over all depths; leave depth out", f"{where}.depth", f"{where}.metric")
        if expect.get("mode") == "ci" and gradflow.get("seeds", 5) == 1 and metric not in get_args(Trained):
            yield fault("mode = 'ci' needs two seeds: one has no interval", f"{where}.mode", "gradflow.seeds")
        if (depth := expect.get("depth", 0)) and depth not in depths:
            yield fault(f"depth = {depth} is not among depths = {listed(depths)}", f"{where}.depth", "gradflow.depths")
    placements = gradflow.get("placements", ["pre", "post"])
    kinds = [_kind(placement) for placement in items(placements)]
    if placements in ([], ()):
        yield fault("placements is empty: name at least one", "gradflow.placements")
    if len(set(map(str, kinds))) < len(kinds):
        yield fault("a placement stands twice; rows are told apart by its kind", "gradflow.placements")
    for key, name in _named_placements(gradflow, expects):
        if name not in names(NormPlacement):
            yield fault(f"{name!r} is no norm placement; there are {listed(names(NormPlacement))}", key)
        elif kinds and name not in kinds:
            yield fault(f"{name!r} is not among placements = {listed(kinds)}", key, "gradflow.placements")


def _named_placements(gradflow: Table, expects: list[Table]) -> Iterator[tuple[str, str]]:
    """Where [gradflow] names a placement that must be among those compared."""
    places = {"gradflow.baseline": gradflow.get("baseline")}
    for number, expect in enumerate(expects):
        places[f"gradflow.expect.{number}.placement"] = expect.get("placement")
        places[f"gradflow.expect.{number}.over"] = expect.get("over") or None
    for key, name in places.items():
        if isinstance(name, str):
            yield key, canonical(name)
