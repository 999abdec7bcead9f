"""The pair of a leak that is not about the future alone: caches, padding, documents, heads, positions, the batch."""

import pytest
import torch

from tests.probes.causality.asking import row
from tfblock_cli.probes.causality.check import check
from tfblock_cli.probes.causality.pieces import schedules, up_to, without_first
from tfblock_cli.probes.causality.zoo import ZOO
from tfblock_cli.probes.causality.zoo.parts import Specimen, T
from tfblock_cli.results.causality import CausalityData, Leak

SPECIMENS: dict[str, Specimen] = {specimen.name: specimen for family in ZOO.values() for specimen in family}


def asked(name: str, *probes: str) -> CausalityData:
    """What the probes say of a model of the zoo."""
    torch.manual_seed(0)
    specimen = SPECIMENS[name]
    return check([specimen.subject()], declared=specimen.declared, seq_len=T, only=probes)


def pair(name: str, probe: str) -> Leak:
    """The first pair that a probe names."""
    return asked(name, probe).leaks[0]


@pytest.mark.parametrize(
    ("name", "out", "in_", "shape", "stage"),
    [
        # one token in the cache is enough where all positions or the whole mask are wrong
        ("positions from 0 in every chunk", 1, 0, "behind a cache", "blocks.0.attention"),
        ("learned positions from 0 in every chunk", 1, 0, "behind a cache", "<root forward>"),
        ("mask of a chunk without its past", 1, 0, "behind a cache", "blocks.1.attention"),
        # a window of 4 wants the key 3 back, which a cache of 2 has lost; two keys in it do no harm
        ("cache one key shorter than the window", 3, 0, "behind a cache", "blocks.0.attention"),
        # the first chunk sees itself whole
        ("no mask with a cache", 0, 1, "ahead in its chunk", "blocks.1.attention"),
    ],
)
def test_with_a_cache_it_is_the_nearest_input_that_makes_the_output_wrong(name, out, in_, shape, stage):
    leak = pair(name, "incremental")
    assert (leak.out, leak.in_, leak.shape, leak.stage) == (out, in_, shape, stage)
    assert 0 < leak.cuts < leak.cuts_total == sum(map(len, schedules(T, SPECIMENS[name].declared.reach).values()))


@pytest.mark.parametrize(
    ("name", "out", "stage", "cached"),
    [
        ("padding ignored", 3, "blocks.0.attention", False),
        ("learned positions that count padding", 3, "<root forward>", False),
        ("padding visible behind a cache", 6, "blocks.1.attention", True),
        ("padding of the first sequence behind a cache", 6, "blocks.1.attention", True),
        ("positions that count padding behind a cache", 6, "blocks.0.attention", True),
    ],
)
def test_behind_padding_it_is_the_last_of_it(name, out, stage, cached):
    """The second sequence has three tokens of it; the first piece that is fed to a cache ends at half of the tokens."""
    data = asked(name, "padding")
    (leak,) = data.leaks
    assert (leak.out, leak.in_, leak.shape, leak.stage) == (out, 2, "padding", stage)
    assert ("with a cache" in row(data, "padding").message) == cached


def test_a_fault_of_the_cache_is_not_put_down_to_padding():
    data = asked("two layers in one slot", "padding", "incremental")
    assert row(data, "incremental").verdict == "LEAK"
    assert row(data, "padding").verdict == "clean"


@pytest.mark.parametrize(
    ("name", "out", "in_", "counted"),
    [
        ("documents that see each other", 5, 0, (2, 3)),  # the last document of three moves no other
        ("boundary of documents off by one", 5, 0, (1, 3)),  # 6 and 3 tokens, where 5 and 4 were declared
        ("rope on keys alone, packed", 6, 4, (2, 6)),  # the nearest token of another document, and no content
        ("base of rope by length, packed", 1, 5, (3, 6)),  # one token behind the document
    ],
)
def test_of_documents_it_is_an_input_of_another_one(name, out, in_, counted):
    leak = pair(name, "documents")
    assert (leak.out, leak.in_, leak.shape, leak.counted) == (out, in_, "another document", "documents")
    assert (leak.cuts, leak.cuts_total) == counted
    assert leak.stage == "blocks.0.attention"


def test_of_heads_it_is_a_value_of_the_foreign_one():
    leak = pair("key-value heads mixed", "head_groups")
    assert (leak.out, leak.in_, leak.shape, leak.stage) == (0, 0, "another head", "blocks.1.attention")
    assert (leak.cuts, leak.cuts_total, leak.counted) == (2, 4, "heads")  # both of one layer of two


def test_a_head_that_reads_another_instead_of_its_own_is_a_path_that_is_missing():
    data = asked("key-value heads tiled", "head_groups")
    assert (row(data, "head_groups").verdict, data.leaks) == ("no-flow", ())
    assert "query head 1 reads the key-value heads 1, and its own is 0" in row(data, "head_groups").message


def test_of_positions_it_is_the_first_query_that_sees_more_than_itself():
    leak = pair("rope on keys alone", "rope_shift")
    assert (leak.out, leak.in_, leak.shape, leak.stage) == (1, 0, "absolute position", "blocks.0.attention")


def test_weight_that_is_lost_to_the_future_is_a_leak_and_else_a_path_that_is_missing():
    leak = pair("mask behind the softmax", "mask_readout")
    assert (leak.out, leak.in_, leak.stage) == (0, 1, "blocks.1.attention")
    data = asked("half of the weight", "mask_readout")
    assert (row(data, "mask_readout").verdict, data.leaks) == ("no-flow", ())
    assert "add up to 0.5" in row(data, "mask_readout").message


@pytest.mark.parametrize(
    ("name", "in_", "stage"), [("batch mixed", 0, "mixes.1"), ("batch and time swapped", 0, "mixes.0.attention")]
)
def test_of_the_batch_it_is_an_input_of_another_sample(name, in_, stage):
    leak = pair(name, "batch_independence")
    assert (leak.out, leak.in_, leak.shape, leak.stage) == (0, in_, "another sample", stage)


@pytest.mark.parametrize(
    ("name", "probe", "shape"),
    [
        ("positions from 0 in every chunk, in bfloat16", "incremental", "behind a cache"),
        ("no mask with a cache, in bfloat16", "incremental", "ahead in its chunk"),
    ],
)
def test_what_is_wrong_in_sixteen_bits_alone_is_named_as_well(name, probe, shape):
    data = asked(name, probe)
    assert [(found.dtype, found.verdict) for found in data.probes if found.name == probe] == [
        ("float64", "clean"),
        ("bfloat16", "LEAK"),
    ]
    assert data.leaks[0].shape == shape


@pytest.mark.parametrize("prefix", [1, 4])
@pytest.mark.parametrize("name", schedules(T))
def test_pieces_without_the_first_tokens_end_where_they_did(name, prefix):
    """Second way: by every boundary, one by one."""
    pieces = schedules(T, mutual=prefix)[name]
    ends = {sum(pieces[: i + 1]) for i in range(len(pieces))}
    for n in range(T - pieces[-1] - prefix + 1):
        left = without_first(pieces, n, prefix)
        assert sum(left) == T - n
        assert left[0] >= prefix
        assert {n + sum(left[: i + 1]) for i in range(len(left))} <= ends
    assert up_to(pieces, T - 1) == pieces[:-1]
