"""Decoder: embedding, blocks, final norm, head. build: one with the weights that an experiment asks for."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tfblock_cli.modules.block import Block
from tfblock_cli.modules.cache import Cache
from tfblock_cli.modules.chunk import WHOLE, Chunk
from tfblock_cli.modules.initialization import Embedding, Linear, initialize
from tfblock_cli.modules.norm import build_norm
from tfblock_cli.modules.stage import Stage
from tfblock_cli.modules.tables import Tables
from tfblock_cli.spec.experiment import Experiment, Kernel
from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.position import Learned


class Decoder(nn.Module):
    """A decoder-only transformer: ids (B, T) to logits (B, T, V), or without a vocabulary (B, T, D) to (B, T, D).

    Its weights are whatever torch left in memory until ``initialize`` draws them; ``build`` does both.

    Args:
        model: What it is.
        kernel: How attention runs: sdpa or eager. Both give the same results.
        seq_len: The length that its tables are made for at first; longer inputs make them grow.
        like: One that differs in the norm placement alone, and not in ``shared_weights``. All but the wiring, and
            norms of other names, is shared: it is the same modules, with the same parameters.
    """

    def __init__(
        self, model: ModelSpec, kernel: Kernel = "sdpa", seq_len: int = 1, like: "Decoder | None" = None
    ) -> None:
        super().__init__()
        self.spec = model
        self.tables: Tables = like.tables if like else Tables(seq_len)
        D, V = model.d_model, model.vocab_size
        if V:
            self.embed: Embedding = like.embed if like else Embedding(V, D)
        if isinstance(model.position, Learned):
            self.position: Embedding = like.position if like else Embedding(model.max_seq_len, D)
        self.embedded = Stage()
        others: list[Any] = [*like.blocks] if like else [None] * model.n_layers
        self.blocks: nn.ModuleList = nn.ModuleList(
            Block(block, kernel, self.tables, other) for block, other in zip(model.blocks(), others, strict=True)
        )
        if model.has_final_norm:
            self.final_norm = build_norm(model.norm, D)
        if V:
            self.head: Linear = like.head if like else Linear(D, V, bias=model.head_bias)
            if model.tie_embeddings:
                self.head.weight = self.embed.weight

    def new_cache(self, batch_size: int = 1) -> Cache:
        """An empty key-value cache.

        ``decoder(x, cache=cache)`` for one chunk after the other, each of any length, puts out what ``decoder(x)``
        does for all of them at once.

        Args:
            batch_size: B.

        Raises:
            ValueError: A layer's pattern allows none.
        """
        return Cache([block.attention.pattern for block in self.spec.blocks()], batch_size)

    def forward(self, x: Tensor, cache: Cache | None = None, padding: Tensor | None = None) -> Tensor:
        """Ids (B, T) to logits (B, T, V), or (B, T, D) to (B, T, D).

        Args:
            x: Whole sequences, or with a cache the tokens that come next.
            cache: What ``new_cache`` made; it is extended by x.
            padding: How many tokens at the left of each sequence stand for nothing, (B,). No other token sees them,
                and positions are counted behind them. What is put out for them means nothing, but is finite. With a
                cache it goes with the first chunk, and may be more than that one's tokens.

        Raises:
            ValueError: The input is longer than max_seq_len, not of the kind that the model takes, or does not fit
                the cache or the padding.
        """
        chunk = self._chunk(x, cache, padding)
        (last_BTD,) = deque(self.streams(x, chunk), maxlen=1)  # the others are let go as they come
        if cache is not None:
            cache.advance(x.shape[1], chunk.padding)
        return self.output(last_BTD)

    def streams(self, x: Tensor, chunk: Chunk = WHOLE) -> Iterator[Tensor]:
        """The residual stream in front of the first block, behind each, and behind the final norm if there is one.

        Args:
            x: Ids (B, T), or (B, T, D) without a vocabulary. It is not looked at for faults, as ``forward`` does.
            chunk: Where x stands in its sequences.
        """
        stream_BTD = self.embed(x) if self.spec.vocab_size else x
        if isinstance(self.spec.position, Learned):
            stream_BTD = stream_BTD + self.position(chunk.positions(x.shape[1], x.device))
        stream_BTD = self.embedded(stream_BTD)
        yield stream_BTD
        for block in self.blocks:
            stream_BTD = block(stream_BTD, chunk)
            yield stream_BTD
        if self.spec.has_final_norm:
            yield self.final_norm(stream_BTD)

    def output(self, stream_BTD: Tensor) -> Tensor:
        """What is put out for the last of the streams: logits (B, T, V), or without a vocabulary the stream itself."""
        out: Tensor = self.head(stream_BTD) if self.spec.vocab_size else stream_BTD
        return out

    def _chunk(self, x: Tensor, cache: Cache | None, padding_B: Tensor | None) -> Chunk:
        """Where x stands in its sequences."""
        wanted = "ids (B, T)" if self.spec.vocab_size else f"vectors (B, T, {self.spec.d_model})"
        fits = x.dim() == 2 if self.spec.vocab_size else x.dim() == 3 and x.shape[-1] == self.spec.d_model
        if not fits or x.is_floating_point() != (not self.spec.vocab_size):
            raise ValueError(f"this decoder takes {wanted}, not {x.dtype} of shape {tuple(x.shape)}")
        start = 0 if cache is None else cache.n_tokens
        if start + x.shape[1] > self.spec.max_seq_len:
            raise ValueError(f"{start + x.shape[1]} tokens are more than max_seq_len = {self.spec.max_seq_len}")
        if padding_B is not None:
            if padding_B.shape != x.shape[:1] or padding_B.is_floating_point():
                raise ValueError(
                    f"padding is one whole number per sequence, ({x.shape[0]},), not {padding_B.dtype} of shape "
                    f"{tuple(padding_B.shape)}"
                )
            padding_B = padding_B.to(x.device)
            if int(padding_B.min()) < 0:
                raise ValueError(f"padding counts tokens, and one of them is {int(padding_B.min())}")
        if cache is not None:
            cache.expect(x.shape[0], padding_B)
            padding_B = cache.padding if padding_B is None else padding_B
        return Chunk(start, padding_B, cache)


def build(experiment: Experiment) -> Decoder:
    """The experiment's decoder in its dtype, on its device, with its weights drawn from its seed; in eval mode.

    Args:
        experiment: On the device "meta" there are shapes and no numbers.
    """
    decoder = empty(experiment)
    if experiment.device != "meta":
        initialize(decoder, experiment.model, experiment.seed)
    return decoder


def empty(experiment: Experiment, like: Decoder | None = None) -> Decoder:
    """The experiment's decoder in its dtype, on its device, in eval mode; its weights are still to be drawn.

    Args:
        experiment: What it is.
        like: The decoder that it shares its modules with, as ``Decoder`` has it.
    """
    with torch.device(experiment.device):
        decoder = Decoder(experiment.model, experiment.kernel, experiment.input.seq_len, like)
    dtype = getattr(torch, experiment.dtype)
    if dtype != torch.get_default_dtype():
        decoder.to(dtype)
    return decoder if like else decoder.eval()  # dropout, the only part with a mode, is shared
