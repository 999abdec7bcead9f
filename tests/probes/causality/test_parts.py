"""Cuts, tolerances and shapes, each against a second way to get them."""

import math
from itertools import combinations

import pytest
import torch

from tfblock_cli.probes.causality import cuts
from tfblock_cli.probes.causality.first_pair import first_input, shape_of
from tfblock_cli.probes.causality.verdict import Tolerance, other_shape, same_shape, worst_of


@pytest.mark.parametrize("seq_len", [2, 3, 10, 33, 64])
@pytest.mark.parametrize("choose", [cuts.every, cuts.ladder, lambda T: (1,), lambda T: (T - 1,), lambda T: (T // 2,)])
def test_pairs_covered_is_what_counting_gives(seq_len, choose):
    chosen = choose(seq_len)
    pairs = list(combinations(range(seq_len), 2))
    separated = sum(any(i < k <= j for k in chosen) for i, j in pairs)
    assert cuts.pairs_covered(chosen, seq_len) == pytest.approx(separated / len(pairs), abs=1e-15)


def test_every_cut_covers_every_pair_and_one_less_does_not():
    assert cuts.pairs_covered(cuts.every(20), 20) == 1
    assert cuts.pairs_covered([k for k in cuts.every(20) if k != 7], 20) < 1
    assert cuts.pairs_covered((), 1) == 0


def test_a_ladder_is_short_and_reaches_both_ends():
    assert cuts.ladder(32) == cuts.every(32)
    for seq_len in (33, 100, 1024, 4096):
        ladder = cuts.ladder(seq_len)
        assert len(ladder) <= 3 * math.log2(seq_len) + 6
        assert {1, 2, 3, seq_len // 2, seq_len - 2, seq_len - 1} <= set(ladder) <= set(cuts.every(seq_len))
        assert cuts.pairs_covered(ladder, seq_len) > 0.75


def test_tolerances():
    assert Tolerance(0.0, 1e-10).judge(0.0) == "clean"
    assert Tolerance(0.0, 1e-10).judge(1e-300) == "noise"
    assert Tolerance(0.0, 1e-10).judge(1.1e-10) == "LEAK"
    assert Tolerance(0.0, 1e-10).judge(math.nan) == Tolerance(0.0, 1.0).judge(math.inf) == "inconclusive"
    assert same_shape(torch.float64).noise == 64 * 2.0**-52
    assert same_shape(torch.bfloat16).noise == 1e-5  # 64 roundings of bfloat16 would be half of the output
    assert same_shape(torch.float64, 30.0).noise == 30 * same_shape(torch.float64).noise
    assert other_shape(torch.float64).noise == 1e-10


def test_a_leak_outranks_everything():
    assert worst_of("clean", "LEAK", "inconclusive", "no-flow", "noise") == "LEAK"
    assert worst_of("clean", "inconclusive", "no-flow") == "no-flow"
    assert worst_of("noise", "inconclusive") == "inconclusive"
    assert worst_of() == "clean"


@pytest.mark.parametrize("answer", [3, 4, 7, 11])
def test_bisection_finds_the_first_input(answer):
    asked: list[int] = []

    def moved(j: int) -> bool:
        asked.append(j)
        return j >= int(answer)

    assert first_input(3, 12, moved) == answer
    assert len(asked) <= 4


@pytest.mark.parametrize(
    ("sees", "in_", "shape"),
    [
        (lambda i, j: j > i, 1, "full upper triangle"),
        (lambda i, j: j == i + 1, 1, "next token"),
        (lambda i, j: j > i and j // 3 == i // 3, 1, "within blocks of 3"),
        (lambda i, j: j == 9, 9, "last column"),
        (lambda i, j: j == 4, 4, "one column"),
        (lambda i, j: i == 2 and j > 5, 6, "one row"),
        (lambda i, j: j == i + 2, 2, "other"),
    ],
)
def test_the_shape_of_a_known_pattern(sees, in_, shape):
    T = 10
    rows = {k: frozenset(i for i in range(k) for j in range(k, T) if sees(i, j)) for k in range(1, T)}
    assert shape_of(rows, in_, T) == shape


def test_two_tokens_have_one_pair_only():
    assert shape_of({1: frozenset({0})}, 1, 2) == "full upper triangle"
