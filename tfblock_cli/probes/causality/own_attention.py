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


def weights_LHTT(session: Session, x: Tensor) -> Tensor:
    """The weights of every layer and head for one sequence, in float64 on the CPU. Heads that are missing count as 0.

    Attention is linear in its values, so values that are 1 at one key read the weights of that key out: E keys at a
    time, T / E forward passes, with any kernel.
    """
    T = session.seq_len
    E = attentions(session)[0].qkv.out_features // sum(attentions(session)[0].n_heads)
    session.progress.start(f"attention weights, {session.mode_name}", -(-T // E))
    pieces = [
        torch.stack([context_BHTE[0] for context_BHTE in contexts(session, x, _one_hot(start))])
        for start in range(0, T, E)
    ]
    return torch.cat(pieces, dim=-1)[..., :T].cpu().double()


def _one_hot(start: int) -> Replace:
    """Values (B, K, S, E) whose entry e is 1 at the key start + e and 0 at all others."""

    def values(v_BKSE: Tensor) -> Tensor:
        S, E = v_BKSE.shape[2:]
        one_hot_SE = torch.arange(S)[:, None] == start + torch.arange(E)
        return one_hot_SE.to(v_BKSE.device, v_BKSE.dtype).expand(v_BKSE.shape)

    return values


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
