"""What our own attention shows from outside: its values replaced, its context read, the stream kept as it is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from tfblock_cli.modules.attention import Attention
from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.probes.causality.session import Session

Replace = Callable[[Tensor], Tensor]


def attentions(session: Session) -> list[Attention]:
    """Of the blocks of our decoder, first to last; none for any other module."""
    decoder = session.subject.module
    if not isinstance(decoder, Decoder):
        return []
    found = [block.get_submodule("attention") for block in decoder.blocks]
    return [attention for attention in found if isinstance(attention, Attention)]


def contexts(session: Session, x: Tensor, values: Replace) -> list[Tensor]:
    """What every layer's weights make of other values: (B, H, T, E) each, for one forward pass.

    Args:
        session: An open one, of a decoder of ours.
        x: The input.
        values: Makes the values (B, K, S, E) that are used in the place of the model's own.
    """
    read: list[Tensor] = []
    with _replaced(attentions(session), values, read):
        session(x)
    return read


@contextmanager
def _replaced(layers: Sequence[Attention], values: Replace, read: list[Tensor]) -> Iterator[None]:
    """The context goes no further than here: 0 does, so that every layer sees the same stream whatever values are."""

    def keep(module: object, args: object, context_BHTE: Tensor) -> Tensor:
        read.append(context_BHTE.detach())
        return torch.zeros_like(context_BHTE)

    handles = []
    try:
        for attention in layers:
            handles.append(attention.v.register_forward_hook(lambda module, args, output: values(output)))
            handles.append(attention.context.register_forward_hook(keep))
        yield
    finally:
        for handle in handles:
            handle.remove()
