"""Every broken model is caught by the probe that must catch it; every correct one is clean; and the zoo is honest."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.probes.causality.asking import attention, findings, row, verdicts
from tests.probes.models import experiment
from tfblock_cli.probes.causality import self_test as module
from tfblock_cli.probes.causality.check import check
from tfblock_cli.probes.causality.self_test import ask, self_test
from tfblock_cli.probes.causality.zoo import BROKEN, ZOO
from tfblock_cli.probes.causality.zoo.parts import Attention, Lambda, Net, Specimen, T, leak, says
from tfblock_cli.probes.causality.zoo.time_mixing import block_mean, last_position, next_token, to_first_output
from tfblock_cli.results.causality import CausalityData

EVERY = [(family, specimen) for family, specimens in ZOO.items() for specimen in specimens]


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(("family", "specimen"), EVERY, ids=[specimen.name for _, specimen in EVERY])
def test_the_checker_is_right_about_it_and_names_a_pair_of_each_leak(family, specimen, monkeypatch):
    answers: list[CausalityData] = []

    def asked(*args: Any, **keys: Any) -> CausalityData:
        answers.append(check(*args, **keys))
        return answers[-1]

    monkeypatch.setattr(module, "check", asked)
    control = ask(specimen, family, seed=0)
    assert control.caught, control
    (data,) = answers
    leaking = [(row.name, row.mode) for row in data.probes if row.verdict == "LEAK"]
    assert Counter(leaking) == Counter((leak.probe, leak.mode) for leak in data.leaks)
    for found in data.leaks:
        assert 0 <= found.out < T
        assert 0 <= found.in_ < T
        assert found.magnitude > 0
        assert 0 < found.cuts <= found.cuts_total or found.shape == "outside the window"


def test_the_zoo_is_large_and_its_names_tell_models_apart():
    assert sum(map(len, BROKEN.values())) >= 35
    assert len(ZOO["correct"]) >= 8
    assert max(Counter(specimen.name for _, specimen in EVERY).values()) == 1
    assert all(specimen.wanted for family, specimen in EVERY if family != "correct")
    assert not any(specimen.wanted for specimen in ZOO["correct"])


def test_every_probe_has_a_model_that_only_it_or_few_must_catch():
    probes = {wanted.probe for _, specimen in EVERY for wanted in specimen.wanted if wanted.verdict != "clean"}
    assert probes == {
        "preflight",
        "batch_independence",
        "suffix_cuts",
        "gradient_map",
        "truncation",
        "incremental",
        "mask_readout",
        "head_groups",
        "padding",
        "rope_shift",
        "documents",
    }


def only(monkeypatch, *specimens: Specimen, family: str = "masks"):
    monkeypatch.setattr(module, "ZOO", {family: specimens})
    return self_test(experiment())


def test_a_control_that_slips_through_makes_the_checker_inconclusive(monkeypatch):
    sound = Specimen(name="sound", make=lambda: Net(Attention()), wanted=leak("suffix_cuts"))
    result = only(monkeypatch, sound)
    assert result.verdict == "inconclusive"
    assert [(control.found, control.caught) for control in result.data.controls] == [("clean", False)]
    assert "must say LEAK" in result.checks[0].message


def test_a_correct_model_that_is_accused_does_too(monkeypatch):
    leaky = Specimen(name="leaky", make=lambda: Net(Attention(lambda h, q, k: k == k)))
    assert only(monkeypatch, leaky, family="correct").verdict == "inconclusive"
    noisy = next(specimen for specimen in ZOO["correct"] if specimen.noise)
    assert only(monkeypatch, noisy, family="correct").verdict == "pass"
    assert only(monkeypatch, replace(noisy, noise=False), family="correct").verdict == "inconclusive"


def test_the_second_verdict_counts_as_well(monkeypatch):
    """A leak that is found by the wrong probe too is not the leak that the entry describes."""
    leaky = Specimen(
        name="leaky",
        make=lambda: Net(Attention(lambda h, q, k: k == k)),
        wanted=(*leak("suffix_cuts"), *says("clean", "gradient_map")),
    )
    assert only(monkeypatch, leaky).verdict == "inconclusive"


def test_a_leak_that_waits_for_a_length_is_not_seen_below_it():
    """Why the report says that other lengths are not proven, and why there is a small length of our choice."""
    gated = Net(attention(lambda h, q, k: (k <= q) | (k.shape[-1] > 8)))
    short = findings(gated, seq_len=8)
    assert set(verdicts(short).values()) == {"clean"}
    assert "other lengths than T = 8" in short.not_proven


def test_a_preflight_that_fails_stops_its_mode_alone():
    """Dropout that ignores eval mode: no other probe may be believed, and none is run."""
    data = findings(Net(attention(), Lambda(lambda x: torch.nn.functional.dropout(x, 0.1))))
    assert {row.name for row in data.probes} == {"preflight"}
    assert "not deterministic" in data.probes[0].message


def test_torchs_own_layer_with_a_hint_and_no_mask():
    """Whether it leaks is torch's business; if it does, eval mode without gradients shows it."""

    class Hinted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x, is_causal=True)
            return out

    x = torch.randn(1, T, 8)
    layer = Hinted().eval()
    with torch.no_grad():
        leaks = not torch.equal(layer(x)[:, :-1], layer(torch.cat((x[:, :-1], x[:, -1:] + 1), 1))[:, :-1])
    assert (row(findings(layer), "suffix_cuts", "eval").verdict == "LEAK") == leaks


def test_a_batch_mixer_is_not_mistaken_for_a_leak_where_there_is_one_sample():
    data = findings(Net(attention(), Lambda(lambda x: x + x.mean(0, keepdim=True))))
    assert {(leak.probe, leak.shape) for leak in data.leaks} == {("batch_independence", "another sample")}


@pytest.mark.parametrize(
    ("mix", "out", "in_", "shape", "cuts"),
    [
        (lambda x: x.mean(1, keepdim=True).expand_as(x), 0, 1, "full upper triangle", 11),
        (next_token, 0, 1, "next token", 11),
        (block_mean, 0, 1, "within blocks of 4", 9),
        (last_position, 0, 11, "last column", 11),
        (lambda x: x[:, 5:6].expand_as(x), 0, 5, "one column", 5),
        (to_first_output, 0, 1, "one row", 11),
        (lambda x: torch.cat((x[:, :7], x[:, 9:10], x[:, 8:]), dim=1), 7, 9, "one row", 2),
        (lambda x: x.flip(1), 0, 11, "other", 11),
    ],
)
def test_the_first_pair_and_the_shape(mix, out, in_, shape, cuts):
    """All three probes that can see a leak name the same pair, stage and shape."""
    data = findings(Net(Lambda(mix)))
    named = {leak.probe: leak for leak in reversed(data.leaks)}
    assert set(named) >= {"suffix_cuts", "gradient_map"}
    for probe in ("suffix_cuts", "gradient_map"):
        leak = named[probe]
        assert (leak.out, leak.in_, leak.shape, leak.stage) == (out, in_, shape, "mixes.0")
        assert (leak.cuts, leak.cuts_total) == (cuts, T - 1)
        assert leak.magnitude > 1e-3


def test_the_stage_is_the_layer_that_leaks_and_not_a_later_one():
    model = Net(attention(), attention(lambda h, q, k: k <= q + 1), attention())
    assert {leak.stage for leak in findings(model).leaks} == {"mixes.1"}


def test_a_leak_outside_all_submodules_is_one_of_the_root():
    class Root(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y + next_token(y)

    leak = findings(Root(attention())).leaks[0]
    assert (leak.out, leak.in_, leak.stage) == (0, 1, "<root forward>")
