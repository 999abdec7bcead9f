"""Logits of -inf are legal: what stays infinite says nothing, hides nothing, and may not come from the future."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tfblock_cli as tfblock
from tfblock_cli.probes.causality.self_test import ask
from tfblock_cli.probes.causality.zoo.caches import CACHES
from tfblock_cli.probes.causality.zoo.correct import CORRECT
from tfblock_cli.probes.causality.zoo.inside_attention import INSIDE_ATTENTION
from tfblock_cli.probes.causality.zoo.parts import Specimen
from tfblock_cli.probes.subject import Subject
from tfblock_cli.results.causality import CausalityData
from tfblock_cli.results.result import Result

V, D, T = 20, 8, 8
INF = float("inf")


class Banning(nn.Module):
    """The mean of what has come so far, and classes or positions that are forbidden.

    Attributes:
        leak: How much of the mean of everything is added: to what is kept, or to what is forbidden.
    """

    def __init__(self, leak: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.leak = nn.Embedding(V, D), nn.Linear(D, V), leak

    def forward(self, ids: Tensor, **more: Any) -> Tensor:
        x = self.embed(ids)
        mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return self.forbid(self.head(mean + self.leak * x.mean(1, keepdim=True).detach()), ids)

    def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
        """By default the last three classes."""
        return logits.index_fill(-1, torch.arange(V - 3, V), -INF)


class Added(Banning):
    def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
        mask = torch.zeros(V, dtype=logits.dtype)
        mask[: V // 2] = -INF
        return (logits + mask).log_softmax(-1)


class ItsOwnToken(Banning):
    def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
        return logits.scatter(-1, ids[..., None], -INF)


class Positions(Banning):
    """Some positions say nothing at all: the first two, one in the middle, the last one of 8 and of 37."""

    def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
        silent = torch.isin(torch.arange(ids.shape[1]), torch.tensor([0, 1, 4, 7, 36]))
        return logits.masked_fill(silent[:, None], -INF)


class PaddingTokens(Banning):
    def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
        return logits.masked_fill((ids < 4)[..., None], INF)


class OnlyMasks(Banning):
    """0 and -inf, as a mask that is added to other logits: which, the class of the last input decides."""

    def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
        allowed = torch.arange(V) <= ids[..., None]
        return (0 * logits).masked_fill(~allowed, -INF)


FORBIDDING = [Banning, Added, ItsOwnToken, Positions, PaddingTokens]


def asked(model: nn.Module) -> Result[CausalityData]:
    return tfblock.check_causality(model, torch.zeros(1, T, dtype=torch.long))


def found(model: nn.Module, verdict: str) -> set[str]:
    """The probes that say so."""
    return {row.name for row in asked(model).data.probes if row.verdict == verdict}


@pytest.mark.parametrize("kind", FORBIDDING)
def test_what_is_forbidden_is_left_out(kind):
    result = asked(kind())
    assert result.verdict == "pass"
    assert "entries of the output are infinite" in next(r.message for r in result.data.probes if r.name == "preflight")


@pytest.mark.parametrize("kind", FORBIDDING)
def test_it_hides_no_leak(kind):
    class Open(Banning):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            return logits

    for model in (kind(0.1), kind(1e-9), Open(1e-9)):
        assert found(model, "LEAK") == {"suffix_cuts", "truncation"}


def test_a_gradient_is_as_exact_beside_it():
    class Attached(Banning):
        def forward(self, ids: Tensor, **more: Any) -> Tensor:
            x = self.embed(ids)
            return self.forbid(self.head(x.cumsum(1) + self.leak * x.mean(1, keepdim=True)), ids)

    assert asked(Attached()).verdict == "pass"
    assert "gradient_map" in found(Attached(1e-9), "LEAK")


def test_what_only_a_forbidden_class_would_see_is_seen_by_nobody():
    class Hidden(Banning):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            ahead = self.head(self.embed(ids).mean(1, keepdim=True))
            mask = torch.zeros(V, dtype=logits.dtype)
            mask[:3] = -INF
            return torch.cat((ahead.expand_as(logits)[..., :3], logits[..., 3:]), -1) + mask

    assert asked(Hidden()).verdict == "pass"


def test_an_infinity_that_the_future_decides_is_a_leak():
    class NextToken(Banning):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            following = torch.cat((ids[:, 1:], ids[:, -1:]), 1)
            return logits.masked_fill((following % 2 == 0)[..., None] & (torch.arange(V) < 3), -INF)

    class Sign(Banning):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            sign = 1 - 2 * (ids.sum(1) % 2)
            return torch.where(torch.arange(V) < 3, sign[:, None, None] * INF, logits)

    for model in (NextToken(), Sign()):
        result = asked(model)
        assert result.verdict == "fail"
        leaks = {leak.probe: leak for leak in result.data.leaks}
        assert {"suffix_cuts", "truncation"} <= set(leaks)
        assert leaks["suffix_cuts"].magnitude == 1.0  # of full size, and no inf in the report
        assert result.data.leaks[0].out == 0


def test_nothing_but_zeros_and_infinities_is_compared_as_well():
    class Ahead(OnlyMasks):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            return super().forbid(logits, ids.flip(1).cummax(1).values.flip(1))

    assert "LEAK" not in {row.verdict for row in asked(OnlyMasks()).data.probes}
    assert "suffix_cuts" in found(Ahead(), "LEAK")


def test_another_sample_may_not_decide_an_infinity():
    class Batch(Banning):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            return logits.masked_fill((ids[:, :1].sum() % 2 == 0) & (torch.arange(V) < 3), -INF)

    assert "batch_independence" in found(Batch(), "LEAK")


class Padded(Banning):
    """Is told what is padding, and forbids everything there; behind it one class."""

    def forward(
        self, ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None, **more: Any
    ) -> Tensor:
        told = torch.ones_like(ids) if attention_mask is None else attention_mask.long()
        x = self.embed(ids) * told[..., None]
        logits: Tensor = self.head(x.cumsum(1) / told.cumsum(1).clamp(min=1)[..., None])
        ids = ids * told if self.leak == 0 else ids
        logits = logits.masked_fill((told == 0)[..., None], -INF)
        banned = (ids.cumsum(1) % 2 == 0)[..., None] & (torch.arange(V) == 3)
        return logits.masked_fill(banned, -INF)


def test_padding_may_be_infinite_and_may_decide_no_infinity_behind_it():
    assert asked(Padded()).verdict == "pass"
    assert {row.verdict for row in asked(Padded()).data.probes if row.name == "padding"} == {"clean"}
    assert "padding" in found(Padded(1.0), "LEAK")


def test_nothing_but_infinities_and_nan_cannot_be_told():
    class Everything(Banning):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            return torch.full_like(logits, -INF)

    class Broken(Banning):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            return super().forbid(logits, ids).softmax(-1) * float("nan")

    for model, message in ((Everything(), "is nothing but inf"), (Broken(), "holds nan")):
        result = asked(model)
        assert result.verdict == "inconclusive"
        assert message in result.data.probes[0].message


def test_what_is_constant_and_finite_still_has_to_see_its_own_input():
    class Blind(Positions):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            return super().forbid(logits, ids).index_fill(1, torch.tensor([3]), 1.0)

    class Dead(Positions):
        def forbid(self, logits: Tensor, ids: Tensor) -> Tensor:
            return super().forbid(logits, ids).index_fill(1, torch.tensor([4]), 1.0)

    for model in (Blind(), Dead()):
        assert {"suffix_cuts", "gradient_map"} <= found(model, "no-flow")


class Forbidding(Specimen):
    """A model of the zoo whose first channel is -inf."""

    def subject(self) -> Subject:
        return replace(super().subject(), read=lambda y: y.index_fill(-1, torch.tensor([0]), -INF))


@pytest.mark.parametrize(
    "known", [*CACHES[::4], CACHES[-2], INSIDE_ATTENTION[0], CORRECT[0]], ids=lambda known: known.name
)
def test_the_probes_of_our_own_decoder_are_right_beside_it_as_well(known):
    forbidding = Forbidding(**{field.name: getattr(known, field.name) for field in fields(known)})
    assert ask(forbidding, "", seed=0).caught
