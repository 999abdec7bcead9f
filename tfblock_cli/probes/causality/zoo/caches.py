"""Caches and padding: right on whole sequences, wrong on what follows a cache or padding."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfblock_cli.modules.attention import Attention, EagerAttention
from tfblock_cli.modules.cache import Cache
from tfblock_cli.modules.chunk import Chunk
from tfblock_cli.modules.tables import Tables
from tfblock_cli.probes.causality.zoo.inside_attention import BaseByLength, with_attention, with_tables
from tfblock_cli.probes.causality.zoo.parts import OwnDecoder, Specimen, Specimens, Wanted, leak, of, own, says
from tfblock_cli.spec.attention import SlidingWindow
from tfblock_cli.spec.position import RoPE

WINDOW = SlidingWindow(window=4)
ONLY_CACHE = (*leak("incremental"), *says("clean", "suffix_cuts", "gradient_map", "truncation"))


class FromZero(Tables):
    """Positions are counted from 0 in every chunk."""

    def turn_TE(self, rope: RoPE, d_head: int, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Of 0..stop - start."""
        return super().turn_TE(rope, d_head, 0, stop - start, like)


class FromZeroInBfloat16(FromZero):
    """The same in bfloat16 alone."""

    def turn_TE(self, rope: RoPE, d_head: int, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Of 0..stop - start, for tensors of that dtype."""
        kind = FromZero if like.dtype == torch.bfloat16 else Tables
        return kind.turn_TE(self, rope, d_head, start, stop, like)


class ShortInBfloat16(BaseByLength):
    """Another base for fewer than 8 tokens, in bfloat16 alone."""

    def turn_TE(self, rope: RoPE, d_head: int, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Of a base by length for few tensors of that dtype."""
        kind = BaseByLength if like.dtype == torch.bfloat16 and stop < 8 else Tables
        return kind.turn_TE(self, rope, d_head, start, stop, like)


class OneTooFar(Tables):
    """Positions behind a cache are one too large, as when the counter has been raised already."""

    def turn_TE(self, rope: RoPE, d_head: int, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Of start + 1.."""
        late = int(start > 0)
        return super().turn_TE(rope, d_head, start + late, stop + late, like)


class TopLeft(EagerAttention):
    """Chunks are aligned at the first key: query 0 of a chunk sees key 0 alone."""

    def visible(self, queries: int, keys: int, device: torch.device, chunk: Chunk) -> Tensor:
        """Key <= index in the chunk."""
        return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


class UnmaskedWithCache(EagerAttention):
    """No mask as soon as there is a cache: right token by token, wrong for any longer chunk."""

    def visible(self, queries: int, keys: int, device: torch.device, chunk: Chunk) -> Tensor:
        """Everything."""
        seen = super().visible(queries, keys, device, chunk)
        return seen if chunk.cache is None else torch.ones_like(seen)


class UnmaskedInBfloat16(UnmaskedWithCache):
    """The same in bfloat16 alone."""

    def visible(self, queries: int, keys: int, device: torch.device, chunk: Chunk) -> Tensor:
        """Everything, in that dtype."""
        kind = UnmaskedWithCache if self.out.weight.dtype == torch.bfloat16 else EagerAttention
        return kind.visible(self, queries, keys, device, chunk)


class PastForgotten(EagerAttention):
    """The mask of a chunk knows its own keys alone."""

    def visible(self, queries: int, keys: int, device: torch.device, chunk: Chunk) -> Tensor:
        """Nothing of the cache."""
        seen = super().visible(queries, keys, device, chunk).clone()
        seen[:, : keys - queries] = False
        return seen


class NarrowCache(OwnDecoder):
    """Its cache keeps W - 2 keys; the next query wants W - 1 of them."""

    def new_cache(self, batch_size: int = 1) -> Cache:
        """Of a window that is two keys shorter."""
        return Cache([SlidingWindow(window=WINDOW.window - 2)] * len(self.blocks), batch_size)


class CountsTwice(Cache):
    """Counts every chunk twice."""

    def advance(self, n_tokens: int, padding_B: Tensor | None) -> None:
        """By twice its tokens."""
        super().advance(2 * n_tokens, padding_B)


class TwiceCounted(OwnDecoder):
    """Its positions run twice as fast as its tokens."""

    def new_cache(self, batch_size: int = 1) -> Cache:
        """One that counts twice."""
        return CountsTwice([block.attention.pattern for block in self.spec.blocks()], batch_size)


class PaddingIgnored(OwnDecoder):
    """Padding is taken and not used."""

    def forward(self, x: Tensor, cache: Cache | None = None, padding: Tensor | None = None) -> Tensor:
        """As if there were none."""
        return super().forward(x, cache)


class PaddingCounted(OwnDecoder):
    """Padding is hidden, but positions count it."""

    def _chunk(self, x: Tensor, cache: Cache | None, padding_B: Tensor | None) -> Chunk:
        chunk = super()._chunk(x, cache, padding_B)
        return _FromTheLeft(chunk.start, chunk.padding, chunk.cache)


class _FromTheLeft(Chunk):
    """Positions are columns, padding included."""

    def positions(self, n_tokens: int, device: torch.device) -> Tensor:
        """(B, T) where there is padding."""
        position_T = torch.arange(self.start, self.start + n_tokens, device=device)
        return position_T if self.padding is None else position_T.expand(len(self.padding), n_tokens)


class PaddingUnhidden(EagerAttention):
    """Behind a cache the mask knows of no padding."""

    def visible(self, queries: int, keys: int, device: torch.device, chunk: Chunk) -> Tensor:
        """Padding too, once there are keys in the cache."""
        return super().visible(queries, keys, device, replace(chunk, padding=None) if chunk.start else chunk)


class PaddingOfTheFirst(EagerAttention):
    """Behind a cache the mask is that of the first sequence, for all."""

    def visible(self, queries: int, keys: int, device: torch.device, chunk: Chunk) -> Tensor:
        """(1, 1, T, S) where it must be (B, 1, T, S)."""
        seen = super().visible(queries, keys, device, chunk)
        return seen[:1] if chunk.start and chunk.padding is not None else seen


class PaddingCountedBehind(PaddingCounted):
    """Padding is hidden, but the positions of what follows a cache count it."""

    def _chunk(self, x: Tensor, cache: Cache | None, padding_B: Tensor | None) -> Chunk:
        counted = super()._chunk(x, cache, padding_B)
        return counted if counted.start else Chunk(counted.start, counted.padding, counted.cache)


def shared_slot() -> OwnDecoder:
    """Two layers write into one slot of the cache."""
    decoder = own()
    for block in decoder.blocks:
        attention = block.get_submodule("attention")
        assert isinstance(attention, Attention)
        attention.index = 0
    return decoder


def learned_from_zero() -> OwnDecoder:
    """Rows of the position table are counted anew in every chunk."""
    decoder = own(position="learned")
    decoder.position.register_forward_pre_hook(lambda module, args: (args[0] - args[0].flatten()[0],))
    return decoder


def as_kind(kind: type[OwnDecoder], **model: Any) -> Callable[[], OwnDecoder]:
    """Our decoder as another class."""

    def make() -> OwnDecoder:
        decoder = own(**model)
        decoder.__class__ = kind
        return decoder

    return make


def in_bfloat16(make: Callable[[], OwnDecoder]) -> Callable[[], OwnDecoder]:
    """The same, with weights of that dtype."""
    return lambda: make().to(torch.bfloat16)


def only_bfloat16(*probes: str) -> tuple[Wanted, ...]:
    """They leak in bfloat16; in float64 they do not, and cuts see nothing in either."""
    return (
        *(Wanted(probe=probe, verdict="LEAK", dtype="bfloat16") for probe in probes),
        *(Wanted(probe=probe, verdict="clean", dtype="float64") for probe in (*probes, "suffix_cuts")),
        Wanted(probe="suffix_cuts", verdict="clean", dtype="bfloat16"),
    )


CACHES: Specimens = (
    Specimen(name="positions from 0 in every chunk", make=with_tables(FromZero), wanted=ONLY_CACHE),
    Specimen(name="positions one too far behind a cache", make=with_tables(OneTooFar), wanted=ONLY_CACHE),
    Specimen(name="tokens counted twice", make=as_kind(TwiceCounted), wanted=ONLY_CACHE),
    Specimen(name="learned positions from 0 in every chunk", make=learned_from_zero, wanted=ONLY_CACHE),
    Specimen(name="chunks aligned at the first key", make=with_attention(TopLeft), wanted=ONLY_CACHE),
    Specimen(name="no mask with a cache", make=with_attention(UnmaskedWithCache), wanted=ONLY_CACHE),
    Specimen(name="mask of a chunk without its past", make=with_attention(PastForgotten), wanted=ONLY_CACHE),
    Specimen(name="two layers in one slot", make=shared_slot, wanted=ONLY_CACHE),
    Specimen(
        name="cache one key shorter than the window",
        make=as_kind(NarrowCache, pattern={"kind": "sliding_window", "window": 4}),
        declared=of(WINDOW, WINDOW),
        wanted=ONLY_CACHE,
    ),
    Specimen(
        name="padding ignored",
        make=as_kind(PaddingIgnored),
        wanted=(*leak("padding"), *says("clean", "suffix_cuts", "incremental")),
    ),
    Specimen(
        name="learned positions that count padding",
        make=as_kind(PaddingCounted, position="learned"),
        wanted=(*leak("padding"), *says("clean", "suffix_cuts", "incremental")),
    ),
    Specimen(
        name="padding visible behind a cache",
        make=with_attention(PaddingUnhidden),
        wanted=(*leak("padding"), *says("clean", "suffix_cuts", "incremental")),
    ),
    Specimen(
        name="padding of the first sequence behind a cache",
        make=with_attention(PaddingOfTheFirst),
        wanted=(*leak("padding"), *says("clean", "suffix_cuts", "incremental")),
    ),
    Specimen(
        name="positions that count padding behind a cache",
        make=as_kind(PaddingCountedBehind),
        wanted=(*leak("padding"), *says("clean", "suffix_cuts", "incremental")),
    ),
    Specimen(
        name="positions from 0 in every chunk, in bfloat16",
        make=in_bfloat16(with_tables(FromZeroInBfloat16)),
        wanted=only_bfloat16("incremental"),
    ),
    Specimen(
        name="no mask with a cache, in bfloat16",
        make=in_bfloat16(with_attention(UnmaskedInBfloat16)),
        wanted=only_bfloat16("incremental"),
    ),
    Specimen(
        name="another base for few tokens, in bfloat16",
        make=in_bfloat16(with_tables(ShortInBfloat16)),
        wanted=only_bfloat16("truncation"),
    ),
)
