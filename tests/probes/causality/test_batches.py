"""How many sequences the probes ask a target about at a time."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from tfblock_cli.probes import causality
from tfblock_cli.results.causality import CausalityData
from tfblock_cli.spec.target import TargetExperiment

V, D, T = 20, 8, 6


class LargerBatches(nn.Module):
    """A causal mean, which takes another way when the batch is large enough.

    Attributes:
        seen: How often it was called with a batch of each size.
    """

    def __init__(self, at: int = 1000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.at, self.seen = at, Counter[int]()

    def forward(self, ids: Tensor) -> Tensor:
        self.seen[len(ids)] += 1
        x = self.embed(ids)
        y = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        logits: Tensor = self.head(self.other(x, y) if len(ids) >= self.at else y)
        return logits

    def other(self, x: Tensor, y: Tensor) -> Tensor:
        return y + x.mean(1, keepdim=True).detach()


class SumsOverSamples(LargerBatches):
    def other(self, x: Tensor, y: Tensor) -> Tensor:
        return y + y.sum(0, keepdim=True)


def asked(module: nn.Module, batch_size: int) -> CausalityData:
    table = {"target": {"factory": "in:memory", "vocab_size": V}, "input": {"seq_len": T, "batch_size": batch_size}}
    return causality.run_module(module, TargetExperiment.model_validate(table)).data


def test_a_leak_that_waits_for_a_larger_batch_is_found_with_one():
    assert not asked(LargerBatches(5), 1).leaks
    data = asked(LargerBatches(5), 5)
    assert {leak.probe for leak in data.leaks} == {"suffix_cuts", "truncation"}
    assert (data.leaks[0].out, data.leaks[0].in_, data.leaks[0].shape) == (0, 1, "full upper triangle")


def test_samples_that_see_each_other_in_a_larger_batch_only():
    assert not asked(SumsOverSamples(5), 4).leaks
    leaks = {leak.probe: leak for leak in asked(SumsOverSamples(5), 7).leaks}
    assert set(leaks) == {"batch_independence"}
    assert (leaks["batch_independence"].cuts, leaks["batch_independence"].cuts_total) == (18, 18)  # 3 of 7, 6 others


@pytest.mark.parametrize(("batch_size", "largest"), [(1, 3), (2, 3), (6, 6)])
def test_the_report_names_the_largest_batch_that_was_run(batch_size, largest):
    module = LargerBatches()
    data = asked(module, batch_size)
    assert f"larger batches than {largest}" in data.not_proven
    assert max(module.seen) == largest
    assert {row.verdict for row in data.probes} == {"clean", "skipped"}


def test_every_probe_runs_with_it():
    module = LargerBatches()
    passes = sum(row.forwards for row in asked(module, 6).probes)
    assert module.seen == {1: 2, 2: 2, 6: passes + 1}  # what it rounds to, takes, and whether in float64, come before
