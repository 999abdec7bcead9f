"""The comparison: the same weights and input everywhere, honest losses, assertions that can fail."""

import math
from dataclasses import asdict
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.probes.models import experiment
from tfblock_cli.modules.decoder import build
from tfblock_cli.modules.stage import record
from tfblock_cli.probes import gradflow
from tfblock_cli.probes.gradflow.cell import measure
from tfblock_cli.probes.gradflow.compare import variant_of
from tfblock_cli.probes.gradflow.metrics import metrics
from tfblock_cli.probes.inputs import random_input
from tfblock_cli.results.metrics import METRICS, TRAINED, metric
from tfblock_cli.spec.base import axis_of, name_of
from tfblock_cli.spec.norm_placement import NormPlacement, Placement
from tfblock_cli.spec.settings import Guard, Metric

ALL = [name_of(kind) for kind in axis_of(NormPlacement)[0]]
UNIT = {"initialization": "unit", "n_layers": 4}


def asked(model=None, *, keys=None, **settings):
    return experiment(UNIT | (model or {}), gradflow={"seeds": 2} | settings, **keys or {})


def test_every_placement_depth_and_seed_is_there():
    result = gradflow.run(asked(placements=ALL, depths=[4, 5]))
    rows = result.data.rows
    assert {row.placement for row in rows} == set(ALL)
    assert {row.depth for row in rows} == {4, 5}
    assert {row.seed for row in rows} == {0, 1}
    # loss, embedding, head, embedded, noise; per block itself, its stream three times, seven matrices, norms
    per_layer = {placement: 4 + 7 + (placement != "none") for placement in ALL}
    assert len(rows) == sum(2 * (5 + depth * per_layer[placement]) for placement in ALL for depth in (4, 5))
    assert result.verdict == "pass"
    there = [metric for metric in METRICS if metric != "grad.input"]
    assert {(s.placement, s.depth, s.metric) for s in result.data.summary} == {
        *product(ALL, (4, 5), there),
        *((placement, 0, f"slope.{metric}") for placement, metric in product(ALL, there) if metric != "loss"),
    }
    assert (result.data.forwards, result.data.vjps) == (2 * len(ALL) * 4, len(ALL) * 4)


def test_shared_tensors_are_equal_bit_for_bit():
    base = asked()
    models = {
        name_of(kind): dict(build(variant_of(base, kind.model_validate({}), 4)).named_parameters())
        for kind in axis_of(NormPlacement)[0]
        if issubclass(kind, Placement)
    }
    for kind, parameters in models.items():
        for name in parameters.keys() & models["pre"].keys():
            same = torch.equal(parameters[name], models["pre"][name])
            scaled = kind in ("deepnorm", "subln") and any(
                part in name for part in ("qkv", "out", "up", "gate", "down")
            )
            assert same != scaled, (kind, name)


def test_unnormalised_streams_get_a_final_norm_and_others_none():
    data = gradflow.run(asked(placements=ALL, keys={"input": {"batch_size": 1, "seq_len": 3}})).data
    assert {fact.placement: fact.final_norm for fact in data.placements} == {
        kind: kind not in ("post", "deepnorm", "b2t") for kind in ALL
    }


@pytest.mark.parametrize(("final_norm", "seen"), [("auto", [True, False]), (False, [False] * 2), (True, [True] * 2)])
def test_the_files_final_norm_is_obeyed(final_norm, seen):
    result = gradflow.run(asked({"final_norm": final_norm}, allow=["no_final_norm"]))
    assert [fact.final_norm for fact in result.data.placements] == seen


def test_two_runs_are_equal():
    assert asdict(gradflow.run(asked())) == asdict(gradflow.run(asked()))


def test_seeds_count_up_from_the_experiments():
    data = gradflow.run(asked(keys={"seed": 7})).data
    assert data.seeds == (7, 8)
    alone = gradflow.run(asked(keys={"seed": 8}, seeds=1)).data
    assert [row for row in data.rows if row.seed == 8] == list(alone.rows)


def test_summary_is_the_paired_geometric_mean():
    data = gradflow.run(asked(seeds=3)).data
    values = {
        (row.placement, row.seed): row.value
        for row in data.rows
        if (row.group, row.metric) == ("embedding", "grad_norm")
    }
    found = {s.placement: s for s in data.summary if s.metric == "grad.embedding"}
    post = [values["post", seed] for seed in range(3)]
    pairs = [values["post", seed] / values["pre", seed] for seed in range(3)]
    assert found["post"].geomean == pytest.approx(math.prod(post) ** (1 / 3))
    assert (found["post"].low, found["post"].high) == (min(post), max(post))
    assert found["post"].mean == pytest.approx(sum(post) / 3)
    logs = np.log(pairs)
    width = 4.30265 * logs.std(ddof=1) / 3**0.5
    ends = (found["post"].ratio_ci_low, found["post"].ratio_ci_high)
    assert ends == pytest.approx((math.exp(logs.mean() - width), math.exp(logs.mean() + width)), rel=1e-5)
    assert found["post"].ratio == pytest.approx(math.prod(pairs) ** (1 / 3))
    assert (found["post"].ratio_low, found["post"].ratio_high) == pytest.approx((min(pairs), max(pairs)))
    assert found["pre"].ratio is None


def test_a_metric_without_a_logarithm_has_no_geometric_mean():
    data = gradflow.run(asked({"vocab_size": 0})).data
    losses = [s for s in data.summary if s.metric == "loss"]
    values = [row.value for row in data.rows if row.metric == "loss" and row.placement == "pre"]
    assert min(values) < 0  # a projection has a sign
    assert losses[0].geomean is None
    assert losses[0].low == min(values)


@pytest.mark.parametrize(
    ("limits", "holds"),
    [
        ({"min": 0.999, "max": 1.001}, True),
        ({"min": 0.999}, True),
        ({"max": 1.001}, True),
        ({"min": 1.001}, False),
        ({"max": 0.999}, False),
    ],
)
def test_an_expectation_decides_the_verdict(limits, holds):
    result = gradflow.run(asked({"norm": "layernorm"}, expect=[{"metric": "rms.last", "placement": "post", **limits}]))
    assert result.verdict == ("pass" if holds else "fail")
    check = result.checks[-1]
    assert (check.name, check.passed, check.op) == ("rms.last", holds, "in")
    assert check.value == pytest.approx(1, abs=1e-3)


def test_one_seed_outside_fails_an_expectation():
    data = gradflow.run(asked(seeds=3)).data
    values = sorted(
        row.value for row in data.rows if (row.group, row.metric, row.placement) == ("embedding", "grad_norm", "post")
    )
    between = (values[1] + values[2]) / 2
    expect = [{"metric": "grad.embedding", "placement": "post", "max": between}]
    result = gradflow.run(asked(seeds=3, expect=expect))
    assert result.verdict == "fail"
    assert "2 of 3 seeds inside" in result.checks[-1].message
    assert result.checks[-1].value == values[2]


def test_an_expectation_of_a_ratio_is_paired_and_knows_aliases():
    expect = [{"metric": "rms.last", "placement": "peri", "over": "post", "min": 1.5, "max": 4.0}]
    result = gradflow.run(asked(placements=["peri", "post"], expect=expect))
    assert result.verdict == "pass"
    assert result.checks[-1].subject == "sandwich/post, 4 layers"


def test_an_expectation_of_one_depth_is_judged_there_only():
    expect = [
        {"metric": "loss", "placement": "pre", "depth": 5, "min": 0.0},
        {"metric": "loss", "placement": "pre", "min": 0.0},
    ]
    checks = gradflow.run(asked(depths=[4, 5], expect=expect)).checks
    assert [check.subject for check in checks if check.name == "loss"] == [
        "pre, 5 layers",
        "pre, 4 layers",
        "pre, 5 layers",
    ]


ONE_TOKEN = {"input": {"batch_size": 1, "seq_len": 1}}
NO_GRADIENT = "there is no gradient to divide by"
UNDERFLOW = {"kind": "normal", "std": 1e-200, "embedding_std": 1e-200}
"""The product of two such weights is 0."""
UNDEFINED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "cosine.last": ({}, {"keys": ONE_TOKEN}, "a sequence of one token has no two tokens to compare"),
    "grad.q_over_v.last": ({"initialization": UNDERFLOW}, {}, NO_GRADIENT),
    "grad.block.max_min": ({"initialization": UNDERFLOW}, {}, NO_GRADIENT),
    "rms.squared_growth": ({"n_layers": 1}, {}, "there is one block alone, and nothing to grow from"),
    "slope.cosine.last": (
        {},
        {"depths": [2, 3], "keys": ONE_TOKEN},
        "at some depth it is no positive number, and has no logarithm",
    ),
    "slope.rms.squared_growth": (
        {},
        {"depths": [1, 2]},
        "at some depth it is no positive number, and has no logarithm",
    ),
}
WITHOUT_GUARDS = list(get_args(Guard))
BOUNDS = {"min": -1e9, "max": 1e9}


@pytest.mark.parametrize("over", [{}, {"over": "post"}])
@pytest.mark.parametrize("mode", ["all", "ci"])
@pytest.mark.parametrize("name", UNDEFINED)
def test_what_is_undefined_with_every_seed_was_not_measured(name, mode, over):
    model, settings, why = UNDEFINED[name]
    expect = [{"metric": name, "placement": "pre", "mode": mode, **BOUNDS, **over}]
    result = gradflow.run(asked(model, expect=expect, allow=WITHOUT_GUARDS, **settings))
    assert result.verdict == "inconclusive"
    check = result.checks[-1]
    assert (check.name, check.passed, str(check.value)) == (name, None, "nan")
    assert check.message == f"not measured: nan with every seed, since {why}"


def test_a_ratio_to_what_is_zero_was_not_measured():
    expect = [
        {"metric": "grad.q_over_v.last", "placement": "post", "over": "pre", **BOUNDS},
        {"metric": "grad.q_over_v.last", "placement": "pre", **BOUNDS},
    ]
    # one token sees itself alone: its weight is 1, whatever q and k are
    result = gradflow.run(asked(expect=expect, keys=ONE_TOKEN | {"kernel": "eager"}, allow=WITHOUT_GUARDS))
    ratio, alone = result.checks[-2:]
    assert (ratio.passed, alone.passed, alone.value) == (None, True, 0)
    assert ratio.message == "not measured: nan with every seed, since that of pre is 0"


@pytest.mark.parametrize("mode", ["all", "ci"])
@pytest.mark.parametrize("metric", ["loss", "rms.last", "grad.block.last_first"])
def test_nan_of_what_has_blown_up_is_outside(metric, mode):
    model = {"initialization": {"kind": "normal", "std": 1e30}}
    expect = [{"metric": metric, "placement": "none", "mode": mode, **BOUNDS}]
    keys = {"dtype": "float32"}
    settings = {"placements": ["none", "pre"], "allow": WITHOUT_GUARDS, "keys": keys, "expect": expect}
    result = gradflow.run(asked(model, **settings))
    assert result.verdict == "fail"
    assert str(result.checks[-1].value) == "nan"


def test_nan_of_some_seeds_alone_is_outside(monkeypatch):
    once = iter([{"cosine.last": math.nan}])

    def odd(seen, **options):
        return metrics(seen, **options) | next(once, {})

    monkeypatch.setattr("tfblock_cli.probes.gradflow.compare.metrics", odd)
    result = gradflow.run(asked(expect=[{"metric": "cosine.last", "placement": "pre", **BOUNDS}]))
    assert result.verdict == "fail"
    assert result.checks[-1].message == "1 of 2 seeds inside; outside: seeds 0"


@pytest.mark.parametrize(
    ("limits", "seeds", "holds"),
    [({"min": 0.999, "max": 1.001}, 3, True), ({"min": 1.001}, 3, False), ({"max": 0.999}, 3, False)],
)
def test_an_interval_decides_with_mode_ci(limits, seeds, holds):
    expect = [{"metric": "rms.last", "placement": "post", "mode": "ci", **limits}]
    result = gradflow.run(asked({"norm": "layernorm"}, seeds=seeds, expect=expect))
    assert result.verdict == ("pass" if holds else "fail")
    assert "95 % interval" in result.checks[-1].message


def test_an_interval_may_be_outside_where_every_seed_is_inside():
    """Three seeds, whose interval is 2.5 times as wide as their spread: mode "all" is the weaker demand there."""
    data = gradflow.run(asked(seeds=3)).data
    (found,) = (s for s in data.summary if (s.metric, s.placement) == ("grad.embedding", "post"))
    bounds = {"min": found.low * 0.999, "max": found.high * 1.001}
    for mode, verdict in (("all", "pass"), ("ci", "fail")):
        expect = [{"metric": "grad.embedding", "placement": "post", "mode": mode, **bounds}]
        result = gradflow.run(asked(seeds=3, expect=expect))
        assert result.verdict == verdict
        if mode == "ci":
            assert any(result.checks[-1].value == pytest.approx(end) for end in (found.ci_low, found.ci_high))


def test_a_slope_over_the_depths_and_its_expectations():
    metric = "slope.rms.last"
    expect = [
        {"metric": metric, "placement": "pre", "min": 0.05, "max": 1.0, "mode": "ci"},
        {"metric": metric, "placement": "post", "min": -0.001, "max": 0.001},
        {"metric": metric, "placement": "pre", "over": "post", "min": 0.05},
    ]
    result = gradflow.run(asked(depths=[2, 4, 8], seeds=3, expect=expect))
    assert result.verdict == "pass"
    checks = [check for check in result.checks if check.name == metric]
    assert [check.subject for check in checks] == ["pre, all depths", "post, all depths", "pre-post, all depths"]
    summary = {(s.placement, s.depth, s.metric): s for s in result.data.summary}
    values = [
        np.polyfit(
            np.log([2, 4, 8]),
            [
                math.log(row.value)
                for depth in (2, 4, 8)
                for row in result.data.rows
                if (row.placement, row.depth, row.layer, row.metric, row.seed) == ("pre", depth, depth - 1, "rms", seed)
            ],
            1,
        )[0]
        for seed in (0, 1, 2)
    ]
    found = summary["pre", 0, metric]
    assert found.mean == pytest.approx(np.mean(values))
    assert [found.low, found.high] == pytest.approx([min(values), max(values)])
    assert found.geomean is found.ratio is None
    assert found.ci_high is not None
    assert found.ci_low is not None
    assert found.ci_high - found.ci_low == pytest.approx(2 * 4.30265 * np.std(values, ddof=1) / 3**0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("expect", "settings", "message"),
    [
        ({"metric": "slope.rms.last"}, {}, "a slope needs two depths"),
        ({"metric": "slope.rms.last", "depth": 4}, {"depths": [4, 5]}, "a slope is over all depths"),
        ({"metric": "rms.last", "mode": "ci"}, {"seeds": 1}, "needs two seeds"),
        ({"metric": "slope.grad.input"}, {"depths": [4, 5]}, "grad.input is not measured here"),
    ],
)
def test_expectations_that_make_no_sense_are_refused(expect, settings, message):
    with pytest.raises(ValidationError, match=message):
        asked(expect=[{"placement": "pre", "min": 0.0} | expect], **settings)


def test_a_tied_head_has_no_gradient_of_its_own():
    with pytest.raises(ValidationError, match=r"grad\.head is not measured"):
        asked({"tie_embeddings": True}, expect=[{"metric": "grad.head", "placement": "pre", "min": 0.0}])


FLOOR = {"ffn": {"kind": "mlp"}, "norm": {"kind": "layernorm", "eps": 1.0}}
OVERFLOW = {"initialization": {"kind": "normal", "std": 1e4}}
TRIPPED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cloned_layers": ({"initialization": {"kind": "unit", "clone_layers": True}}, {}),
    "dropout": ({"dropout": 0.1}, {}),
    "no_final_norm": ({"final_norm": False}, {}),
    "eps_floor": (FLOOR, {"placements": ["pre", "sandwich"]}),
    "degenerate_loss": ({"d_model": 2, "attention": {"n_heads": 1}, "norm": "layernorm", "vocab_size": 0}, {}),
    "non_finite_gradients": (OVERFLOW, {"placements": ["none", "pre"], "keys": {"dtype": "float32"}}),
}


@pytest.mark.parametrize("name", get_args(Guard))
def test_every_guard_makes_the_run_inconclusive_unless_it_is_allowed(name):
    model, settings = TRIPPED[name]
    expect = [{"metric": "loss", "placement": "pre", "min": -1e9}]
    also = ["no_final_norm"] if name == "degenerate_loss" else []
    result = gradflow.run(asked(model, expect=expect, allow=also, **settings))
    assert result.verdict == "inconclusive"
    guards = {guard.name: guard for guard in result.data.guards}
    assert [guard.name for guard in guards.values()] == list(get_args(Guard))
    assert {guard.name for guard in guards.values() if guard.placements} == {name}
    undecided = [check for check in result.checks if check.passed is None]
    assert [check.name for check in undecided] == [f"guard.{name}", "loss"]  # the expectation is not judged either
    assert name in undecided[1].message
    assert f'allow = ["{name}"]' in undecided[0].message

    allowed = gradflow.run(asked(model, expect=expect, allow=[name], **settings))
    assert allowed.verdict == "pass"
    assert any(warning.startswith(name) for warning in allowed.warnings)
    assert {guard.name for guard in allowed.data.guards if guard.allowed} == {name}
    assert allowed.data.guards[list(guards).index(name)].placements == guards[name].placements


def test_guards_name_the_placements_that_they_speak_of():
    def against(name, model, **settings):
        found = gradflow.run(asked(model, **settings)).data.guards
        return next(guard.placements for guard in found if guard.name == name)

    assert against("no_final_norm", {"final_norm": False}, placements=ALL) == tuple(
        kind for kind in ALL if kind not in ("post", "deepnorm", "b2t")
    )
    assert against("eps_floor", FLOOR, placements=["pre", "post", "sandwich", "reordered"]) == ("sandwich", "reordered")
    assert against("non_finite_gradients", OVERFLOW, placements=["none", "pre"], keys={"dtype": "float32"}) == ("none",)
    assert against("cloned_layers", {}) == ()


@pytest.mark.parametrize(("eps", "speaks"), [(0.014, True), (0.011, False)])
def test_eps_floor_speaks_where_a_norm_puts_out_five_percent_too_little(eps, speaks):
    """The two sides of a mean square of 0.9, as the norms' own outputs show it; each is near."""
    settings = {"norm": {"kind": "layernorm", "eps": eps}, "n_layers": 1, "norm_placement": "reordered"}
    chosen, squares = asked(settings, placements=["reordered"], seeds=1), []
    decoder = build(chosen)
    names = [f"blocks.0.norms.{name}" for name in ("attention", "ffn")]
    with torch.no_grad(), record(decoder, names, lambda _, y: squares.append(float(y.square().mean()))):
        decoder(random_input(chosen))
    guards = {guard.name: guard.placements for guard in gradflow.run(chosen).data.guards}
    assert bool(guards["eps_floor"]) == speaks
    assert (min(squares) < 0.9) == speaks
    assert min(squares) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(
    ("model", "placements", "weak", "drowned"),
    [
        ({}, ["pre", "sandwich"], False, False),
        ({"initialization": "torch"}, ["pre"], False, False),
        ({"initialization": "gpt2"}, ["pre"], True, False),
        ({"initialization": {"kind": "unit", "embedding_std": 0.02}}, ["pre", "post"], False, False),
        ({"initialization": {"kind": "unit", "embedding_std": 0.02}}, ["pre", "reordered"], False, True),
    ],
)
def test_an_initialization_that_hides_the_effect_is_told(model, placements, weak, drowned):
    warnings = gradflow.run(asked(model, placements=placements)).warnings
    assert any("weak branches" in warning for warning in warnings) == weak
    assert any("embedding_std" in warning for warning in warnings) == drowned


def test_what_a_placement_overrides_is_told():
    facts = {fact.placement: fact for fact in gradflow.run(asked(placements=ALL)).data.placements}
    assert facts["deepnorm"].overrides == ("weights of v, out, up, gate, down times 0.42",)  # 32^(-1/4) = 0.4204
    assert facts["layerscale"].overrides == ("each branch times a vector of 0.1",)
    assert facts["subln"].overrides == (
        "weights of v, out, up, gate, down times 1.44",  # sqrt(ln 8)
        "inner_norm = rmsnorm in attention and ffn",
    )
    assert not any(fact.overrides for kind, fact in facts.items() if kind not in ("deepnorm", "layerscale", "subln"))
    # v and out: 1 and 1; up and down of the default swiglu: sqrt(2 · 16 / 80) and sqrt(2 · 64 / 80)
    assert facts["pre"].branch_gain == pytest.approx((0.4 * 1.6) ** 0.25)
    assert facts["deepnorm"].branch_gain == pytest.approx((0.4 * 1.6) ** 0.25 * 32**-0.25)


def test_an_inner_norm_of_the_file_is_left():
    model = {"attention": {"n_heads": 2, "inner_norm": "layernorm"}, "ffn": {"inner_norm": "layernorm"}}
    (fact,) = gradflow.run(asked(model, placements=["subln"])).data.placements
    assert len(fact.overrides) == 1


def test_inner_norms_of_the_files_placement_are_not_those_of_the_others():
    """Whichever of the two the file names: pre has none, and subln has them."""
    pre, subln = (
        gradflow.run(asked({"norm_placement": kind}, placements=["pre", "subln"])).data for kind in ("pre", "subln")
    )
    assert pre.rows == subln.rows


def test_one_and_two_threads():
    """Loss, streams and matrices bit for bit; gains and biases, whose sums run over tokens, to 1e-6."""
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            base = {"d_model": 64, "vocab_size": 256, "attention": {"n_heads": 4}, "initialization": "unit"}
            found.append(measure(experiment(base, dtype="float32", input={"batch_size": 4, "seq_len": 32})))
    finally:
        torch.set_num_threads(before)
    one, two = found
    assert (one.loss, one.rms, one.hidden, one.head) == (two.loss, two.rms, two.hidden, two.head)
    for a, b in zip(one.groups, two.groups, strict=True):
        assert {k: v for k, v in a.items() if k != "norms"} == {k: v for k, v in b.items() if k != "norms"}
        assert a["norms"] == pytest.approx(b["norms"], rel=1e-6)


@pytest.mark.parametrize("loss", ["sum", "mean_square"])
def test_degenerate_losses_are_refused_with_the_reason(loss):
    with pytest.raises(ValidationError, match="has no gradient"):
        asked(loss=loss)


@pytest.mark.parametrize(
    ("norm", "loss"), [("layernorm", "sum"), ("layernorm", "mean_square"), ("rmsnorm", "mean_square")]
)
def test_degenerate_losses_really_are(norm, loss):
    """What is refused above, measured: the gradient at the input is rounding noise beside an honest one."""
    stack = experiment({"vocab_size": 0, "norm": {"kind": norm, "eps": 1e-12}, "initialization": "unit"})
    x = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    output = build(stack)(x)
    (honest,) = torch.autograd.grad(output[..., 0].sum(), x, retain_graph=True)
    (degenerate,) = torch.autograd.grad(output.sum() if loss == "sum" else output.square().mean(), x)
    assert float(degenerate.norm() / honest.norm()) < 1e-9


def test_metrics_are_explained():
    slopes = [f"slope.{name}" for name in METRICS if name != "loss"]
    assert [*METRICS, *slopes, *TRAINED] == list(get_args(Metric))
    for name in get_args(Metric):
        found = metric(name)
        assert found.words
        assert found.formula
        assert found.tells
    assert {name for name in get_args(Metric) if not metric(name).undefined} == {
        *("loss", "rms.last", "train.verdict", "train.held_out_loss"),
        *(f"grad.{name}" for name in ("embedding", "input", "head", "matrices", "hidden.first")),
        *(f"grad.{name}" for name in ("block.first", "block.last", "down.last")),
    }
    with pytest.raises(KeyError):
        metric("slope.nothing")


def test_fair_protocol_puts_the_embedding_ratio_near_one():
    """The tutorials' tenfold embedding gradient is an artefact: with a final norm and one loss the ratio is near 1."""
    data = gradflow.run(asked({"n_layers": 6, "norm": "layernorm", "ffn": "mlp", "position": "none"}, seeds=5)).data
    (ratio,) = (s.ratio for s in data.summary if s.metric == "grad.embedding" and s.placement == "post")
    assert ratio is not None
    assert 0.33 < ratio < 3
