"""What the norms of a decoder are given, seen from outside: the measures behind two guards."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import nan

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.modules.norm import LayerNorm, RMSNorm
from tfblock_cli.probes.float64 import for_float64
from tfblock_cli.spec.model import BlockSpec


def _branch_norms(block: BlockSpec) -> Iterator[str]:
    """The norms of a block that take what a sub-layer, or the attention's heads, put out."""
    if block.norm_placement.norms_the_branch:
        yield from (f"norms.{names[-1]}" for names in block.norm_placement.norm_names())
    for name, part in (("attention", block.attention), ("ffn", block.ffn)):
        if part.inner_norm.kind != "none":
            yield f"{name}.inner_norm"


@contextmanager
def branch_squares(decoder: Decoder) -> Iterator[list[Tensor]]:
    """Of each norm that takes what a sub-layer puts out: the mean square of its own output, gains aside.

    That is the mean over the tokens of var / (var + eps): 1 where eps does not matter.
    """
    found: list[Tensor] = []

    def see(norm: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        assert isinstance(norm, (RMSNorm, LayerNorm))
        without_gains = F.layer_norm if isinstance(norm, LayerNorm) else F.rms_norm
        (x,) = for_float64(inputs[0].detach())
        out = without_gains(x.double(), norm.weight.shape, eps=norm.eps)
        found.append(torch.linalg.vector_norm(out).square() / out.numel())

    names = [f"blocks.{block.index}.{name}" for block in decoder.spec.blocks() for name in _branch_norms(block)]
    handles = [decoder.get_submodule(name).register_forward_hook(see) for name in names]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def last_norm(decoder: Decoder) -> Iterator[dict[str, Tensor]]:
    """Input and output of the norm that the stack ends in, with their gradients; nothing where it ends in none."""
    seen: dict[str, Tensor] = {}

    def see(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        for tensor in (inputs[0], output):
            tensor.retain_grad()
        seen.update(input=inputs[0], output=output)

    block = decoder.spec.blocks()[-1]
    name = f"blocks.{block.index}.norms.{block.norm_names[-1]}" if block.norm_names else ""
    name = "final_norm" if decoder.spec.has_final_norm else "" if block.norm_placement.final_norm else name
    handle = decoder.get_submodule(name).register_forward_hook(see) if name else None
    try:
        yield seen
    finally:
        if handle:
            handle.remove()


def passed(input: Tensor, output: Tensor) -> float:
    """|d loss / d x| · rms(x) over |d loss / d N(x)|: near 1 for an honest loss, rounding for a degenerate one."""
    if input.grad is None or output.grad is None:
        return nan
    tensors = for_float64(input.detach(), input.grad, output.grad)
    x, grad_inside, grad_outside = (tensor.double() for tensor in tensors)
    rms_BT = x.square().mean(-1).sqrt()
    inside = torch.linalg.vector_norm(torch.linalg.vector_norm(grad_inside, dim=-1) * rms_BT)
    return float(inside / torch.linalg.vector_norm(grad_outside))
