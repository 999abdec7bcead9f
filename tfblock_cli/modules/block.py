"""Block: attention and FFN, wired by the norm placement's formula."""

from functools import partial

from torch import Tensor, nn

from tfblock_cli.modules.attention import build_attention
from tfblock_cli.modules.chunk import WHOLE, Chunk
from tfblock_cli.modules.ffn import build_ffn
from tfblock_cli.modules.norm import Scale, build_norm
from tfblock_cli.modules.stage import Stage
from tfblock_cli.modules.tables import Tables
from tfblock_cli.spec.experiment import Kernel
from tfblock_cli.spec.model import BlockSpec
from tfblock_cli.spec.norm_placement import Branch


class Block(nn.Module):
    """x -> x', one layer of a decoder. Where its norms sit is said in ``spec/norm_placement.py`` alone.

    Args:
        block: What it is.
        kernel: How its attention runs.
        tables: Shared with the other blocks of a decoder; a block by itself makes its own.
        like: One that differs in the norm placement alone, with which it shares its sub-layers and norms of one name.
    """

    def __init__(
        self, block: BlockSpec, kernel: Kernel = "sdpa", tables: Tables | None = None, like: "Block | None" = None
    ) -> None:
        super().__init__()
        self.spec = block
        if like is None:
            self.attention = build_attention(block, kernel, tables or Tables(length=1))
            self.ffn = build_ffn(block)
            self.residual = nn.ModuleDict({"attention": Stage(), "ffn": Stage()})
        else:
            self.attention, self.ffn, self.residual = like.attention, like.ffn, like.residual
        self.norms: nn.ModuleDict = nn.ModuleDict()
        for name in block.norm_names:
            norm = like.norms[name] if like and name in like.norms else build_norm(block.norm, block.d_model)
            self.norms[name] = norm
        self.scales = nn.ModuleDict({name: Scale(block.d_model) for name in block.scale_names})

    def forward(self, x_BTD: Tensor, chunk: Chunk = WHOLE) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        attend = partial(self.attention, chunk=chunk)
        attention_norms, ffn_norms = self.spec.norm_placement.norm_names()
        attention, ffn = (
            Branch(
                f=f,
                norms=tuple(self.norms[norm] for norm in norms),
                out=self.residual[name],
                **({"scale": self.scales[name]} if name in self.scales else {}),
            )
            for name, f, norms in (("attention", attend, attention_norms), ("ffn", self.ffn, ffn_norms))
        )
        out: Tensor = self.spec.norm_placement.block(x_BTD, attention, ffn, self.spec.index + 1, self.spec.n_layers)
        return out
