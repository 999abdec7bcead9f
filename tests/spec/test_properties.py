"""What holds for every experiment that is accepted; the loader's tests say what is refused."""

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.strategies import experiment_tables, experiments, model_tables
from tfblock_cli.spec.base import axis_of, name_of, names
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.ffn import FFN
from tfblock_cli.spec.initialization import AnyInitialization
from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.norm import Norm, OptionalNorm
from tfblock_cli.spec.norm_placement import NormPlacement
from tfblock_cli.spec.position import Position

AXES = {
    "norm": Norm,
    "norm_placement": NormPlacement,
    "ffn": FFN,
    "position": Position,
    "initialization": AnyInitialization,
}
ALL_AXES = [*AXES.values(), OptionalNorm]
SMALL = settings(max_examples=50)


@SMALL
@given(experiments())
def test_resolving_twice_is_resolving_once(experiment: Experiment) -> None:
    assert Experiment.model_validate(experiment.model_dump()) == experiment


@SMALL
@given(experiment_tables())
def test_resolving_leaves_the_table_alone(table: dict[str, Any]) -> None:
    before = repr(table)
    Experiment.model_validate(table)
    assert repr(table) == before


@SMALL
@given(experiments(), st.sampled_from(["", "model", "input", "gradflow"]))
def test_an_unknown_key_is_refused_in_every_table(experiment: Experiment, where: str) -> None:
    table = experiment.model_dump()
    (table[where] if where else table)["unknown"] = 1
    with pytest.raises(ValidationError, match="unknown"):
        Experiment.model_validate(table)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("value", [3, True, None, [], "unknown", {"kind": "unknown"}, {"kind": 3}], ids=str)
def test_a_value_that_is_no_kind_is_refused(axis: str, value: Any) -> None:
    table = {"d_model": 4, "attention": {"n_heads": 2}}
    ModelSpec.model_validate(table)
    with pytest.raises(ValidationError):
        ModelSpec.model_validate(table | {axis: value})


@pytest.mark.parametrize("axis", AXES)
def test_shorthand_alias_and_table_are_the_same(axis: str) -> None:
    table = {"d_model": 4, "n_layers": 4, "attention": {"n_heads": 2}}
    kinds, default = axis_of(AXES[axis])
    for kind in kinds:
        whole = ModelSpec.model_validate(table | {axis: {"kind": name_of(kind)}})
        assert getattr(whole, axis).kind == name_of(kind)
        for short in (name_of(kind), *kind.aliases):
            assert ModelSpec.model_validate(table | {axis: short}) == whole
        if name_of(kind) == default.default:
            assert ModelSpec.model_validate(table | {axis: {}}) == whole == ModelSpec.model_validate(table)


@pytest.mark.parametrize("axis", ALL_AXES, ids=lambda axis: axis_of(axis)[1].default)
def test_every_name_of_an_axis_is_its_own(axis: Any) -> None:
    kinds, default = axis_of(axis)
    assert len(set(names(axis))) == len(names(axis))
    assert default.default in names(axis)
    assert all(kind.__doc__ for kind in kinds)


@SMALL
@given(experiments())
def test_weights_are_named_once_and_their_slices_fill_them(experiment: Experiment) -> None:
    weights = list(experiment.model.weights())
    assert len({weight.name for weight in weights}) == len(weights)
    for weight in weights:
        assert weight.count == prod(weight.shape) > 0
        assert sum(leaf.count for leaf in weight.leaves) == weight.count
        assert sum(leaf.shape[0] for leaf in weight.leaves) == weight.shape[0]
        assert all(leaf.shape[1:] == weight.shape[1:] for leaf in weight.leaves)
    leaves = [leaf.name for weight in weights for leaf in weight.leaves]
    assert len(set(leaves)) == len(leaves)


@SMALL
@given(model_tables(overrides=False))
def test_the_number_of_parameters_by_the_textbook(table: dict[str, Any]) -> None:
    model = ModelSpec.model_validate(table)
    attention, ffn = model.attention, model.ffn
    D, L, V, F = model.d_model, model.n_layers, model.vocab_size, ffn.d_ff
    q, kv = attention.n_heads * attention.d_head, attention.n_kv_heads * attention.d_head

    def norm(spec: Any, width: int) -> int:
        return {"none": 0, "rmsnorm": width}.get(spec.kind, width * (1 + getattr(spec, "bias", False)))

    block = 2 * D * q + 2 * D * kv + attention.bias * (q + 2 * kv) + attention.out_bias * D
    block += 2 * norm(attention.qk_norm, attention.d_head)
    block += (2 if ffn.kind == "mlp" else 3) * D * F + ffn.bias * ((1 if ffn.kind == "mlp" else 2) * F + D)
    per_block = {"none": 0, "sandwich": 4, "parallel": 2 - getattr(model.norm_placement, "shared_norm", 0)}
    block += per_block.get(model.norm_placement.kind, 2) * norm(model.norm, D)
    block += norm(attention.inner_norm, q) + norm(ffn.inner_norm, F)
    block += 2 * D * (model.norm_placement.kind == "layerscale")
    un_normed = model.norm_placement.kind not in ("post", "deepnorm", "b2t")
    final = un_normed if model.final_norm == "auto" else model.final_norm
    outside = final * norm(model.norm, D) + (model.position.kind == "learned") * model.max_seq_len * D
    outside += V * D * (2 - model.tie_embeddings) + (V and model.head_bias) * V
    assert sum(weight.count for weight in model.weights()) == L * block + outside


@SMALL
@given(experiments())
def test_stages_end_where_they_began(experiment: Experiment) -> None:
    model, (B, T) = experiment.model, (experiment.input.batch_size, experiment.input.seq_len)
    stages = list(model.stages(model.letters(B, T)))
    assert len({stage.name for stage in stages}) == len(stages)
    assert stages[-1].shape == (B, T, model.vocab_size or model.d_model)
    scores = [stage.shape for stage in stages if stage.name.endswith("attention.scores")]
    assert scores == [(B, block.attention.n_heads, T, T) for block in model.blocks()]


@pytest.mark.parametrize(
    ("d_model", "attention", "position"),
    [
        (10, {"n_heads": 4}, "none"),
        (8, {"n_heads": 4, "n_kv_heads": 3}, "none"),
        (8, {"n_heads": 2, "n_kv_heads": 4}, "none"),
        (6, {"n_heads": 2}, "rope"),
        (6, {"n_heads": 2}, {"kind": "rope", "theta": 100.0}),
        (6, {"n_heads": 2}, {}),
        (10, {"n_heads": 4, "d_head": 3}, "rope"),
    ],
)
def test_heads_that_do_not_fit(d_model: int, attention: dict[str, int], position: Any) -> None:
    table = {"d_model": d_model, "attention": attention, "position": position}
    with pytest.raises(ValidationError):
        ModelSpec.model_validate(table)
    # One change each that makes it fit: an even width of a head that is written out, and no grouping.
    mended = {"n_heads": attention["n_heads"], "d_head": 2}
    assert ModelSpec.model_validate(table | {"attention": mended}).attention.d_head == 2


def test_a_layer_override_knows_the_position_and_the_overrides_before_it() -> None:
    table = {"d_model": 6, "position": "none", "attention": {"n_heads": 2}}
    odd = [{"at": [0], "attention": {"d_head": 3}}]
    assert ModelSpec.model_validate(table | {"layers": odd}).blocks()[0].attention.d_head == 3
    with pytest.raises(ValidationError, match="odd"):
        ModelSpec.model_validate(table | {"position": "rope", "attention": {"n_heads": 2, "d_head": 2}, "layers": odd})
    mlp, relu = {"at": "0:", "ffn": "mlp"}, {"at": [0], "ffn": {"activation": "relu"}}
    first, second = ModelSpec.model_validate(table | {"layers": [mlp, relu]}).blocks()
    assert (first.ffn.model_dump()["activation"], second.ffn.model_dump()["activation"]) == ("relu", "gelu")
    with pytest.raises(ValidationError, match="Extra inputs"):
        ModelSpec.model_validate(table | {"layers": [relu, mlp]})
