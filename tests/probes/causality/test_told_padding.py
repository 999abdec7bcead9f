"""Padding that a foreign module is told about by its own arguments: attention_mask and position_ids."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.probes.causality.asking import row
from tfblock_cli import check_causality
from tfblock_cli.probes.subject import Subject
from tfblock_cli.probes.target import tried

V, D = 23, 8


class Told(nn.Module):
    """Attention over ids that is told about padding, right in everything unless a method is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions, self.out = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, D)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """(B, T) to (B, T, D)."""
        n = torch.arange(ids.shape[1])
        x = self.tokens(ids) + self.positions(self.where(n if position_ids is None else position_ids))
        visible = (n[:, None] >= n).expand(len(ids), -1, -1)
        if attention_mask is not None:
            visible = visible & self.keeps(attention_mask)[:, None, :]
        weights = (x @ x.mT).masked_fill(~visible, -1e9).softmax(-1)
        y: Tensor = self.out(weights @ x)
        return y

    def keeps(self, mask: Tensor) -> Tensor:
        """What of the mask's positions may be seen."""
        return mask.bool()

    def where(self, positions: Tensor) -> Tensor:
        """The rows of the table."""
        return positions


class Ignoring(Told):
    """Takes the mask and drops it."""

    def keeps(self, mask: Tensor) -> Tensor:
        return torch.ones_like(mask, dtype=torch.bool)


class Inverted(Told):
    """Hides the sequence and shows the padding."""

    def keeps(self, mask: Tensor) -> Tensor:
        return ~mask.bool()


class CountingPadding(Told):
    """Takes positions and counts by itself, padding included."""

    def where(self, positions: Tensor) -> Tensor:
        return torch.arange(positions.shape[-1]) if positions.dim() == 2 else positions


class Untold(Told):
    """Has no argument for positions: they count the padding."""

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """(B, T) to (B, T, D)."""
        return super().forward(ids, attention_mask)


class FromTwo(Told):
    """Positions start at 2, as RoBERTa has them, so that others would be wrong."""

    def where(self, positions: Tensor) -> Tensor:
        return positions if positions.dim() == 2 else positions + 2


class Additive(Told):
    """Its attention_mask is one of scores (T, T)."""

    def keeps(self, mask: Tensor) -> Tensor:
        return mask.view(mask.shape[-1], mask.shape[-1]).bool()


def found(module: nn.Module) -> Any:
    torch.manual_seed(0)
    data = check_causality(module, torch.zeros(1, 11, dtype=torch.long), dtypes=["float64"]).data
    assert row(data, "suffix_cuts").verdict == "clean"
    return row(data, "padding")


@pytest.mark.parametrize(
    ("module", "verdict", "message"),
    [
        (Told, "clean", "and are those of the sequence alone, without a cache"),
        (Ignoring, "LEAK", "changes when the padding is replaced"),
        (Inverted, "LEAK", "changes when the padding is replaced"),
        (CountingPadding, "LEAK", "is another one behind padding"),
        (Untold, "clean", "pad it on the right"),
        (FromTwo, "clean", "pad it on the right"),
    ],
)
def test_what_is_told_is_heeded(module, verdict, message):
    row = found(module())
    assert row.verdict == verdict
    assert message in row.message


def test_a_module_with_another_kind_of_mask_is_not_asked():
    torch.manual_seed(0)
    data = check_causality(Additive(), torch.zeros(1, 11, dtype=torch.long), dtypes=["float64"]).data
    assert "padding" not in {row.name for row in data.probes}


def test_what_a_module_takes_is_seen_by_a_call():
    subject = tried(Subject(module=Told(), vocab_size=V), 7, "it")
    assert subject.told == ("attention_mask", "position_ids")
    assert subject.mask_dtype == torch.bool
    assert tried(Subject(module=FromTwo(), vocab_size=V), 7, "it").told == ("attention_mask",)
    assert not tried(Subject(module=nn.Embedding(V, D), vocab_size=V), 7, "it").takes_padding


def test_masks_and_positions_behind_a_cache():
    subject = Subject(module=Told(), vocab_size=V, told=("attention_mask", "position_ids"))
    told = subject.about(torch.tensor([0, 2]), 3, 5)
    assert told["attention_mask"].tolist() == [[True] * 5, [False] * 2 + [True] * 3]
    assert told["position_ids"].tolist() == [[3, 4], [1, 2]]
