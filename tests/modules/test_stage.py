"""Stages: what hooks see is what the spec promises, and nothing is left behind."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from tests.modules.models import block_of, experiment, inputs, shaken
from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.modules.stage import record
from tfblock_cli.spec.base import axis_of, name_of
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.ffn import FFN
from tfblock_cli.spec.norm_placement import NormPlacement

PLACEMENTS = [name_of(kind) for kind in axis_of(NormPlacement)[0]] + [{"kind": "parallel", "shared_norm": False}]
Shapes = list[tuple[str, tuple[int, ...]]]
FFNS = [name_of(kind) for kind in axis_of(FFN)[0]]


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def seen_and_promised(asked: Experiment, batch_size: int = 3, seq_len: int = 5) -> tuple[Shapes, Shapes]:
    """(name, shape) of every stage as it passes by, and as the spec lists those that the kernel stores."""
    model = asked.model
    seen: Shapes = []
    with torch.device("meta"):
        decoder = Decoder(model, asked.kernel, seq_len)
        ids = torch.zeros(batch_size, seq_len, dtype=torch.long)
        vectors = torch.zeros(batch_size, seq_len, model.d_model)
    stages = [
        stage
        for stage in model.stages(model.letters(batch_size, seq_len))
        if not (stage.fused and asked.kernel == "sdpa")
    ]
    names = [stage.name for stage in stages]
    with record(decoder, names, lambda name, value: seen.append((name, tuple(value.shape)))):
        decoder(ids if model.vocab_size else vectors)
    return seen, [(stage.name, tuple(map(int, stage.shape))) for stage in stages]


@pytest.mark.parametrize(("placement", "ffn", "kernel"), list(product(PLACEMENTS, FFNS, ("sdpa", "eager"))), ids=str)
def test_hooks_see_the_promised_stages_in_the_promised_order(placement, ffn, kernel):
    attention = {"n_heads": 4, "n_kv_heads": 2, "d_head": 10, "qk_norm": "rmsnorm"}
    asked = experiment(
        norm_placement=placement,
        ffn=ffn,
        kernel=kernel,
        n_layers=4,
        vocab_size=11,
        position="learned",
        attention=attention,
    )
    seen, promised = seen_and_promised(asked)
    assert seen == promised
    names = {name for name, _ in promised}
    for stage in ("q", "k", "v", "context", "merged", "out", *(("scores", "weights") if kernel == "eager" else ())):
        assert f"blocks.3.attention.{stage}" in names
    assert {"embed", "position", "embedded", "head"} <= names


def test_every_place_that_can_be_seen_is_promised():
    """No module that puts out a tensor of its own is missing from the list, but those inside one step."""
    asked = experiment(kernel="eager", vocab_size=11, n_layers=1)
    promised = {name for name, _ in seen_and_promised(asked)[1]}
    with torch.device("meta"):
        leaves = {name for name, module in Decoder(asked.model, "eager").named_modules() if not list(module.children())}
    inside = {"blocks.0.attention.qkv", "blocks.0.attention.q_norm", "blocks.0.attention.k_norm"}
    not_there = {"blocks.0.attention.inner_norm", "blocks.0.ffn.inner_norm", "blocks.0.scales"}
    assert leaves - promised == inside | not_there


@pytest.mark.parametrize("placement", ["subln", "layerscale"])
def test_what_only_some_placements_have_is_promised_and_seen(placement):
    asked = experiment(kernel="eager", vocab_size=11, n_layers=1, norm_placement=placement)
    seen, promised = seen_and_promised(asked)
    assert seen == promised
    names = {name for name, _ in promised}
    extra = {"subln": {"attention.inner_norm", "ffn.inner_norm"}, "layerscale": {"scales.attention", "scales.ffn"}}
    assert {f"blocks.0.{name}" for name in extra[placement]} <= names


def test_layers_that_differ_promise_their_own_shapes():
    seen, promised = seen_and_promised(experiment(layers=[{"at": [1], "ffn": "geglu", "attention": {"n_kv_heads": 1}}]))
    assert seen == promised
    assert ("blocks.0.attention.k", (3, 4, 5, 6)) in seen
    assert ("blocks.1.attention.k", (3, 1, 5, 6)) in seen


def test_parallel_has_one_sum_and_says_so():
    seen, _ = seen_and_promised(experiment(norm_placement="parallel", n_layers=1))
    sums = [name for name, _ in seen if ".residual." in name]
    assert sums == ["blocks.0.residual.ffn"]


def test_recorded_tensors_are_those_of_the_computation():
    asked = experiment(kernel="eager")
    decoder, x = shaken(asked), inputs(asked)
    seen: dict[str, Tensor] = {}
    with torch.no_grad(), record(decoder, ["blocks.0.norms.attention", "blocks.1.residual.ffn"], seen.__setitem__):
        decoder(x)
        expected = block_of(decoder).norms["attention"](x)
        stream = block_of(decoder, 1)(block_of(decoder)(x))
    assert torch.equal(seen["blocks.0.norms.attention"], expected)
    assert torch.equal(seen["blocks.1.residual.ffn"], stream)


def test_recording_changes_nothing():
    asked = experiment()
    decoder, x = shaken(asked), inputs(asked)
    with torch.no_grad():
        before = decoder(x)
        with record(decoder, ["blocks.0.attention.q"], lambda name, value: None):
            during = decoder(x)
    assert torch.equal(before, during)


def test_hooks_are_removed_whatever_happens():
    asked = experiment()
    decoder, x = shaken(asked), inputs(asked)
    names = ["blocks.0.attention.q", "blocks.1.ffn.hidden"]
    with record(decoder, names, lambda name, value: None):
        assert hooks(decoder) == 2
    assert hooks(decoder) == 0

    def burst(name, value):
        raise RuntimeError("in the listener")

    with pytest.raises(RuntimeError, match="in the listener"), record(decoder, names, burst):
        decoder(x)
    assert hooks(decoder) == 0
    with pytest.raises(ValueError, match="this decoder takes"), record(decoder, names, lambda name, value: None):
        decoder(x[0])
    assert hooks(decoder) == 0
    with pytest.raises(AttributeError), record(decoder, [*names, "blocks.0.nowhere"], burst):
        pass
    assert hooks(decoder) == 0
