"""Verdicts: each of the five, and what lies on the border."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfblock_cli.probes.gradflow.training.outcome import Judged, verdict

H = 3.0  # who knows frequencies alone


def judged(*losses, cosine=0.5):
    return [Judged(step, loss, cosine) for step, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (judged(5.0, 4.0, 3.0, 2.6), "LEARNS"),
        (judged(5.0, 2.69, 2.69, 2.69), "LEARNS"),  # it may stand still once it knows
        (judged(5.0, 4.0, 3.0, 2.6, cosine=0.999), "LEARNS"),  # parallel vectors may tell tokens apart all the same
        (judged(5.0, 3.2, 3.05, 3.0), "SLOW"),
        (judged(5.0, 3.2, 3.02, 3.0), "STUCK"),
        (judged(5.0, 3.2, 2.75, 2.71), "SLOW"),  # below the entropy, but not by the margin
        (judged(5.0, 3.0, 2.9, 3.0), "STUCK"),
        (judged(5.0, 3.2, 3.05, 3.0, cosine=0.995), "COLLAPSED"),
        (judged(5.0, 4.0, 6.0, 5.1), "DIVERGED"),
        (judged(5.0, 4.0, 6.0, 5.1, cosine=0.999), "DIVERGED"),
        (judged(5.0, 4.0, 6.0, nan), "DIVERGED"),
        (judged(5.0, 4.0, 6.0, inf), "DIVERGED"),
        (judged(2.0, 2.1, 2.2, 2.3), "DIVERGED"),  # worse than it began, however low
    ],
)
def test_every_verdict(seen, expected):
    assert verdict(seen, unigram_loss=H, margin=0.3, broke=False) == expected


def test_a_training_loss_that_is_no_number_is_a_divergence():
    assert verdict(judged(5.0, 4.0, 3.0, 2.0), unigram_loss=H, margin=0.3, broke=True) == "DIVERGED"


@given(st.lists(st.floats(0, 10), min_size=3, max_size=5), st.floats(-1, 1))
def test_only_a_loss_below_the_entropy_by_the_margin_learns(losses, cosine):
    found = verdict(judged(*losses, cosine=cosine), unigram_loss=H, margin=0.3, broke=False)
    assert (found == "LEARNS") == (losses[-1] < H - 0.3 and losses[-1] <= losses[0])
