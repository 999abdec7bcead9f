"""Where "the embedding gradient of pre-norm is ten times that of post-norm" comes from.

    python benchmarks/tutorial_claim.py

torch.nn.TransformerEncoder as tutorials use it: 6 layers, d 128, 4 heads, 1000 words, a causal mask, no dropout,
float32, torch's own initialization. Printed is the ratio pre / post of the gradient norm of the token table: the
geometric mean over 5 seeds, and in brackets the smallest and largest seed. docs/gradflow.md tells what it means.
"""

from itertools import product
from math import exp, log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

L, D, H, V, B, T = 6, 128, 4, 1000, 4, 32
SEEDS = range(5)
LOSSES = ("sum", "mean_square", "mse", "cross_entropy")


def encoder(*, pre: bool, copies: bool) -> nn.TransformerEncoder:
    """Six layers. TransformerEncoder copies the one that it is given, weights and all; ``copies`` leaves it so."""
    layers = [
        nn.TransformerEncoderLayer(D, H, 4 * D, dropout=0.0, batch_first=True, norm_first=pre)
        for _ in range(1 if copies else L)
    ]
    stack = nn.TransformerEncoder(layers[0], L, enable_nested_tensor=False)
    if not copies:
        stack.layers = nn.ModuleList(layers)
    return stack


def loss_of(y_BTD: Tensor, head: nn.Linear, loss: str) -> Tensor:
    """The losses that tutorials use, and the one that a language model has."""
    if loss == "sum":
        return y_BTD.sum()
    if loss == "mean_square":
        return y_BTD.square().mean()
    if loss == "mse":
        return F.mse_loss(y_BTD, torch.randn(B, T, D))
    return F.cross_entropy(head(y_BTD).flatten(0, 1), torch.randint(V, (B * T,)))


def gradient(seed: int, *, pre: bool, copies: bool, final_norm: bool, loss: str) -> float:
    """The gradient norm of the token table; pre and post get the same weights, input and target."""
    torch.manual_seed(seed)
    embed, head, stack = nn.Embedding(V, D), nn.Linear(D, V), encoder(pre=pre, copies=copies)
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    y_BTD = stack(embed(torch.randint(V, (B, T))), mask=mask, is_causal=True)
    if pre and final_norm:
        y_BTD = F.layer_norm(y_BTD, (D,))
    (found,) = torch.autograd.grad(loss_of(y_BTD, head, loss), [embed.weight])
    return float(found.norm())


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("layers    final norm of pre", *(f"{loss:>28}" for loss in LOSSES))
    for copies, final_norm in product((True, False), (False, True)):
        cells = []
        for loss in LOSSES:
            pre, post = (
                [gradient(seed, pre=pre, copies=copies, final_norm=final_norm, loss=loss) for seed in SEEDS]
                for pre in (True, False)
            )
            ratios = [a / b for a, b in zip(pre, post, strict=True)]
            mean = exp(sum(map(log, ratios)) / len(ratios))
            cells.append(f"{mean:.3g} [{min(ratios):.3g}..{max(ratios):.3g}]".rjust(28))
        print(f"{'copies' if copies else 'distinct':9} {'yes' if final_norm else 'no':17}", *cells)


if __name__ == "__main__":
    main()
