"""Norms: how one vector of the stream is brought to a standard size."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from tfblock_cli.spec.base import Axis, Kind
from tfblock_cli.spec.size import INPUT, Saved, Size, Weight

Eps = Annotated[float, Field(gt=0)]


class InnerNorm(Kind):
    """What the norms have in common that may stand inside a sub-layer, none included."""

    def saved(self, shape: tuple[Size, ...], width: int) -> Iterator[Saved]:
        """What autograd keeps of the norm itself."""
        raise NotImplementedError

    def saved_before(self, name: str, shape: tuple[Size, ...], width: int) -> Iterator[Saved]:
        """What autograd keeps where a matrix follows: of the norm of the tensor ``name``, and the matrix's input."""
        for saved in self.saved(shape, width):
            yield replace(saved, name=name if saved.name == INPUT else f"inner_norm.{saved.name}")
        yield Saved(name="inner_norm", shape=shape, width=width)


class RMSNorm(InnerNorm):
    """x / sqrt(mean(x²) + eps) · weight (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: Eps = 1e-6

    def weights(self, name: str, width: Size) -> Iterator[Weight]:
        """The gain of every feature."""
        yield Weight(name=f"{name}.weight", shape=(width,), role="norm", kind="gain")

    def saved(self, shape: tuple[Size, ...], width: int) -> Iterator[Saved]:
        """The input, x / rms and 1 / rms. torch computes all three in float32 at least."""
        wide = max(width, 4)
        yield Saved(name=INPUT if wide == width else "wide_input", shape=shape, width=wide)
        yield Saved(name="normalized", shape=shape, width=wide)
        yield Saved(name="rstd", shape=shape[:-1], width=wide)


class LayerNorm(InnerNorm):
    """(x - mean(x)) / sqrt(var(x) + eps) · weight + bias (Ba et al. 2016, arXiv:1607.06450)."""

    kind: Literal["layernorm"] = "layernorm"
    eps: Eps = 1e-5
    bias: bool = True

    def weights(self, name: str, width: Size) -> Iterator[Weight]:
        """The gain and, unless it is switched off, the bias of every feature."""
        yield Weight(name=f"{name}.weight", shape=(width,), role="norm", kind="gain")
        if self.bias:
            yield Weight(name=f"{name}.bias", shape=(width,), role="norm", kind="bias")

    def saved(self, shape: tuple[Size, ...], width: int) -> Iterator[Saved]:
        """The input and its rows' mean and 1 / std."""
        yield Saved(name=INPUT, shape=shape, width=width)
        yield Saved(name="mean", shape=shape[:-1], width=width)
        yield Saved(name="rstd", shape=shape[:-1], width=width)


class NoNorm(InnerNorm):
    """x: nothing is normalised. For the optional norms inside a sub-layer."""

    kind: Literal["none"] = "none"

    def weights(self, name: str, width: Size) -> Iterator[Weight]:
        """None."""
        yield from ()

    def saved(self, shape: tuple[Size, ...], width: int) -> Iterator[Saved]:
        """Nothing."""
        yield from ()

    def saved_before(self, name: str, shape: tuple[Size, ...], width: int) -> Iterator[Saved]:
        """The matrix's input, which is the tensor itself."""
        yield Saved(name=name, shape=shape, width=width)


Norm = Annotated[RMSNorm | LayerNorm, Axis("rmsnorm")]
OptionalNorm = Annotated[NoNorm | RMSNorm | LayerNorm, Axis("none")]
