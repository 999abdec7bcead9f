"""Masks: dropped, of the wrong shape, of the wrong polarity, right only somewhere."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.probes.causality.zoo.parts import Attention, D, H, Net, Specimen, Specimens, Wanted, causal, leak

ALL = ("suffix_cuts eval", "gradient_map", "truncation")


class ThrownAway(Attention):
    """The masked scores are computed and not used."""

    def weights(self, scores: Tensor) -> Tensor:
        """Softmax of the scores without a mask."""
        scores.masked_fill(~self.mask(scores), -torch.inf)
        return scores.softmax(-1)


class Polarity(nn.Module):
    """torch's fused attention, given a mask that is true where a key is to be hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D). The last query, which sees nothing, is given itself."""
        q, k, v = (part.unflatten(-1, (H, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        hidden[-1, -1] = True
        return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden).transpose(1, 2).flatten(2)


class FirstSampleOnly(Attention):
    """A mask that is not broadcast over the batch."""

    def weights(self, scores: Tensor) -> Tensor:
        """Masked for sample 0."""
        masked = scores[:1].masked_fill(~self.mask(scores), -torch.inf)
        return torch.cat((masked, scores[1:])).softmax(-1)


class InOneMode(Attention):
    """A fast path that has no mask."""

    def __init__(self, *, grad: bool = False, training: bool = False) -> None:
        super().__init__()
        self.grad, self.when_training = grad, training

    def weights(self, scores: Tensor) -> Tensor:
        """Without a mask when no gradient is recorded, or when training."""
        fast = not torch.is_grad_enabled() if self.grad else self.training == self.when_training
        return scores.softmax(-1) if fast else super().weights(scores)


class InOneDtype(Attention):
    """A kernel of one dtype that has no mask."""

    def weights(self, scores: Tensor) -> Tensor:
        """Without a mask in float32."""
        return scores.softmax(-1) if scores.dtype == torch.float32 else super().weights(scores)


class TwiceTheFloor(Attention):
    """Two masks of the smallest number, added: a row whose keys are all hidden sees them all alike."""

    def weights(self, scores: Tensor) -> Tensor:
        """The first key is hidden as padding, the later ones as future; nothing is left for query 0."""
        floor = torch.finfo(scores.dtype).min / 4
        mask = (~self.mask(scores)).to(scores.dtype) * floor
        mask[..., 0] += floor
        return (scores + mask).softmax(-1)


class Subtracted(Attention):
    """A constant is subtracted from the scores of hidden keys, and large scores beat it."""

    def weights(self, scores: Tensor) -> Tensor:
        """Scores - 20 where hidden."""
        return (scores - 20 * (~self.mask(scores))).softmax(-1)


MASKS: Specimens = (
    Specimen(name="no mask", make=lambda: Net(Attention(lambda h, q, k: k == k)), wanted=leak(*ALL)),
    Specimen(name="diagonal off by one", make=lambda: Net(Attention(lambda h, q, k: k <= q + 1)), wanted=leak(*ALL)),
    Specimen(name="transposed", make=lambda: Net(Attention(lambda h, q, k: k >= q)), wanted=leak("suffix_cuts")),
    Specimen(name="wrong polarity", make=lambda: Net(Polarity()), wanted=leak("suffix_cuts")),
    Specimen(name="masked scores thrown away", make=lambda: Net(ThrownAway()), wanted=leak(*ALL)),
    Specimen(name="one head only", make=lambda: Net(Attention(lambda h, q, k: (k <= q) | (h == 1))), wanted=leak(*ALL)),
    Specimen(
        name="second layer only",
        make=lambda: Net(Attention(), Attention(lambda h, q, k: k == k)),
        wanted=leak("suffix_cuts", "gradient_map"),
    ),
    Specimen(
        name="only past position 8",
        make=lambda: Net(Attention(lambda h, q, k: (k <= q) | (q > 8))),
        wanted=leak("suffix_cuts", "gradient_map"),
    ),
    Specimen(
        name="only for more than 8 tokens",
        make=lambda: Net(Attention(lambda h, q, k: (k <= q) | (k.shape[-1] > 8))),
        wanted=leak(*ALL),
    ),
    Specimen(
        name="whole blocks of 4",
        make=lambda: Net(Attention(lambda h, q, k: (k <= q) | (k // 4 == q // 4))),
        wanted=leak("suffix_cuts", "gradient_map"),
    ),
    Specimen(
        name="a global last token",
        make=lambda: Net(Attention(lambda h, q, k: (k <= q) | (k == k.shape[-1] - 1))),
        wanted=leak("suffix_cuts"),
    ),
    Specimen(
        name="softmax over the queries",
        make=lambda: Net(Attention(softmax_dim=-2)),
        wanted=leak("suffix_cuts", "gradient_map"),
    ),
    Specimen(name="20 subtracted", make=lambda: Net(Subtracted()), wanted=leak("suffix_cuts", "gradient_map")),
    Specimen(name="two masks of the smallest number", make=lambda: Net(TwiceTheFloor()), wanted=leak("suffix_cuts")),
    Specimen(
        name="for the first sample only", make=lambda: Net(FirstSampleOnly()), wanted=leak("suffix_cuts eval, grad")
    ),
    Specimen(name="only with gradients", make=lambda: Net(InOneMode(grad=True)), wanted=leak("suffix_cuts eval")),
    Specimen(
        name="dropped in train mode", make=lambda: Net(InOneMode(training=True)), wanted=leak("suffix_cuts train")
    ),
    Specimen(
        name="dropped in float32",
        make=lambda: Net(InOneDtype(causal)),
        wanted=(
            Wanted(probe="suffix_cuts", verdict="LEAK", dtype="float32"),
            Wanted(probe="suffix_cuts", verdict="clean", dtype="float64"),
        ),
    ),
)
