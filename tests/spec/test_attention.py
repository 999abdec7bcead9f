"""Patterns: predicates on indices, their counts and what they say of themselves, against the pairs one by one."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.modules.models import EVERY_PATTERN
from tfblock_cli.spec.attention import Attention, Documents, Pattern, Prefix, SlidingWindow
from tfblock_cli.spec.base import axis_of

LENGTHS = range(1, 20)


def visible(pattern: Pattern, seq_len: int) -> list[list[bool]]:
    return [[pattern.allows(query, key) for key in range(seq_len)] for query in range(seq_len)]


def test_every_kind_is_tested():
    assert {type(pattern) for pattern in EVERY_PATTERN} == set(axis_of(Pattern)[0])


def test_known_masks():
    def drawn(pattern: Pattern) -> list[str]:
        return ["".join(".x"[seen] for seen in row) for row in visible(pattern, 5)]

    assert drawn(SlidingWindow(window=2)) == ["x....", "xx...", ".xx..", "..xx.", "...xx"]
    assert drawn(Prefix(length=3)) == ["xxx..", "xxx..", "xxx..", "xxxx.", "xxxxx"]
    assert drawn(Documents(lengths=(2,))) == ["x....", "xx...", "..x..", "..xx.", "....x"]
    assert drawn(Documents(lengths=(1, 3))) == ["x....", ".x...", ".xx..", ".xxx.", "....x"]


@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
@pytest.mark.parametrize("seq_len", LENGTHS)
def test_pairs_are_counted_one_by_one(pattern, seq_len):
    assert pattern.visible_pairs(seq_len) == sum(map(sum, visible(pattern, seq_len)))


@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
def test_whole_numbers_and_tensors_say_the_same(pattern):
    index = torch.arange(19)
    found = torch.as_tensor(pattern.allows(index[:, None], index)).expand(19, 19)
    assert found.dtype == torch.bool
    assert found.tolist() == visible(pattern, 19)
    assert all(type(seen) is bool for row in visible(pattern, 3) for seen in row)


@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
def test_every_query_sees_itself(pattern):
    assert all(pattern.allows(index, index) for index in LENGTHS)


@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
def test_reach_and_mutual_are_what_the_pairs_show(pattern):
    length = 120
    seen = visible(pattern, length)
    back = 1 + max(query - key for query in range(length) for key in range(length) if seen[query][key])
    assert (back if pattern.reach is not None else None) == pattern.reach
    assert back == length or pattern.reach is not None
    ahead = [key + 1 for query in range(length) for key in range(query + 1, length) if seen[query][key]]
    assert max(ahead, default=1) == (length if pattern.mutual is None else pattern.mutual)
    assert pattern.is_causal == (not ahead)


@pytest.mark.parametrize(
    "pattern",
    [
        "sliding_window",
        {"kind": "sliding_window", "window": 0},
        {"kind": "sliding_window", "window": 2.0},
        {"kind": "sliding_window", "length": 2},
        "prefix",
        {"kind": "prefix", "length": -1},
        "documents",
        {"kind": "documents", "lengths": []},
        {"kind": "documents", "lengths": 3},
        {"kind": "documents", "lengths": [3, 0]},
        {"kind": "causal", "window": 3},
    ],
    ids=str,
)
def test_what_describes_no_pattern_is_refused(pattern: Any):
    rest = {"n_heads": 2, "n_kv_heads": 2, "d_head": 2, "bias": False, "out_bias": False}
    with pytest.raises(ValidationError):
        Attention.model_validate(rest | {"pattern": pattern})
