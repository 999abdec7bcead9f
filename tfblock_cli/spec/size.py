"""Size: a count that remembers its letter. Weight and Stage: what a spec says of its own tensors."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

Role = Literal["embed", "position", "q", "k", "v", "out", "up", "gate", "down", "head", "norm", "scale"]


class Size(int):
    """An int with a symbol: ``(H + 2 * K) * E`` is a number and reads "(H + 2K)·E"."""

    symbol: str

    def __new__(cls, value: int, symbol: str = "") -> "Size":
        """A size; without a symbol it is written as the number."""
        size = super().__new__(cls, value)
        size.symbol = symbol or str(value)
        return size

    def __add__(self, other: int) -> "Size":
        return Size(int(self) + int(other), f"{self.symbol} + {_symbol(other)}")

    def __mul__(self, other: int) -> "Size":
        return Size(int(self) * int(other), f"{_factor(self)}·{_factor(other)}")

    def __rmul__(self, other: int) -> "Size":
        return Size(int(other) * int(self), f"{other}{_factor(self)}")


def _symbol(size: int) -> str:
    return size.symbol if isinstance(size, Size) else str(size)


def _factor(size: int) -> str:
    symbol = _symbol(size)
    return f"({symbol})" if " + " in symbol else symbol


def product(sizes: tuple[Size, ...]) -> Size:
    """The number of elements of a shape, with its formula: (F, D) gives "F·D"."""
    return Size(prod(sizes), "·".join(map(_factor, sizes)) if sizes else "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One parameter tensor.

    Attributes:
        name: As in ``named_parameters()``, relative to the part that owns it.
        shape: Its sizes, with their letters.
        role: What it does; a norm placement scales weights by role.
        kind: matrix, bias (initialized as the init says; 0 for most) or gain (a norm's weight, 1).
        fan_in: Inputs per output of its matrix; for a bias, those of the matrix that it goes with.
        fan_out: Outputs per input of its matrix.
        slices: The tensors that were fused into it along the first dimension, or () if it is one by itself.
            Each slice is drawn, scaled and reported under its own name and fans.
    """

    name: str
    shape: tuple[Size, ...]
    role: Role
    kind: Literal["matrix", "bias", "gain"]
    fan_in: int = 0
    fan_out: int = 0
    slices: tuple["Weight", ...] = ()

    @property
    def count(self) -> Size:
        """Its number of elements."""
        return product(self.shape)

    @property
    def leaves(self) -> tuple["Weight", ...]:
        """The tensors to draw: its slices, or itself."""
        return self.slices or (self,)

    def under(self, prefix: str) -> "Weight":
        """The same tensor, named inside the part ``prefix``."""
        slices = tuple(part.under(prefix) for part in self.slices)
        return replace(self, name=f"{prefix}.{self.name}", slices=slices)


def linear(name: str, role: Role, fan_in: Size, fan_out: Size, *, bias: bool) -> Iterator[Weight]:
    """The weight (out, in) and the bias (out) of one linear layer."""
    matrix = Weight(
        name=f"{name}.weight",
        shape=(fan_out, fan_in),
        role=role,
        kind="matrix",
        fan_in=int(fan_in),
        fan_out=int(fan_out),
    )
    yield matrix
    if bias:
        yield replace(matrix, name=f"{name}.bias", shape=(fan_out,), kind="bias")


def fused_linear(name: str, parts: dict[Role, Size], fan_in: Size, fan_out: Size, *, bias: bool) -> Iterator[Weight]:
    """A linear layer of width ``fan_out`` whose rows are several layers, one below the other."""
    split = [tuple(linear(role, role, fan_in, rows, bias=bias)) for role, rows in parts.items()]
    whole = linear(name, next(iter(parts)), fan_in, fan_out, bias=bias)
    for weight, slices in zip(whole, zip(*split, strict=True), strict=True):
        yield replace(weight, slices=slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One named point of the computation and the matrix multiplication that leads to it.

    Attributes:
        name: As the ``Stage`` module that stands there, relative to the part that owns it.
        shape: Its sizes, with their letters.
        inner: The contracted size of the matrix multiplication that makes it: 2 · elements · inner FLOPs.
        over_pairs: Whether that multiplication runs over (query, key) pairs, so that the pattern's invisible
            pairs are not needed.
        fused: Whether the sdpa kernel never stores it.
        masked: Whether the pattern's invisible entries hold -inf on purpose.
    """

    name: str
    shape: tuple[Size, ...]
    inner: Size | None = None
    over_pairs: bool = False
    fused: bool = False
    masked: bool = False

    @property
    def flops(self) -> int:
        """2 per multiply-add."""
        return 0 if self.inner is None else 2 * prod(self.shape) * int(self.inner)

    @property
    def flops_formula(self) -> str:
        """Its FLOPs in letters."""
        return "" if self.inner is None else f"2·{product((*self.shape, self.inner)).symbol}"

    def under(self, prefix: str) -> "StageSpec":
        """The same stage, named inside the part ``prefix``."""
        return replace(self, name=f"{prefix}.{self.name}")


INPUT = "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One tensor that autograd keeps for the backward pass, as torch does it on the CPU without dropout.

    What is kept depends on the kernel, the dtype and the neighbours, not on the stage alone, so it is said apart
    from the stages.

    Attributes:
        name: What it is, relative to the part that keeps it; the same name twice is the same tensor, and
            ``INPUT`` is what went into the part.
        shape: Its sizes, with their letters.
        width: Bytes per element.
    """

    name: str
    shape: tuple[Size, ...]
    width: int

    @property
    def bytes(self) -> int:
        """Of the whole tensor."""
        return prod(map(int, self.shape)) * self.width


@dataclass(frozen=True, slots=True)
class Letters:
    """The sizes that a stage's shape is written in: B sequences, T queries, S keys, width D."""

    B: Size
    T: Size
    S: Size
    D: Size
