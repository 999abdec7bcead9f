"""What the literature predicts of a stack at initialization, small enough to be checked each time.

Every prediction has a control that it does not hold for. ``benchmarks/gradflow.py predictions`` measures the powers of
the depth over more depths and at twice the width.
"""

from functools import cache
from statistics import geometric_mean, mean
from typing import Any

import pytest

import tfblock_cli
from tests.probes.models import experiment
from tfblock_cli.modules.initialization import Memo
from tfblock_cli.probes.gradflow.cell import Seen, measure
from tfblock_cli.probes.gradflow.metrics import metrics
from tfblock_cli.probes.gradflow.statistics import slope

SEEDS = (0, 1, 2)
DEPTHS = (3, 6, 12, 24)
MEMOS = {seed: Memo() for seed in range(6)}
UNIT = {"kind": "unit"}  # tokens and positions have a variance of 1/2 each, so that the stream starts with rms 1
QK_NORM = {"n_heads": 4, "qk_norm": "layernorm"}


def cell(placement: str, depth: int, seed: int, **model: Any) -> Seen:
    """Xiong et al.'s terms, section 3: Xavier initialization, ReLU, and an FFN as wide as the stream."""
    table = {
        "d_model": 64,
        "n_layers": depth,
        "vocab_size": 256,
        "max_seq_len": 32,
        "norm": "layernorm",
        "norm_placement": placement,
        "position": "learned",
        "bias": True,
        "initialization": UNIT,
        "attention": {"n_heads": 4},
        "ffn": {"kind": "mlp", "activation": "relu", "d_ff": 64},
    }
    asked = experiment(table | model, seed=seed, dtype="float32", input={"batch_size": 4, "seq_len": 32})
    return measure(asked, MEMOS[seed])


def power(placement: str, metric: str, depths: tuple[int, ...] = DEPTHS, *, qk_norm: bool = False) -> float:
    """With which power of the depth the metric's geometric mean over the seeds grows."""
    means = {depth: geometric_mean(seen[metric] for seen in cells(placement, depth, qk_norm)) for depth in depths}
    return slope(means)


@cache
def cells(placement: str, depth: int, qk_norm: bool = False) -> list[dict[str, float]]:
    """The metrics of one cell, seed by seed."""
    model = {"attention": QK_NORM} if qk_norm else {}
    return [metrics(cell(placement, depth, seed, **model), has_vocabulary=True) for seed in SEEDS]


def squares(placement: str, seed: int = 0, **model: Any) -> list[float]:
    """rms² of the stream behind each of 12 blocks."""
    return [rms**2 for rms in cell(placement, 12, seed, **model).rms]


def in_xiongs_band(squares_L: list[float]) -> bool:
    """1 + l/2 <= rms² <= 1 + 3l/2 behind every block l = 1..L."""
    return all(1 + l / 2 <= square <= 1 + 3 * l / 2 for l, square in enumerate(squares_L, 1))  # noqa: E741


@pytest.mark.parametrize("seed", SEEDS)
def test_the_stream_of_pre_grows_within_the_band_of_its_lemma(seed):
    """Xiong et al. 2020, lemma 2."""
    assert in_xiongs_band(squares("pre", seed))
    assert not in_xiongs_band(squares("sandwich", seed))  # grows by 2, and the band ends at 3/2
    assert not in_xiongs_band(squares("post", seed))
    assert not in_xiongs_band(squares("pre", seed, initialization={"kind": "gpt2", "embedding_std": 0.5**0.5}))


@pytest.mark.parametrize(
    ("placement", "model", "holds"),
    [
        ("sandwich", {}, True),
        ("reordered", {}, True),
        ("reordered", {"attention": QK_NORM}, True),
        ("pre", {}, False),
        ("post", {}, False),
    ],
)
def test_a_normed_branch_adds_one_to_the_square(placement, model, holds):
    """rms² grows by 2 per block, to 15 %: as a mean over six seeds, since branches are a little correlated."""
    growth = mean((found[-1] - found[0]) / 11 for found in (squares(placement, seed, **model) for seed in MEMOS))
    assert (1.7 <= growth <= 2.3) == holds


def test_post_ends_every_block_with_rms_one():
    assert squares("post") == pytest.approx([1] * 12, rel=2e-3)
    assert squares("pre") != pytest.approx([1] * 12, rel=2e-3)


def test_the_last_ffn_gradient_shrinks_with_depth_in_pre_and_not_in_post():
    """Xiong et al. 2020, theorem 1: L^(-1/2) and L^0."""
    assert power("pre", "grad.down.last") == pytest.approx(-0.5, abs=0.15)
    assert power("post", "grad.down.last") == pytest.approx(0, abs=0.15)


def test_noise_is_answered_as_the_depth_by_post_and_slower_by_pre():
    """Liu et al. 2020: O(L) and O(log L); between 3 and 24 layers log L grows as L^0.5."""
    post, pre = (power(placement, "noise.response") for placement in ("post", "pre"))
    assert 0.7 <= post <= 1.3
    assert 0 < pre <= 0.65
    assert post - pre > 0.3


def test_deepnorms_gradient_is_independent_of_depth_and_even_over_the_layers():
    """Wang et al. 2022; neither holds for post, whose norms are as many."""
    assert power("deepnorm", "grad.matrices") == pytest.approx(0, abs=0.05)
    assert power("post", "grad.matrices") > 0.4
    for placement, even in (("deepnorm", True), ("post", False), ("pre", False)):
        assert all((found["grad.block.max_min"] < 1.2) == even for found in cells(placement, 12))


def test_reordered_needs_a_norm_on_q_and_k():
    """Without one its gradients explode on the way down."""
    depths = (6, 12, 24)
    assert power("reordered", "grad.embedding", depths) > 1.2
    assert power("reordered", "grad.embedding", depths, qk_norm=True) < 0.2
    assert power("pre", "grad.embedding", depths) < 0.2


def ratio(name: str, metric: str, placement: str, *changes: str) -> float:
    """A shipped experiment's ratio of a placement to its baseline, as changed."""
    found = tfblock_cli.gradflow(tfblock_cli.load(name, set=changes)).data.summary
    (value,) = (row.ratio for row in found if (row.metric, row.placement) == (metric, placement))
    assert value is not None
    return value


@pytest.mark.parametrize(
    "change",
    ["model.initialization.clone_layers=false", "model.final_norm=auto", "gradflow.loss=random_projection"],
)
def test_each_of_the_tutorials_three_flaws_is_needed(change):
    assert 1 / 1.5 < ratio("tutorial_flaws", "grad.input", "pre", change) < 2.5


def test_the_three_flaws_together_bring_the_tenfold_gradient_back():
    assert 6 < ratio("tutorial_flaws", "grad.input", "pre") < 16


def test_the_embeddings_size_turns_the_ranking_around():
    only = ("gradflow.expect=[]", 'gradflow.placements=["pre", "post"]', "gradflow.seeds=3")
    small, large = (
        ratio("embedding_scale", "noise.response", "post", *only, f"model.initialization.embedding_std={std}")
        for std in (0.02, 1.0)
    )
    assert small < 0.01
    assert large > 1.5
