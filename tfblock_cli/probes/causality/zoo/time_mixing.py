"""What mixes positions beside attention: pooling, norms over time, convolutions, scans, shifts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.probes.causality.zoo.parts import (
    Attention,
    D,
    Net,
    Specimen,
    Specimens,
    after_attention,
    leak,
    says,
)

BOTH = ("suffix_cuts", "gradient_map")


def next_token(x: Tensor) -> Tensor:
    """The token behind: a label shifted into the input."""
    return F.pad(x[:, 1:], (0, 0, 0, 1))


def block_mean(x: Tensor, size: int = 4) -> Tensor:
    """Of the block that a token is in."""
    return torch.cat([part.mean(1, keepdim=True).expand_as(part) for part in torch.split(x, size, dim=1)], dim=1)


def last_position(x: Tensor) -> Tensor:
    """The last token, everywhere."""
    return x[:, -1:].expand_as(x)


def to_first_output(x: Tensor) -> Tensor:
    """The mean, at the first position alone."""
    return torch.cat((x.mean(1, keepdim=True), torch.zeros_like(x[:, 1:])), dim=1)


def own_end_state(x: Tensor, size: int = 4) -> Tensor:
    """A chunked sum whose chunks are given the state at their own end, not at their start."""
    ends = torch.stack([part.sum(1) for part in torch.split(x, size, dim=1)], dim=1).cumsum(1)
    return ends.repeat_interleave(size, dim=1)[:, : x.shape[1]]


def wrong_normaliser(x: Tensor) -> Tensor:
    """Linear attention whose sums are causal and whose normaliser is not."""
    k = x.exp()
    return (k * x).cumsum(1) / k.sum(1, keepdim=True)


class BatchNorm(nn.Module):
    """Over batch and time: in train mode it mixes both, in eval mode nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        out: Tensor = self.norm(x.transpose(1, 2))
        return out.transpose(1, 2)


class GroupNorm(nn.Module):
    """Over channels and time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, D)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        out: Tensor = self.norm(x.transpose(1, 2))
        return out.transpose(1, 2)


class Conv(nn.Module):
    """A convolution over time with ``left`` zeros before the first position."""

    def __init__(self, width: int, left: int, dilation: int = 1) -> None:
        super().__init__()
        self.pad = (left, (width - 1) * dilation - left)
        self.conv = nn.Conv1d(D, D, width, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        out: Tensor = self.conv(F.pad(x.transpose(1, 2), self.pad))
        return out.transpose(1, 2)


class FFTConv(nn.Module):
    """A long convolution by FFT; padded to twice the length, nothing wraps around."""

    def __init__(self, *, padded: bool = True) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(64, D))
        self.times = 2 if padded else 1

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        n = x.shape[1]
        size = self.times * n
        spectrum = torch.fft.rfft(x, size, dim=1) * torch.fft.rfft(self.kernel[:n], size, dim=0)
        out: Tensor = torch.fft.irfft(spectrum, size, dim=1)
        return out[:, :n]


class Recurrence(nn.Module):
    """A GRU; in both directions it sees everything."""

    def __init__(self, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.gru = nn.GRU(D, D // (1 + bidirectional), batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        out: Tensor = self.gru(x)[0]
        return out


class _Straight(torch.autograd.Function):
    """Forward x; backward the mean of all gradients, as a sum over sequence-parallel ranks that is one too many."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient + gradient.mean(1, keepdim=True)


def wrong_backward(x: Tensor) -> Tensor:
    """Right in the forward pass; its gradient goes to all positions."""
    out: Tensor = _Straight.apply(x)  # type: ignore[no-untyped-call]
    return out


TIME_MIXING: Specimens = (
    Specimen(
        name="mean over time, 1e-12",
        make=lambda: after_attention(lambda x: 1e-12 * x.mean(1, True)),
        wanted=leak(*BOTH),
    ),
    Specimen(name="largest over time", make=lambda: after_attention(lambda x: x.amax(1, True)), wanted=leak(*BOTH)),
    Specimen(name="mean of own block", make=lambda: after_attention(block_mean), wanted=leak(*BOTH)),
    Specimen(name="last position everywhere", make=lambda: after_attention(last_position), wanted=leak(*BOTH)),
    Specimen(name="mean to the first output", make=lambda: after_attention(to_first_output), wanted=leak(*BOTH)),
    Specimen(name="label shifted into the input", make=lambda: after_attention(next_token), wanted=leak(*BOTH)),
    Specimen(
        name="next token through a LayerNorm, 1e-13",
        make=lambda: after_attention(lambda x: F.layer_norm(1e-13 * next_token(x) + x, (D,))),
        wanted=leak("suffix_cuts"),
    ),
    Specimen(name="wrapped shift", make=lambda: after_attention(lambda x: x.roll(1, 1)), wanted=leak("suffix_cuts")),
    Specimen(name="time reversed", make=lambda: after_attention(lambda x: x.flip(1)), wanted=leak("suffix_cuts")),
    Specimen(
        name="sum over the suffix",
        make=lambda: after_attention(lambda x: x.flip(1).cumsum(1).flip(1)),
        wanted=leak(*BOTH),
    ),
    Specimen(
        name="softmax of the whole sequence",
        make=lambda: after_attention(lambda x: x * x.softmax(1)),
        wanted=leak(*BOTH),
    ),
    Specimen(
        name="normaliser of the whole sequence", make=lambda: after_attention(wrong_normaliser), wanted=leak(*BOTH)
    ),
    Specimen(
        name="LayerNorm over time",
        make=lambda: after_attention(lambda x: F.layer_norm(x.mT, x.shape[1:2]).mT),
        wanted=leak(*BOTH),
    ),
    Specimen(name="GroupNorm over time", make=lambda: Net(Attention(), GroupNorm()), wanted=leak("suffix_cuts")),
    Specimen(
        name="BatchNorm over time",
        make=lambda: Net(Attention(), BatchNorm()),
        wanted=(
            *leak("suffix_cuts train", "batch_independence train"),
            *says("clean", "suffix_cuts eval", "batch_independence eval"),
        ),
    ),
    Specimen(
        name="convolution padded on both sides", make=lambda: Net(Attention(), Conv(5, 2)), wanted=leak("suffix_cuts")
    ),
    Specimen(
        name="dilated convolution padded for none",
        make=lambda: Net(Attention(), Conv(3, 2, dilation=3)),
        wanted=leak("suffix_cuts"),
    ),
    Specimen(
        name="FFT convolution that wraps around",
        make=lambda: Net(Attention(), FFTConv(padded=False)),
        wanted=leak("suffix_cuts", "gradient_map"),
    ),
    Specimen(
        name="recurrence in both directions", make=lambda: Recurrence(bidirectional=True), wanted=leak("suffix_cuts")
    ),
    Specimen(name="chunks given their own end state", make=lambda: after_attention(own_end_state), wanted=leak(*BOTH)),
    Specimen(
        name="right forwards, wrong backwards",
        make=lambda: after_attention(wrong_backward),
        wanted=(*leak("gradient_map"), *says("clean", "suffix_cuts")),
    ),
)
