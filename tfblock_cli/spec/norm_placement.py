"""Norm placements: where the norm sits. Each is one formula in plain operators, so it holds for floats too.

To add one: a class here and its name in the union. Nothing else changes.
"""

from collections.abc import Callable
from math import log
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from tfblock_cli.spec.base import Axis, Kind
from tfblock_cli.spec.size import Role

Value = Any  # a float, a tensor, or whatever else knows +, * and /
Function = Callable[[Value], Value]


class Branch(NamedTuple):
    """A sub-layer as a placement sees it: its function f, its norms N, and a mark for the stream behind it.

    ``scale`` multiplies by the placement's own vector, where it has one.
    """

    f: Function
    norms: tuple[Function, ...]
    out: Function
    scale: Function = lambda x: x


class Placement(Kind):
    """How sub-layers, norms and the residual stream are wired; l = 1..L is the block, L their number.

    Attributes:
        formula: One sub-layer, x -> x'.
        final_norm: Whether a stack needs a norm after the last block, since its stream is un-normalised.
        sublayer_norms: The names of one sub-layer's norms; "" where a sub-layer has one.
        norms_the_branch: Whether a norm takes what f puts out, with nothing added to it.
        inner_norm: Whether its method has a norm inside attention and FFN, before their last matrices.
        initial_scale: What the vector starts from that multiplies each branch; None where there is no such vector.
        min_layers: The smallest L for which the formula means anything.
    """

    formula: ClassVar[str]
    final_norm: ClassVar[bool] = True
    sublayer_norms: ClassVar[tuple[str, ...]] = ("",)
    norms_the_branch: ClassVar[bool] = False
    inner_norm: ClassVar[bool] = False
    min_layers: ClassVar[int] = 1

    @property
    def initial_scale(self) -> float | None:
        """Most placements have no weights of their own."""
        return None

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
    norms_the_branch = True

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        before, after = norms
        return x + after(f(before(x)))


class Reordered(Placement):
    """x + N(f(x)) (OLMo 2, arXiv:2501.00656; there with a norm on q and k)."""

    aliases = ("olmo2",)
    kind: Literal["reordered"] = "reordered"
    formula = "x + N(f(x))"
    norms_the_branch = True

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


class B2T(Placement):
    """a = N1(x + attention(x)), then N2(a + ffn(a) + x): the block's input skips to its last norm (arXiv:2206.00330).

    The authors' code (takase/b2t_connection) also multiplies every matrix by L^(-1/2); that is left to the
    initialization.
    """

    kind: Literal["b2t"] = "b2t"
    formula = "a = N1(x + attention(x)), N2(a + ffn(a) + x)"
    final_norm = False

    def block(self, x: Value, attention: Branch, ffn: Branch, l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        (first,), (last,) = attention.norms, ffn.norms
        a = attention.out(first(x + attention.f(x)))
        return ffn.out(last(a + ffn.f(a) + x))


class LayerScale(Placement):
    """x + g f(N(x)) with a learned vector g that starts small (Touvron et al. 2021, arXiv:2103.17239).

    Attributes:
        initial: Every entry of g at first. The authors' models take 1e-5 with 24 layers and 1e-6 with 36 and 48
            (facebookresearch/deit, cait_models.py, init_scale); 0.1 is what others take up to 18 layers
            (lucidrains/vit-pytorch, cait.py).
    """

    kind: Literal["layerscale"] = "layerscale"
    formula = "x + g f(N(x))"
    initial: Annotated[float, Field(gt=0)] = 0.1

    @property
    def initial_scale(self) -> float:
        """Of g."""
        return self.initial

    def block(self, x: Value, attention: Branch, ffn: Branch, l: int, L: int) -> Value:  # noqa: E741
        """The formula, for attention and for the FFN."""
        for branch in (attention, ffn):
            (norm,) = branch.norms
            x = branch.out(x + branch.scale(branch.f(norm(x))))
        return x


class SubLN(Placement):
    """x + f(N(x)) with a second norm inside f, before its last matrix (Magneto: Wang et al. 2022, arXiv:2210.06423).

    v, out, up and down are scaled by sqrt(ln 2L), as torchscale does for a decoder alone. The paper has no gated FFN;
    scaling the gate as well is ours.
    """

    kind: Literal["subln"] = "subln"
    formula = "x + f(N(x)), a norm before the last matrix of f"
    inner_norm = True

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula; the second norm is a key of attention and FFN."""
        (norm,) = norms
        return x + f(norm(x))

    def gain(self, role: Role, L: int) -> float:
        """sqrt(ln 2L) on the weights that carry values."""
        return log(2 * L) ** 0.5 if role in ("v", "out", "up", "gate", "down") else 1.0


class NoPlacement(Placement):
    """x + f(x): no norm in the blocks, the negative control."""

    kind: Literal["none"] = "none"
    formula = "x + f(x)"
    sublayer_norms = ()

    def sublayer(self, x: Value, f: Function, norms: tuple[Function, ...], l: int, L: int) -> Value:  # noqa: E741
        """The formula."""
        return x + f(x)


NormPlacement = Annotated[
    Pre | Post | Sandwich | Reordered | DeepNorm | Parallel | LNS | MixLN | B2T | LayerScale | SubLN | NoPlacement,
    Axis("pre"),
]
