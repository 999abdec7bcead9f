"""Rope, the learned table, and the tables that grow with the length."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.modules.formulas import decode
from tests.modules.formulas import turn as turn_by_formula
from tests.modules.models import EVERY_PATTERN, distance, experiment, inputs, plain, shaken
from tfblock_cli.modules.chunk import Chunk
from tfblock_cli.modules.position import turn
from tfblock_cli.modules.tables import Tables
from tfblock_cli.spec.attention import Causal
from tfblock_cli.spec.position import NoPosition, RoPE

CPU = torch.device("cpu")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("theta", [10000.0, 10.0])
def test_rope_multiplies_complex_numbers(start, theta):
    x_BTHE = drawn(2, 6, 3, 8)
    found = turn(x_BTHE, RoPE(theta=theta), Tables(1), Chunk(start)).transpose(1, 2)
    expected = np.stack([turn_by_formula(x_BTHE[:, :, head].numpy(), theta, start) for head in range(3)], axis=1)
    assert distance(found, expected) < 1e-12


def test_rope_keeps_lengths_and_leaves_the_first_token_alone():
    x_BTHE = drawn(2, 6, 3, 8)
    turned = turn(x_BTHE, RoPE(), Tables(6))
    assert torch.allclose(turned.norm(dim=-1), x_BTHE.norm(dim=-1))
    assert torch.equal(turned[:, 0], x_BTHE[:, 0])
    assert not torch.allclose(turned[:, 1:], x_BTHE[:, 1:])


def test_scores_depend_on_the_distance_alone():
    q, k, tables = drawn(1, 9, 2, 8), drawn(1, 9, 2, 8, seed=1), Tables(9)

    def scores(start_q: int, start_k: int) -> Tensor:
        turned = (turn(x, RoPE(), tables, Chunk(start)) for x, start in ((q, start_q), (k, start_k)))
        return torch.einsum("bthe,bshe->bhts", *turned)

    assert distance(scores(0, 0), scores(100, 100)) < 1e-12
    assert distance(scores(0, 0), scores(0, 1)) > 1e-2


def test_a_decoder_does_not_notice_that_all_positions_moved_and_notices_that_they_doubled(monkeypatch):
    asked = experiment()
    decoder, x = shaken(asked), inputs(asked)
    with torch.no_grad():
        found = decoder(x)
        assert distance(found, decode(asked.model, plain(decoder), x.numpy(), start=50)) < 1e-10
        once = Tables.turn_TE

        def doubled(self, rope, d_head, start, stop, like):
            return tuple(table[::2] for table in once(self, rope, d_head, 2 * start, 2 * stop, like))

        monkeypatch.setattr(Tables, "turn_TE", doubled)
        assert distance(found, decoder(x)) > 1e-3


def test_other_positions_turn_nothing():
    x_BTHE = drawn(2, 6, 3, 8)
    assert turn(x_BTHE, NoPosition(), Tables(6)) is x_BTHE


def test_without_positions_and_mask_the_order_of_tokens_does_not_matter_and_with_rope_it_does():
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])
    attention = {"n_heads": 4, "pattern": "bidirectional"}
    for position, matters in (("none", False), ("rope", True), ("learned", True)):
        asked = experiment(position=position, attention=attention)
        decoder, x = shaken(asked), inputs(asked)
        with torch.no_grad():
            assert (distance(decoder(x[:, order]), decoder(x)[:, order]) > 1e-3) == matters


def test_a_longer_input_makes_the_tables_grow_and_gives_what_longer_tables_would():
    x = inputs(experiment(), seq_len=21)
    for kernel in ("sdpa", "eager"):
        short, long = (shaken(experiment(seq_len=length, kernel=kernel)) for length in (7, 21))
        with torch.no_grad():
            before = short(x[:, :7])
            assert torch.equal(short(x), long(x))
            assert torch.equal(short(x[:, :7]), before)


@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
def test_masks_are_slices_of_what_is_visible(pattern):
    tables = Tables(4)
    for length in (4, 1, 9, 6, 40, 2):
        visible = tables.visible_TT(pattern, length, CPU)
        assert visible.dtype == torch.bool
        assert visible.tolist() == [[pattern.allows(t, s) for s in range(length)] for t in range(length)]


def test_tables_grow_by_one_position_at_a_time():
    tables, like = Tables(1), drawn(1)
    for length in range(1, 20):
        assert tables.visible_TT(Causal(), length, CPU).shape == (length, length)
        assert [table.shape for table in tables.turn_TE(RoPE(), 8, 0, length, like)] == [(length, 4)] * 2


def test_angles_are_slices_of_fresh_ones_and_made_once():
    grown, like = Tables(4), drawn(1)
    for start, stop in ((0, 3), (2, 4), (0, 37), (30, 37), (1, 2)):
        fresh = Tables(64).turn_TE(RoPE(), 8, start, stop, like)
        for found, expected in zip(grown.turn_TE(RoPE(), 8, start, stop, like), fresh, strict=True):
            assert torch.equal(found, expected)
    first, again = (grown.turn_TE(RoPE(), 8, 0, 5, like)[0] for _ in range(2))
    assert first.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()


def test_angles_are_never_narrower_than_float32():
    narrow = Tables(4).turn_TE(RoPE(), 8, 0, 4, drawn(1).bfloat16())
    assert [table.dtype for table in narrow] == [torch.float32] * 2
    assert turn(drawn(1, 4, 1, 8).bfloat16(), RoPE(), Tables(4)).dtype == torch.bfloat16
