"""params: totals that add up, and a verification that can fail."""

import subprocess
import sys
from dataclasses import asdict

import pytest
from torch import nn

from tests.probes.models import experiment
from tfblock_cli.modules.ffn import MLP
from tfblock_cli.probes import params


def test_rows_add_up_to_the_totals():
    data = params.run(experiment({"bias": True, "position": "learned", "max_seq_len": 7})).data
    assert data.total == sum(row.count for row in data.components)
    assert all(row.count == row.weights + row.biases for row in data.components)
    assert sum(row.share for row in data.components) == pytest.approx(1)
    counts = {row.name: row.count for row in data.components}
    assert data.total_without_positions == data.total - 7 * 16
    assert data.total_without_embeddings == data.total - 7 * 16 - 11 * 16
    for part in ("attention", "ffn", "norms"):
        assert counts[part] == sum(group.n * getattr(group, part) for group in data.per_layer)
    assert all(group.total == sum(row.count for row in group.weights) for group in data.per_layer)


def test_a_tied_head_is_counted_once_and_shown_with_its_owner():
    untied, tied = (params.run(experiment({"tie_embeddings": tie})).data for tie in (False, True))
    head = next(row for row in tied.components if row.name == "head")
    assert (head.count, head.tied_to) == (0, "embedding")
    assert untied.total - tied.total == 11 * 16
    assert tied.by_path == untied.total == untied.by_path


def test_a_tied_head_with_a_bias_keeps_it():
    head = next(
        row
        for row in params.run(experiment({"tie_embeddings": True, "head_bias": True})).data.components
        if row.name == "head"
    )
    assert (head.count, head.biases, head.tied_to) == (11, 11, "embedding")


def test_layers_that_differ_are_groups_of_their_own():
    data = params.run(experiment({"n_layers": 5, "layers": [{"at": [2, 3], "ffn": {"d_ff": 3}}]})).data
    assert [(group.layers, group.n) for group in data.per_layer] == [("0-1", 2), ("2-3", 2), ("4", 1)]
    assert data.total == sum(row.count for row in data.components)


def test_verification_agrees_with_the_built_model():
    result = params.run(experiment({"norm_placement": "sandwich", "tie_embeddings": True}), verify=True)
    assert result.verdict == "pass"
    assert result.data.verified is not None
    assert result.data.verified.parameters == result.data.total


def test_verification_finds_a_missing_a_surplus_and_a_misshapen_tensor(monkeypatch):
    def build_wrongly(self, d_model, ffn, activation, dropout):
        nn.Module.__init__(self)
        self.up = nn.Linear(d_model, ffn.d_ff + 1, bias=False)  # misshapen
        self.surplus = nn.Linear(2, 2, bias=False)  # and down is missing

    monkeypatch.setattr(MLP, "__init__", build_wrongly)
    result = params.run(experiment({"ffn": "mlp", "n_layers": 1}), verify=True)
    assert result.verdict == "fail"
    assert result.data.verified is not None
    assert result.data.verified.differences == (
        "blocks.0.ffn.down.weight: counted (16, 64), but the model has none",
        "blocks.0.ffn.surplus.weight: the model has (2, 2), but it was not counted",
        "blocks.0.ffn.up.weight: counted (64, 16), but the model has (65, 16)",
    )


def test_without_verification_torch_is_not_imported():
    code = (
        "import sys; from tests.probes.models import experiment; from tfblock_cli.probes import params;"
        "params.run(experiment()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_counting_twice_gives_the_same():
    first, second = (asdict(params.run(experiment()).data) for _ in range(2))
    assert first == second
