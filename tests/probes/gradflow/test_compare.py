"""The comparison: the same weights and input everywhere, honest losses, assertions that can fail."""

import math
from dataclasses import asdict
from typing import get_args

import pytest
import torch
from pydantic import ValidationError

from tests.probes.models import experiment
from tfblock_cli.modules.decoder import build
from tfblock_cli.probes import gradflow
from tfblock_cli.probes.gradflow.compare import _variant
from tfblock_cli.results.gradflow import METRICS
from tfblock_cli.spec.base import axis_of, name_of
from tfblock_cli.spec.norm_placement import NormPlacement, Placement
from tfblock_cli.spec.settings import Metric

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
    per_cell = 2 + 3 * 4, 2 + 3 * 5
    assert len(rows) == len(ALL) * 2 * sum(per_cell)
    assert result.verdict == "pass"
    assert {(s.placement, s.depth, s.metric) for s in result.data.summary} == {
        (placement, depth, metric)
        for placement in ALL
        for depth in (4, 5)
        for metric in METRICS
        if metric != "grad.input"
    }


def test_shared_tensors_are_equal_bit_for_bit():
    base = asked()
    models = {
        name_of(kind): dict(build(_variant(base, kind.model_validate({}), 4, 3)).named_parameters())
        for kind in axis_of(NormPlacement)[0]
        if issubclass(kind, Placement)
    }
    for kind, parameters in models.items():
        for name in parameters.keys() & models["pre"].keys():
            same = torch.equal(parameters[name], models["pre"][name])
            scaled = kind == "deepnorm" and any(part in name for part in ("qkv", "out", "up", "gate", "down"))
            assert same != scaled, (kind, name)


def test_unnormalised_streams_get_a_final_norm_and_others_none():
    data = gradflow.run(asked(placements=ALL, keys={"input": {"batch_size": 1, "seq_len": 3}})).data
    assert {fact.placement: fact.final_norm for fact in data.placements} == {
        kind: kind not in ("post", "deepnorm") for kind in ALL
    }


@pytest.mark.parametrize(("final_norm", "warned"), [("auto", False), (False, True), (True, True)])
def test_a_final_norm_that_was_set_is_set_aside_with_a_warning(final_norm, warned):
    result = gradflow.run(asked({"final_norm": final_norm}))
    assert any("final_norm" in warning for warning in result.warnings) == warned
    assert result.data == gradflow.run(asked()).data


def test_dropout_is_named_in_a_warning():
    assert any("dropout" in warning for warning in gradflow.run(asked({"dropout": 0.1})).warnings)


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


def test_an_undefined_ratio_is_outside():
    expect = [{"metric": "cosine.last", "placement": "pre", "min": -2.0, "max": 2.0}]
    result = gradflow.run(asked(expect=expect, keys={"input": {"batch_size": 1, "seq_len": 1}}))
    assert result.verdict == "fail"


def test_overflow_fails_the_finite_check():
    model = {"norm_placement": "none", "initialization": {"kind": "normal", "std": 1e30}, "n_layers": 2}
    result = gradflow.run(asked(model, placements=["none", "pre"], keys={"dtype": "float32"}))
    found = {check.subject: check.passed for check in result.checks if check.name == "finite"}
    assert found["none"] is False
    assert result.verdict == "fail"


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
    assert tuple(METRICS) == get_args(Metric)


def test_fair_protocol_puts_the_embedding_ratio_near_one():
    """The tutorials' tenfold embedding gradient is an artefact: with a final norm and one loss the ratio is near 1."""
    data = gradflow.run(asked({"n_layers": 6, "norm": "layernorm", "ffn": "mlp", "position": "none"}, seeds=5)).data
    (ratio,) = (s.ratio for s in data.summary if s.metric == "grad.embedding" and s.placement == "post")
    assert ratio is not None
    assert 0.33 < ratio < 3
