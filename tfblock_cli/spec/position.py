"""Positions: how the model knows which token comes first."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from tfblock_cli.spec.base import Axis, Kind
from tfblock_cli.spec.size import Size, Weight


class NoPosition(Kind):
    """Nothing; a causal mask alone tells a decoder something of the order (NoPE)."""

    kind: Literal["none"] = "none"

    def weights(self, max_seq_len: Size, d_model: Size) -> Iterator[Weight]:
        """None."""
        yield from ()


class Learned(Kind):
    """x[t] + table[t], a learned row for each of the max_seq_len positions (GPT-2)."""

    kind: Literal["learned"] = "learned"

    def weights(self, max_seq_len: Size, d_model: Size) -> Iterator[Weight]:
        """The table (P, D)."""
        yield Weight(name="position.weight", shape=(max_seq_len, d_model), role="position", kind="matrix")


class RoPE(Kind):
    """q and k turned by t · theta^(-2i/E) in plane i (Su et al. 2021, arXiv:2104.09864).

    Plane i pairs feature i with feature i + E/2 (the "halves" layout).
    """

    kind: Literal["rope"] = "rope"
    theta: Annotated[float, Field(gt=0)] = 10000.0

    def weights(self, max_seq_len: Size, d_model: Size) -> Iterator[Weight]:
        """None: the angles are fixed."""
        yield from ()


Position = Annotated[NoPosition | Learned | RoPE, Axis("rope")]
