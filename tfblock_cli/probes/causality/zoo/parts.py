"""The parts of the zoo: small models, most of them correct, in which one thing can be got wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tfblock_cli.modules.decoder import Decoder, build
from tfblock_cli.probes.causality.declared import CAUSAL, Declared
from tfblock_cli.probes.subject import Subject
from tfblock_cli.results.causality import ProbeVerdict
from tfblock_cli.spec.attention import Pattern
from tfblock_cli.spec.experiment import Experiment

T, D, H = 12, 8, 2
"""Sizes of every model of the zoo: chunks and windows are below 12, and no other axis is as long."""

Mix = Callable[[Tensor], Tensor]
Visible = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a probe must say: of the first row of its name, mode and dtype."""

    probe: str
    verdict: ProbeVerdict
    mode: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A model whose causality is known.

    Attributes:
        name: What is wrong with it, or what it is.
        make: Makes it, with torch's own random state.
        wanted: What must be said, first by the probe that must catch it; nothing for a correct model, of which every
            row must be clean.
        declared: What it is declared to be.
        noise: Whether a correct model may show rounding.
    """

    name: str
    make: Callable[[], nn.Module]
    wanted: tuple[Wanted, ...] = ()
    declared: Declared = CAUSAL
    noise: bool = False

    def subject(self) -> Subject:
        """It, taking vectors of width D."""
        return Subject(module=self.make(), d_model=D)


def leak(*probes: str) -> tuple[Wanted, ...]:
    """Each of them says LEAK; the mode stands behind the name: ``suffix_cuts train``."""
    return says("LEAK", *probes)


def says(verdict: ProbeVerdict, *probes: str) -> tuple[Wanted, ...]:
    """Each of them says it."""
    split = (probe.partition(" ") for probe in probes)
    return tuple(Wanted(probe=name, verdict=verdict, mode=mode) for name, _, mode in split)


def causal(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Key k <= query q."""
    return k <= q


class Attention(nn.Module):
    """Attention in which every step can be got wrong.

    Args:
        visible: (h, q, k) -> bool on indices of heads, queries and keys; one head may differ.
        softmax_dim: The axis over which weights sum to 1.
    """

    def __init__(self, visible: Visible = causal, softmax_dim: int = -1) -> None:
        super().__init__()
        self.visible, self.softmax_dim = visible, softmax_dim
        self.q, self.k, self.v, self.out = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        q, k, v = (f(x).unflatten(-1, (H, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        out: Tensor = self.out((self.weights(q @ k.transpose(-1, -2)) @ v).transpose(1, 2).flatten(2))
        return out

    def weights(self, scores: Tensor) -> Tensor:
        """Masked, then softmax."""
        return scores.masked_fill(~self.mask(scores), -torch.inf).softmax(self.softmax_dim)

    def mask(self, scores: Tensor) -> Tensor:
        """(H, T, T), true where a key is visible."""
        n = torch.arange(scores.shape[-1])
        return self.visible(torch.arange(H)[:, None, None], n[:, None], n[None, :]).expand(H, len(n), len(n))


class Net(nn.Module):
    """x + mix(LN(x)) for every mix, each followed by x + MLP(LN(x)); then a LayerNorm."""

    def __init__(self, *mixes: nn.Module) -> None:
        super().__init__()
        self.mixes = nn.ModuleList(mixes)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2 * len(mixes) + 1))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D)) for _ in mixes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        for n, (mix, mlp) in enumerate(zip(self.mixes, self.mlps, strict=True)):
            x = x + mix(self.norms[2 * n](x))
            x = x + mlp(self.norms[2 * n + 1](x))
        out: Tensor = self.norms[-1](x)
        return out


class Lambda(nn.Module):
    """A function behind one linear map, so that it has a weight and a name."""

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.mix = mix
        self.project = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        return self.mix(self.project(x))


def after_attention(mix: Mix) -> Net:
    """Correct attention, then something that is not."""
    return Net(Attention(), Lambda(mix))


class OwnDecoder(Decoder):
    """Our decoder, of which something can be replaced."""


def own(kernel: str = "eager", pattern: Mapping[str, Any] | str = "causal", **model: Any) -> OwnDecoder:
    """Our own decoder of width D with H heads and two layers, drawn from torch's random state."""
    attention = {"n_heads": H, "pattern": pattern} | model.pop("attention", {})
    table = {
        "d_model": D,
        "n_layers": 2,
        "vocab_size": 0,
        "initialization": {"kind": "normal", "std": 0.5},
        "attention": attention,
    } | model
    seed = int(torch.randint(2**31, ()))
    decoder = build(Experiment.model_validate({"seed": seed, "kernel": kernel, "model": table}))
    decoder.__class__ = OwnDecoder
    assert isinstance(decoder, OwnDecoder)
    return decoder


def of(*patterns: Pattern) -> Declared:
    """The declaration of a model's layers."""
    return Declared(patterns)


Specimens = Sequence[Specimen]
