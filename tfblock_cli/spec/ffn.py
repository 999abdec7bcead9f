"""Feed-forward networks: what every token goes through by itself."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from tfblock_cli.spec.base import Axis, Count, Kind, derived
from tfblock_cli.spec.norm import NoNorm, OptionalNorm
from tfblock_cli.spec.size import INPUT, Letters, Saved, Size, StageSpec, Weight, linear

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


class FeedForward(Kind):
    """down(hidden(x)): the keys that all kinds share.

    Attributes:
        d_ff: Hidden width F; 4 D unless given.
        bias: Whether its linear layers have biases; ``model.bias`` unless given.
        inner_norm: A norm over the hidden vector before the last matrix; ``model.norm`` for the norm placement
            subln, none for the others, unless given.
    """

    gated: ClassVar[bool]
    d_ff: Count = derived("4 · d_model")
    bias: bool = derived("model.bias")
    inner_norm: OptionalNorm = NoNorm()

    @property
    def hidden(self) -> Size:
        """F."""
        return Size(self.d_ff, "F")

    def weights(self, d_model: Size) -> Iterator[Weight]:
        """Gate (where there is one), up and down."""
        if self.gated:
            yield from linear("gate", "gate", d_model, self.hidden, bias=self.bias)
        yield from linear("up", "up", d_model, self.hidden, bias=self.bias)
        yield from self.inner_norm.weights("inner_norm", self.hidden)
        yield from linear("down", "down", self.hidden, d_model, bias=self.bias)

    def stages(self, letters: Letters) -> Iterator[StageSpec]:
        """The hidden tensors (B, T, F) and the output (B, T, D)."""
        inner = (letters.B, letters.T, self.hidden)
        if self.gated:
            yield StageSpec(name="gate", shape=inner, inner=letters.D)
        yield StageSpec(name="up", shape=inner, inner=letters.D)
        yield StageSpec(name="hidden", shape=inner)
        if not isinstance(self.inner_norm, NoNorm):
            yield StageSpec(name="inner_norm", shape=inner)
        yield StageSpec(name="down", shape=(letters.B, letters.T, letters.D), inner=self.hidden)

    def saved(self, letters: Letters, width: int) -> Iterator[Saved]:
        """The input of every matrix, activation and product."""
        yield Saved(name=INPUT, shape=(letters.B, letters.T, letters.D), width=width)
        inner = (letters.B, letters.T, self.hidden)
        for name in self.saved_inside():
            yield Saved(name=name, shape=inner, width=width)
        yield from self.inner_norm.saved_before("hidden", inner, width)

    def saved_inside(self) -> tuple[str, ...]:
        """The tensors of the hidden width that the activation and the product keep."""
        return ("gate", "activated", "up")


class MLP(FeedForward):
    """down(activation(up(x))) (Vaswani et al. 2017, arXiv:1706.03762, section 3.3)."""

    gated = False
    kind: Literal["mlp"] = "mlp"
    activation: Activation = "gelu"

    def saved_inside(self) -> tuple[str, ...]:
        """What goes into the activation and what comes out; a relu needs only what comes out."""
        return ("hidden",) if self.activation == "relu" else ("up",)


class SwiGLU(FeedForward):
    """down(silu(gate(x)) · up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    gated = True
    kind: Literal["swiglu"] = "swiglu"


class GeGLU(FeedForward):
    """down(gelu(gate(x)) · up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    gated = True
    kind: Literal["geglu"] = "geglu"


FFN = Annotated[MLP | SwiGLU | GeGLU, Axis("swiglu")]
