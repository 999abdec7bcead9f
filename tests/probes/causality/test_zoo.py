"""Every broken model is caught by the probe that must catch it; every correct one is clean."""

import pytest
import torch
from torch import Tensor

from tests.probes.causality.zoo import (
    BROKEN,
    CORRECT,
    FFTConv,
    Lambda,
    Net,
    T,
    attention,
    block_mean,
    findings,
    last_position,
    next_token,
    row,
    to_first_output,
    verdicts,
)


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_is_caught(name):
    make, expected = BROKEN[name]
    data = findings(make())
    for key, verdict in expected.items():
        probe, _, mode = key.partition(" ")
        found = row(data, probe, mode)
        assert found.verdict == verdict, (key, found)
        assert found.message


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_model_is_clean(name):
    data = findings(CORRECT[name]())
    assert set(verdicts(data).values()) == {"clean"}
    assert data.leaks == ()
    assert all(row.worst == 0 for row in data.probes if row.name != "truncation")


def test_a_convolution_by_fft_is_rounding_and_no_leak():
    found = verdicts(findings(Net(FFTConv())))
    assert set(found.values()) == {"clean", "noise"}
    assert found["suffix_cuts eval float64"] == "noise"


def test_a_leak_that_waits_for_a_length_is_not_seen_below_it():
    """Why the report says that other lengths are not proven."""
    make, _ = BROKEN["only for more than 8 tokens"]
    short = findings(make(), seq_len=8)
    assert set(verdicts(short).values()) == {"clean"}
    assert "other lengths than T = 8" in short.not_proven


def test_a_preflight_that_fails_stops_its_mode_alone():
    """Dropout that ignores eval mode: no other probe may be believed, and none is run."""
    data = findings(BROKEN["dropout left on"][0]())
    assert {row.name for row in data.probes} == {"preflight"}
    assert "not deterministic" in data.probes[0].message


def test_the_last_token_is_where_a_batch_mixer_is_not_mistaken_for_a_leak():
    assert findings(BROKEN["batch mixed"][0]()).leaks == ()


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
    named = {leak.probe: leak for leak in data.leaks if not leak.mode.startswith("train")}
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
