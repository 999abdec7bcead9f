"""Declared: which outputs may depend on which inputs, through all layers of a model."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from tfblock_cli.spec.attention import Bidirectional, Causal, Pattern
from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.settings import Declaration, OfModel


@dataclass(frozen=True, slots=True)
class Declared:
    """The visible pairs of each layer, first to last. A box of which no layers are known is one layer.

    Attributes:
        layers: Their patterns.
        at_least: So many inputs, its own the last of them, an output must see; None: all that it may.
    """

    layers: tuple[Pattern, ...]
    at_least: int | None = None

    @property
    def words(self) -> str:
        """As reports have it: ``causal``, or ``sliding_window(window=7) in layers 0, 2; causal in layers 1, 3``."""
        at: dict[str, list[int]] = {}
        for index, pattern in enumerate(self.layers):
            at.setdefault(words(pattern), []).append(index)
        if len(at) == 1:
            return next(iter(at))
        return "; ".join(
            f"{name} in layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}" for name, layers in at.items()
        )

    @property
    def is_causal(self) -> bool:
        """Whether no output may depend on a later input."""
        return all(pattern.is_causal for pattern in self.layers)

    @property
    def mutual(self) -> int | None:
        """So many tokens from the first one may see each other; 1: none may see ahead; None: all may."""
        lengths = [pattern.mutual for pattern in self.layers]
        known = [length for length in lengths if length is not None]
        return max(known) if len(known) == len(lengths) else None

    @property
    def reach(self) -> int | None:
        """1 + the sum of W_l - 1 over the layers: the inputs that an output may see; None: from the first one on."""
        reaches = [pattern.reach for pattern in self.layers]
        known = [reach for reach in reaches if reach is not None]
        return 1 + sum(reach - 1 for reach in known) if len(known) == len(reaches) else None

    def reach_TT(self, seq_len: int) -> Tensor:
        """Whether output i may depend on input j, (T, T): the layers' visible pairs and the residual, composed."""
        reached_TT = torch.eye(seq_len, dtype=torch.bool)
        for pattern in self.layers:
            seen_TT = visible_TT(pattern, seq_len) | torch.eye(seq_len, dtype=torch.bool)
            reached_TT = (seen_TT.double() @ reached_TT.double()) > 0
        return reached_TT

    def must_TT(self, seq_len: int) -> Tensor:
        """Whether output i has to depend on input j, (T, T)."""
        n = torch.arange(seq_len)
        near_TT = (n[:, None] - n[None, :]).abs() < (seq_len if self.at_least is None else self.at_least)
        return self.reach_TT(seq_len) & near_TT


def visible_TT(pattern: Pattern, seq_len: int) -> Tensor:
    """Whether query i sees key j in one layer: (T, T), bool."""
    n = torch.arange(seq_len)
    return torch.as_tensor(pattern.allows(n[:, None], n[None, :])).expand(seq_len, seq_len)


def words(pattern: Pattern) -> str:
    """A pattern with its keys: ``sliding_window(window=7)``."""
    keys = ", ".join(
        f"{key}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for key, value in pattern.model_dump(exclude={"kind"}).items()
    )
    return f"{pattern.kind}({keys})" if keys else pattern.kind


CAUSAL = Declared((Causal(),))


def of_model(declare: Declaration, model: ModelSpec) -> Declared:
    """What was declared of every layer; left open, what the layer's own pattern is.

    A bidirectional layer is declared causal all the same: that a decoder sees its future has to be said.
    """
    if not isinstance(declare, OfModel):
        return Declared((declare,) * model.n_layers)
    patterns = (block.attention.pattern for block in model.blocks())
    return Declared(tuple(Causal() if isinstance(pattern, Bidirectional) else pattern for pattern in patterns))


def of_box(declare: Declaration, windows: Collection[int] = ()) -> Declared:
    """What was declared of a model whose layers are not known, as a whole; causal unless said otherwise.

    Args:
        declare: The declaration.
        windows: Of some of its layers. Left open how far it reaches, it is held to no more than one of them.
    """
    return Declared((Causal(),), min(windows, default=None)) if isinstance(declare, OfModel) else Declared((declare,))
