"""One block, forward and backward: ours beside a hand-written one and torch.nn.TransformerEncoderLayer.

    python benchmarks/block.py [--rounds 15]

One thread, float32. The contestants take turns in every round, so that a machine whose speed drifts slows them
alike; printed are median CPU seconds and the median of the round-by-round ratios of ours to theirs.
Demanded: at most 1.03 times the hand-written block, and no slower than torch's own layer.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import process_time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.modules.block import Block
from tfblock_cli.spec.experiment import Experiment

SHAPES = [(2, 256, 384, 6), (1, 1024, 768, 12)]


class HandWritten(nn.Module):
    """A pre-LayerNorm block with a GELU MLP and biases, as one would write it by hand."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, D))
        mlp: Tensor = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x + mlp


def ours(d: int, heads: int) -> nn.Module:
    """The same block, as tfblock builds it."""
    table = {
        "d_model": d,
        "n_layers": 1,
        "bias": True,
        "norm": "layernorm",
        "position": "none",
        "attention": {"n_heads": heads},
        "ffn": {"kind": "mlp", "activation": "gelu"},
    }
    block = Block(Experiment.model_validate({"model": table}).model.blocks()[0])
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.02)
    return block


def torchs(d: int, heads: int, length: int) -> Callable[[Tensor], Tensor]:
    """The same block, as torch ships it."""
    layer = nn.TransformerEncoderLayer(d, heads, 4 * d, 0.0, "gelu", batch_first=True, norm_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    return lambda x: layer(x, mask, is_causal=True)


def seconds(block: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """CPU seconds of one forward and one backward pass."""
    start = process_time()
    block(x).sum().backward()  # type: ignore[no-untyped-call]
    return process_time() - start


def main() -> None:
    """Print one table row per shape and contestant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for B, T, D, H in SHAPES:
        x = torch.randn(B, T, D, requires_grad=True)
        blocks: dict[str, Callable[[Tensor], Tensor]] = {
            "tfblock": ours(D, H),
            "hand-written": HandWritten(D, H),
            "torch": torchs(D, H, T),
        }
        times: dict[str, list[float]] = {name: [] for name in blocks}
        for turn in range(rounds + 2):  # the first two are warm-up
            for name, block in blocks.items():
                spent = seconds(block, x)
                if turn >= 2:
                    times[name].append(spent)
        for name, spent_all in times.items():
            ratio = median(mine / theirs for mine, theirs in zip(times["tfblock"], spent_all, strict=True))
            print(f"B={B} T={T} d={D} H={H}  {name:13} {median(spent_all):.4f} s  tfblock / {name} = {ratio:.3f}")


if __name__ == "__main__":
    main()
