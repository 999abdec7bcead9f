"""Our own attention with one wrong step: heads, masks behind the softmax, positions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tfblock_cli.modules.attention import Attention, EagerAttention
from tfblock_cli.modules.chunk import Chunk
from tfblock_cli.modules.tables import Tables
from tfblock_cli.probes.causality.zoo.parts import OwnDecoder, Specimen, Specimens, leak, own, says
from tfblock_cli.spec.position import RoPE

GQA = {"attention": {"n_heads": 2, "n_kv_heads": 2, "d_head": 4}}


class Tiled(EagerAttention):
    """Key-value heads are tiled where they must be repeated: 0 1 0 1 instead of 0 0 1 1."""

    def attend(self, q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, chunk: Chunk) -> Tensor:
        """With as many key-value heads as query heads."""
        times = q_BHTE.shape[1] // k_BKSE.shape[1]
        return super().attend(q_BHTE, k_BKSE.repeat(1, times, 1, 1), v_BKSE.repeat(1, times, 1, 1), chunk)


class HeadsMixed(EagerAttention):
    """Every key-value head is given half of its neighbour's values."""

    def attend(self, q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, chunk: Chunk) -> Tensor:
        """Of v + 0.5 v of the head before."""
        return super().attend(q_BHTE, k_BKSE, v_BKSE + 0.5 * v_BKSE.roll(1, dims=1), chunk)


class MaskedLate(EagerAttention):
    """The mask comes behind the softmax: hidden keys get nothing, and their weight is lost."""

    def attend(self, q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, chunk: Chunk) -> Tensor:
        """Softmax, then mask."""
        weights = (q_BHTE @ k_BKSE.mT / q_BHTE.shape[-1] ** 0.5).softmax(-1)
        masked: Tensor = weights * self.visible(q_BHTE.shape[2], k_BKSE.shape[2], q_BHTE.device, chunk)
        return masked @ v_BKSE


class HeadsFolded(EagerAttention):
    """Heads and time are read in the wrong order: a view where a transpose is needed."""

    def attend(self, q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, chunk: Chunk) -> Tensor:
        """Of mixed-up positions."""
        v_BKSE = v_BKSE.transpose(1, 2).reshape(v_BKSE.shape)
        return super().attend(q_BHTE, k_BKSE, v_BKSE, chunk)


class HalfTheWeight(EagerAttention):
    """Weights that add up to a half: the other half is lost."""

    def attend(self, q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, chunk: Chunk) -> Tensor:
        """Half of it."""
        return super().attend(q_BHTE, k_BKSE, v_BKSE, chunk) / 2


class Strict(EagerAttention):
    """A query does not see itself; the first, which has nothing else, does."""

    def visible(self, queries: int, keys: int, device: torch.device, chunk: Chunk) -> Tensor:
        """Key < query."""
        itself = torch.arange(keys, device=device) == torch.arange(keys - queries, keys, device=device)[:, None]
        first = torch.arange(keys - queries, keys, device=device)[:, None] == 0
        return super().visible(queries, keys, device, chunk) & ~(itself & ~first)


class OneHeadAhead(EagerAttention):
    """The last head sees one key ahead."""

    def visible(self, queries: int, keys: int, device: torch.device, chunk: Chunk) -> Tensor:
        """(H, T, S)."""
        query = torch.arange(keys - queries, keys, device=device)[:, None]
        ahead = torch.arange(keys, device=device) <= query + 1
        return torch.stack((super().visible(queries, keys, device, chunk), ahead))


class KeysOnly(Tables):
    """Queries are not turned: of each two calls, the first is answered with no angle."""

    calls = 0

    def turn_TE(self, rope: RoPE, d_head: int, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cos 1 and sin 0 for a query."""
        cos_TE, sin_TE = super().turn_TE(rope, d_head, start, stop, like)
        self.calls += 1
        return (torch.ones_like(cos_TE), torch.zeros_like(sin_TE)) if self.calls % 2 else (cos_TE, sin_TE)


class BaseByLength(Tables):
    """The base of the angles grows with the length, as dynamic NTK has it."""

    def turn_TE(self, rope: RoPE, d_head: int, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Of the base 1 + stop."""
        return super().turn_TE(rope.model_copy(update={"theta": 1.0 + stop}), d_head, start, stop, like)


class NoAngles(Tables):
    """Every position is 0."""

    def turn_TE(self, rope: RoPE, d_head: int, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cos 1 and sin 0."""
        cos_TE, sin_TE = super().turn_TE(rope, d_head, start, stop, like)
        return torch.ones_like(cos_TE), torch.zeros_like(sin_TE)


def with_attention(kind: type[EagerAttention], layer: int = 1, **model: Any) -> Callable[[], OwnDecoder]:
    """Our decoder with one layer of another attention."""

    def make() -> OwnDecoder:
        decoder = own(**model)
        attention = decoder.blocks[layer].get_submodule("attention")
        assert isinstance(attention, EagerAttention)
        attention.__class__ = kind
        return decoder

    return make


def with_tables(tables: type[Tables], **model: Any) -> Callable[[], OwnDecoder]:
    """Our decoder with other angles."""

    def make() -> OwnDecoder:
        decoder, others = own(**model), tables(length=1)
        for block in decoder.blocks:
            attention = block.get_submodule("attention")
            assert isinstance(attention, Attention)
            attention.tables = others
        return decoder

    return make


INSIDE_ATTENTION: Specimens = (
    Specimen(
        name="key-value heads tiled",
        make=with_attention(Tiled, d_model=8, attention={"n_heads": 4, "n_kv_heads": 2, "d_head": 2}),
        wanted=(*says("no-flow", "head_groups"), *says("clean", "suffix_cuts", "gradient_map", "mask_readout")),
    ),
    Specimen(
        name="key-value heads mixed",
        make=with_attention(HeadsMixed),
        wanted=(*leak("head_groups"), *says("clean", "suffix_cuts", "gradient_map")),
    ),
    Specimen(
        name="mask behind the softmax",
        make=with_attention(MaskedLate),
        wanted=leak("mask_readout", "suffix_cuts"),
    ),
    Specimen(
        name="half of the weight",
        make=with_attention(HalfTheWeight),
        wanted=(*says("no-flow", "mask_readout"), *says("clean", "suffix_cuts", "gradient_map")),
    ),
    Specimen(name="heads folded into time", make=with_attention(HeadsFolded), wanted=leak("suffix_cuts")),
    Specimen(
        name="queries that do not see themselves",
        make=with_attention(Strict),
        wanted=(*says("no-flow", "mask_readout"), *says("clean", "suffix_cuts", "gradient_map")),
    ),
    Specimen(
        name="one head of one layer sees ahead",
        make=with_attention(OneHeadAhead),
        wanted=leak("mask_readout", "suffix_cuts", "gradient_map"),
    ),
    Specimen(
        name="rope on keys alone",
        make=with_tables(KeysOnly),
        wanted=(*leak("rope_shift"), *says("clean", "suffix_cuts", "truncation")),
    ),
    Specimen(name="rope without angles", make=with_tables(NoAngles), wanted=says("no-flow", "rope_shift")),
)
