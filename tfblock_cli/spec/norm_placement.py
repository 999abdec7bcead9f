"""Norm placements: where the norm sits. Each is one formula in plain operators, so it holds for floats too.

To add one: a class here and its name in the union. Nothing else changes.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from tfblock_cli.spec.base import Axis, Kind
from tfblock_cli.spec.size import Role

Value = Any  # a float, a tensor, or whatever else knows +, * and /
Function = Callable[[Value], Value]


class Branch(NamedTuple):
    """A sub-layer as a placement sees it: its function f, its norms N, and a mark for the stream behind it."""

    f: Function
    norms: tuple[Function, ...]
    out: Function


class Placement(Kind):
    """How sub-layers, norms and the residual stream are wired; l = 1..L is the block, L their number.

    Attributes:
        formula: One sub-layer, x -> x'.
        final_norm: Whether a stack needs a norm after the last block, since its stream is un-normalised.
        sublayer_norms: The names of one sub-layer's norms; "" where a sub-layer has one.
        min_layers: The smallest L for which the formula means anything.
    """

    formula: ClassVar[str]
    final_norm: ClassVar[bool] = True
    sublayer_norms: ClassVar[tuple[str, ...]] = ("",)
    min_layers: ClassVar[int] = 1

    def norm_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the attention's norms and of the FFN's. A name that stands in both is one shared norm."""
        attention, ffn = (
            tuple(f"{branch}_{name}" if name else branch for name in self.sublayer_norms)
            for branch in ("attention", "ffn")
        )
        return attention, ffn

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        raise NotImplementedError

    def block(self, x: Value, attention: Branch, ffn: Branch, l: int, L: int) -> Value:  # noqa: E741
        """Attention, then FFN. A placement that wires the whole block otherwise overrides this."""
        for branch in (attention, ffn):
            x = branch.out(self.sublayer(x, branch.f, branch.norms, l, L))
        return x

    def gain(self, role: Role, L: int) -> float:
        """What the placement's own method multiplies the initial weights of a role by."""
        return 1.0


class Pre(Placement):
    """x + f(N(x)) (Xiong et al. 2020, arXiv:2002.04745)."""

    kind: Literal["pre"] = "pre"
    formula = "x + f(N(x))"

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        (norm,) = norms
        return x + f(norm(x))


class Post(Placement):
    """N(x + f(x)) (Vaswani et al. 2017, arXiv:1706.03762)."""

    kind: Literal["post"] = "post"
    formula = "N(x + f(x))"
    final_norm = False

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        (norm,) = norms
        return norm(x + f(x))


class Sandwich(Placement):
    """x + N2(f(N1(x))) (Ding et al. 2021, arXiv:2105.13290; with RMSNorm Peri-LN, arXiv:2502.02732; Gemma 2)."""

    aliases = ("peri",)
    kind: Literal["sandwich"] = "sandwich"
    formula = "x + N2(f(N1(x)))"
    sublayer_norms = ("in", "out")

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        before, after = norms
        return x + after(f(before(x)))


class Reordered(Placement):
    """x + N(f(x)) (OLMo 2, arXiv:2501.00656; there with a norm on q and k)."""

    aliases = ("olmo2",)
    kind: Literal["reordered"] = "reordered"
    formula = "x + N(f(x))"

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        (norm,) = norms
        return x + norm(f(x))


class DeepNorm(Placement):
    """N(a x + f(x)), a = (2L)^(1/4), with v, out, up and down scaled by (8L)^(-1/4) (arXiv:2203.00555).

    The paper has no gated FFN; scaling the gate as well is ours.
    """

    kind: Literal["deepnorm"] = "deepnorm"
    formula = "N((2L)^(1/4) x + f(x))"
    final_norm = False

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        (norm,) = norms
        return norm((2 * L) ** 0.25 * x + f(x))

    def gain(self, role: Role, L: int) -> float:
        """(8L)^(-1/4) on the weights that carry values."""
        return (8 * L) ** -0.25 if role in ("v", "out", "up", "gate", "down") else 1.0


class Parallel(Placement):
    """x + attention(N(x)) + ffn(N(x)) (GPT-J; with a norm for each, GPT-NeoX).

    Attributes:
        shared_norm: One norm for both sub-layers, or one each.
    """

    kind: Literal["parallel"] = "parallel"
    formula = "x + attention(N(x)) + ffn(N(x))"
    shared_norm: bool = True

    def norm_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """One shared norm, or one for each sub-layer."""
        return (("shared",), ("shared",)) if self.shared_norm else super().norm_names()

    def block(self, x: Value, attention: Branch, ffn: Branch, l: int, L: int) -> Value:  # noqa: E741
        """The formula; a shared norm is computed once."""
        (attention_norm,), (ffn_norm,) = attention.norms, ffn.norms
        normed = attention_norm(x)
        update = attention.f(normed) + ffn.f(normed if self.shared_norm else ffn_norm(x))
        return ffn.out(x + update)


class LNS(Placement):
    """x + f(N(x) / sqrt(l)), l = 1..L: LayerNorm scaling (Sun et al. 2025, arXiv:2502.05795)."""

    kind: Literal["lns"] = "lns"
    formula = "x + f(N(x) / sqrt(l))"

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        (norm,) = norms
        return x + f(norm(x) / l**0.5)


class MixLN(Placement):
    """post in blocks l <= L/4, pre in the rest (Li et al. 2024, arXiv:2412.13795)."""

    kind: Literal["mixln"] = "mixln"
    formula = "N(x + f(x)) for l <= L/4, then x + f(N(x))"
    min_layers = 4

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        placement = Post() if l <= L // 4 else Pre()
        return placement.sublayer(x, f, norms, l, L)


class NoPlacement(Placement):
    """x + f(x): no norm in the blocks, the negative control."""

    kind: Literal["none"] = "none"
    formula = "x + f(x)"
    sublayer_norms = ()

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        return x + f(x)


NormPlacement = Annotated[
    Pre | Post | Sandwich | Reordered | DeepNorm | Parallel | LNS | MixLN | NoPlacement, Axis("pre")
]
