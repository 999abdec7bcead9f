"""Models whose causality is known: broken ones, each in one way, and correct ones. All map (B, T, D) to (B, T, D)."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.probes.causality.check import check
from tfblock_cli.probes.subject import Subject
from tfblock_cli.results.causality import CausalityData, ProbeRow
from tfblock_cli.results.progress import NoProgress

T, D, H = 12, 8, 2
Mix = Callable[[Tensor], Tensor]


def findings(module: nn.Module, seq_len: int = T, **subject: Any) -> CausalityData:
    """The whole protocol on a module that takes vectors of width D unless told otherwise."""
    subject = {"d_model": D, **subject}
    return check([Subject(module=module, **subject)], seq_len=seq_len, seed=0, progress=NoProgress())


def row(data: CausalityData, name: str, mode: str = "") -> ProbeRow:
    """The first row of a probe, or the one of a mode."""
    return next(row for row in data.probes if row.name == name and row.mode.startswith(mode))


def verdicts(data: CausalityData) -> dict[str, str]:
    """By probe and mode."""
    return {f"{row.name} {row.mode} {row.dtype}": row.verdict for row in data.probes}


class Attention(nn.Module):
    """Attention in which every step can be got wrong.

    Args:
        visible: (q, k) -> bool on indices (H, T, T); H is there so that one head may differ.
        softmax_dim: The axis over which weights sum to 1.
    """

    def __init__(self, visible: Callable[[Tensor, Tensor, Tensor], Tensor], softmax_dim: int = -1) -> None:
        super().__init__()
        self.visible, self.softmax_dim = visible, softmax_dim
        self.q, self.k, self.v, self.out = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (H, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2)
        n = torch.arange(x.shape[1])
        mask = self.visible(torch.arange(H)[:, None, None], n[:, None], n[None, :]).expand(H, len(n), len(n))
        weights = scores.masked_fill(~mask, -torch.inf).softmax(self.softmax_dim)
        out: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return out


def causal(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return k <= q


class Net(nn.Module):
    """x + mix(LN(x)) for every mix, each followed by x + MLP(LN(x)); then a LayerNorm."""

    def __init__(self, *mixes: nn.Module) -> None:
        super().__init__()
        self.mixes = nn.ModuleList(mixes)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2 * len(mixes) + 1))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D)) for _ in mixes)

    def forward(self, x: Tensor) -> Tensor:
        for n, (mix, mlp) in enumerate(zip(self.mixes, self.mlps, strict=True)):
            x = x + mix(self.norms[2 * n](x))
            x = x + mlp(self.norms[2 * n + 1](x))
        out: Tensor = self.norms[-1](x)
        return out


class Lambda(nn.Module):
    """A function with one linear map, so that it has a weight and a name."""

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.mix = mix
        self.project = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.project(x))


def attention(visible: Callable[[Tensor, Tensor, Tensor], Tensor] = causal, **options: int) -> Attention:
    return Attention(visible, **options)


def after_attention(mix: Mix) -> Net:
    """Correct attention, then something that is not."""
    return Net(attention(), Lambda(mix))


def causal_mean(x: Tensor) -> Tensor:
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]


def next_token(x: Tensor) -> Tensor:
    return F.pad(x[:, 1:], (0, 0, 0, 1))


def block_mean(x: Tensor, size: int = 4) -> Tensor:
    return torch.cat([part.mean(1, keepdim=True).expand_as(part) for part in torch.split(x, size, dim=1)], dim=1)


def expert_choice(x: Tensor) -> Tensor:
    """The T/3 positions with the largest gate, of the whole sequence, are let through."""
    chosen = x[..., 0].topk(x.shape[1] // 3, dim=1).indices
    return x * torch.zeros_like(x[..., 0]).scatter(1, chosen, 1.0)[..., None]


def quantised(x: Tensor) -> Tensor:
    """Rounded to a grid that the largest value of the sequence decides."""
    step = x.detach().abs().amax((1, 2), keepdim=True) / 7
    return x + ((x / step).round() * step - x).detach()


def last_position(x: Tensor) -> Tensor:
    return x[:, -1:].expand_as(x)


def to_first_output(x: Tensor) -> Tensor:
    return torch.cat((x.mean(1, keepdim=True), torch.zeros_like(x[:, 1:])), dim=1)


class BatchNorm(nn.Module):
    """Over batch and time: in train mode it mixes both, in eval mode nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.transpose(1, 2))
        return out.transpose(1, 2)


class Stateful(nn.Module):
    """Remembers its last input."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        out = x + self.memory
        self.memory = x.mean((1, 2), keepdim=True).detach().mean()
        return out


class Conv(nn.Module):
    """A convolution over time with ``left`` zeros before the first position."""

    def __init__(self, width: int, left: int) -> None:
        super().__init__()
        self.pad = (left, width - 1 - left)
        self.conv = nn.Conv1d(D, D, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.pad(x.transpose(1, 2), self.pad))
        return out.transpose(1, 2)


class FFTConv(nn.Module):
    """A long convolution by FFT, padded so that nothing wraps around: causal but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(64, D))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        spectrum = torch.fft.rfft(x, 2 * n, dim=1) * torch.fft.rfft(self.kernel[:n], 2 * n, dim=0)
        out: Tensor = torch.fft.irfft(spectrum, 2 * n, dim=1)
        return out[:, :n]


class Recurrence(nn.Module):
    """A GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(D, D, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gru(x)[0]
        return out


class TransformerEncoderLayerWithHint(nn.Module):
    """Torch's own layer, told ``is_causal`` and given no mask: in eval mode without gradients it hides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(D, H, 2 * D, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x, is_causal=True)
        return out


BROKEN: dict[str, tuple[Callable[[], nn.Module], dict[str, str]]] = {
    # name: (how to make it, which probe must say what)
    "mask removed": (
        lambda: Net(attention(lambda h, q, k: k == k)),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK", "truncation": "LEAK"},
    ),
    "mask off by one": (
        lambda: Net(attention(lambda h, q, k: k <= q + 1)),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK", "truncation": "LEAK"},
    ),
    "mask transposed": (lambda: Net(attention(lambda h, q, k: k >= q)), {"suffix_cuts": "LEAK"}),
    "one head": (lambda: Net(attention(lambda h, q, k: (k <= q) | (h == 1))), {"suffix_cuts": "LEAK"}),
    "second layer only": (
        lambda: Net(attention(), attention(lambda h, q, k: k == k)),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK"},
    ),
    "only past position 8": (
        lambda: Net(attention(lambda h, q, k: (k <= q) | (q > 8))),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK"},
    ),
    "only for more than 8 tokens": (
        lambda: Net(attention(lambda h, q, k: (k <= q) | (k.shape[-1] > 8))),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK", "truncation": "LEAK"},
    ),
    "softmax over the queries": (
        lambda: Net(attention(softmax_dim=-2)),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK"},
    ),
    "soft mask": (
        lambda: after_attention(lambda x: (x @ x.mT - 20 * torch.ones(len(x[0]), len(x[0])).triu(1)).softmax(-1) @ x),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK"},
    ),
    "mean over time, 1e-12": (
        lambda: after_attention(lambda x: 1e-12 * x.mean(1, keepdim=True)),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK"},
    ),
    "next token through a LayerNorm, 1e-13": (
        lambda: after_attention(lambda x: F.layer_norm(1e-13 * next_token(x) + x, (D,))),
        {"suffix_cuts": "LEAK"},
    ),
    "norm over time": (
        lambda: after_attention(lambda x: F.layer_norm(x.mT, x.shape[1:2]).mT),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK"},
    ),
    "convolution padded on both sides": (lambda: Net(attention(), Conv(5, 2)), {"suffix_cuts": "LEAK"}),
    "time reversed": (lambda: after_attention(lambda x: x.flip(1)), {"suffix_cuts": "LEAK"}),
    "sum over the suffix": (
        lambda: after_attention(lambda x: x.flip(1).cumsum(1).flip(1)),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK"},
    ),
    "softmax of the whole sequence": (
        lambda: after_attention(lambda x: x * x.softmax(1)),
        {"suffix_cuts": "LEAK", "gradient_map": "LEAK"},
    ),
    "wrapped shift": (lambda: after_attention(lambda x: x.roll(1, 1)), {"suffix_cuts": "LEAK"}),
    "detached": (
        lambda: after_attention(lambda x: x.mean(1, keepdim=True).detach().expand_as(x)),
        {"suffix_cuts": "LEAK", "gradient_map": "clean", "truncation": "LEAK"},
    ),
    "expert choice": (
        lambda: after_attention(expert_choice),
        {"suffix_cuts": "LEAK", "gradient_map": "clean"},
    ),
    "quantised": (lambda: after_attention(quantised), {"suffix_cuts": "LEAK", "gradient_map": "clean"}),
    "positions divided by T": (
        lambda: after_attention(lambda x: x * torch.arange(x.shape[1])[:, None] / x.shape[1]),
        {"suffix_cuts": "clean", "gradient_map": "clean", "truncation": "LEAK"},
    ),
    "batch norm": (
        lambda: Net(attention(), BatchNorm()),
        {
            "batch_independence eval": "clean",
            "suffix_cuts eval": "clean",
            "batch_independence train": "LEAK",
            "suffix_cuts train": "LEAK",
        },
    ),
    "batch mixed": (
        lambda: after_attention(lambda x: x + x.mean(0, keepdim=True)),
        {"batch_independence": "LEAK"},
    ),
    "axes swapped": (
        lambda: after_attention(lambda x: x.cumsum(0)),
        {"batch_independence": "LEAK", "suffix_cuts": "clean"},
    ),
    "hint without a mask": (TransformerEncoderLayerWithHint, {"suffix_cuts": "LEAK"}),
    "attention switched off": (
        lambda: Net(Lambda(lambda x: x)),
        {"suffix_cuts": "clean", "gradient_map": "no-flow"},
    ),
    "reaches back three positions": (lambda: Net(Conv(4, 3)), {"suffix_cuts": "clean", "gradient_map": "no-flow"}),
    "an input that nobody reads": (
        lambda: Net(attention(lambda h, q, k: (k <= q) & ((k != 3) | (q == 3)))),
        {"suffix_cuts": "clean", "gradient_map": "no-flow"},
    ),
    "an output that nothing reaches": (
        lambda: nn.Sequential(Net(attention()), Lambda(lambda x: x * (torch.arange(x.shape[1]) != 5)[:, None])),
        {"suffix_cuts": "no-flow", "gradient_map": "no-flow"},
    ),
    "dropout left on": (lambda: after_attention(lambda x: F.dropout(x, 0.1)), {"preflight": "inconclusive"}),
    "state across calls": (lambda: Net(attention(), Stateful()), {"preflight": "inconclusive"}),
    "nan": (lambda: after_attention(lambda x: x * torch.nan), {"preflight": "inconclusive"}),
    "nan for large content": (
        lambda: nn.Sequential(Lambda(lambda x: torch.where(x.abs() > 9, torch.nan, x)), Net(attention())),
        {"preflight eval": "clean", "suffix_cuts eval": "inconclusive", "truncation": "clean"},
    ),
}

CORRECT: dict[str, Callable[[], nn.Module]] = {
    "masked attention": lambda: Net(attention(), attention()),
    "causal mean": lambda: Net(Lambda(causal_mean)),
    "left-padded convolution": lambda: Net(Conv(T, T - 1)),
    "left-padded convolution behind attention": lambda: Net(attention(), Conv(4, 3)),
    "token-choice gate": lambda: after_attention(lambda x: x * (x.argmax(-1, keepdim=True) > 2)),
    "recurrence": Recurrence,
    "dropout that follows the mode": lambda: nn.Sequential(Net(attention()), nn.Dropout(0.5)),
}
