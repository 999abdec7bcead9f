"""forward: what is promised, what is seen, and each check failing when it should."""

from itertools import product
from typing import Any

import pytest
import torch

from tests.probes.models import experiment
from tfblock_cli.errors import BadInput
from tfblock_cli.loading import load
from tfblock_cli.modules.attention import EagerAttention
from tfblock_cli.modules.decoder import build
from tfblock_cli.modules.ffn import GatedMLP
from tfblock_cli.probes import forward
from tfblock_cli.probes.inputs import random_input


def eager(model=None, **keys):
    return experiment(model, **{"kernel": "eager"} | keys)


def failed(result):
    return {check.name for check in result.checks if not check.passed}


def test_decoder_block_shapes():
    data = forward.run(load("decoder_block", defaults={"kernel": "eager"}).experiment).data
    stages = {stage.name: stage for stage in data.stages}
    assert data.input_shape == data.output_shape == (1, 4, 8)
    assert stages["blocks.0.attention.weights"].shape == (1, 2, 4, 4)
    assert stages["blocks.0.attention.q"].shape == (1, 2, 4, 4)
    assert stages["blocks.0.ffn.hidden"].shape == (1, 4, 16)
    assert "final_norm" not in stages


def test_tiny_transformer_shapes():
    data = forward.run(load("tiny_transformer", defaults={"kernel": "eager"}).experiment).data
    assert (data.input_shape, data.output_shape) == ((1, 10), (1, 10, 256))
    assert data.letters == {"B": 1, "T": 10, "S": 10, "D": 128, "H": 4, "E": 32, "F": 512, "V": 256}


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "reordered", "parallel", "deepnorm", "lns", "none"])
def test_every_stage_is_seen_in_the_promised_order(placement):
    result = forward.run(eager({"norm_placement": placement}))
    assert result.verdict == "pass"
    assert all(stage.finite for stage in result.data.stages)
    names = [stage.name for stage in result.data.stages]
    assert names[:2] == ["embed", "embedded"]
    assert names[-1] == "head"
    # the residual sum behind each sub-layer is there; the parallel block has one sum only
    sums = [name for name in names if ".residual." in name]
    assert len(sums) == (2 if placement == "parallel" else 4)


def test_statistics_are_those_of_the_tensor():
    asked = eager()
    stages = {stage.name: stage for stage in forward.run(asked).data.stages}
    decoder, ids = build(asked), random_input(asked)
    embedded = decoder.embed(ids).detach().numpy()
    row = stages["embed"]
    assert row.mean == pytest.approx(embedded.mean(), rel=1e-12)
    assert row.std == pytest.approx(embedded.std(), rel=1e-12)
    assert row.absmax == abs(embedded).max()
    assert row.bytes == embedded.nbytes
    logits = decoder(ids).detach().numpy()
    assert stages["head"].std == pytest.approx(logits.std(), rel=1e-12)


def test_masked_scores_are_described_by_their_visible_entries():
    asked = eager({"position": "none", "n_layers": 1})
    row = next(stage for stage in forward.run(asked).data.stages if stage.name.endswith("scores"))
    decoder, ids = build(asked), random_input(asked)
    block: Any = decoder.blocks[0]
    h = block.norms["attention"](decoder.embed(ids))
    q, k, _ = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in block.attention.qkv(h).chunk(3, -1))
    scores = [
        float((q[b, n, t] @ k[b, n, s]).detach()) / 8**0.5
        for b, n, t, s in product(range(2), range(2), range(5), range(5))
        if s <= t
    ]
    assert row.mean == pytest.approx(sum(scores) / len(scores), rel=1e-10)
    assert row.absmax == pytest.approx(max(map(abs, scores)), rel=1e-10)
    assert row.note == "visible entries only"


def test_the_fused_kernel_is_told_apart():
    result = forward.run(experiment(kernel="sdpa"))
    fused = [stage for stage in result.data.stages if stage.note == "fused, not stored"]
    assert {stage.name.rpartition(".")[2] for stage in fused} == {"scores", "weights"}
    assert all(stage.mean is None and stage.bytes == 0 for stage in fused)
    assert result.warnings


def test_meta_has_shapes_and_no_numbers():
    result = forward.run(eager(device="meta"))
    assert result.verdict == "pass"
    assert all(stage.mean is None and stage.finite is None for stage in result.data.stages)
    assert {check.name for check in result.checks} == {"output_shape", "stage_shapes"}


def test_head_weights_are_those_of_the_head():
    result = forward.run(eager(), head=(1, 1))
    head = result.data.head
    assert head is not None
    assert (head.layer, head.head) == (1, 1)
    assert [sum(row) for row in head.weights] == pytest.approx([1] * 5)
    assert all(head.weights[t][s] == 0 for t in range(5) for s in range(t + 1, 5))


@pytest.mark.parametrize(
    ("head", "keys", "reason"),
    [
        ((2, 0), {}, "there is no layer 2: the model has layers 0 to 1"),
        ((0, 2), {}, "there is no head 2: layer 0 has heads 0 to 1"),
        ((0, 0), {"kernel": "sdpa"}, "stores no weights"),
        ((0, 0), {"device": "meta"}, "no numbers"),
    ],
)
def test_a_head_that_cannot_be_seen_is_refused(head, keys, reason):
    with pytest.raises(BadInput, match=reason):
        forward.run(eager(**keys), head=head)


def leaky(self, q, k, v, chunk):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    weights = self.weights(self.scores(scores).softmax(-1))
    return weights @ v


def wrong_axis(self, q, k, v, chunk):
    visible = self.visible(q.shape[2], k.shape[2], q.device, chunk)
    scores = self.scores((q @ k.transpose(-1, -2)).masked_fill(~visible, float("-inf")))
    return self.weights(scores.softmax(-2)) @ v


@pytest.mark.parametrize(
    ("attend", "check"), [(leaky, "attention_outside_pattern"), (wrong_axis, "attention_rows_sum_to_one")]
)
def test_broken_attention_fails_its_check(monkeypatch, attend, check):
    monkeypatch.setattr(EagerAttention, "attend", attend)
    result = forward.run(eager())
    assert result.verdict == "fail"
    assert check in failed(result)


def test_a_nan_is_named_where_it_first_appears(monkeypatch):
    monkeypatch.setattr(GatedMLP, "inner", lambda self, x: self.up(x) * float("nan"))
    result = forward.run(eager())
    check = next(check for check in result.checks if check.name == "finite")
    assert not check.passed
    assert "first at blocks.0.ffn.hidden" in check.message


def test_a_wrong_shape_fails(monkeypatch):
    original = EagerAttention.attend
    monkeypatch.setattr(EagerAttention, "attend", lambda self, *given: original(self, *given)[:, :, :-1])
    monkeypatch.setattr("tfblock_cli.modules.block.Block.forward", lambda self, x, chunk: (self.attention(x), x)[1])
    result = forward.run(eager({"n_layers": 1}))
    check = next(check for check in result.checks if check.name == "stage_shapes")
    assert not check.passed
    assert "blocks.0.attention.context: promised (2, 2, 5, 8), seen (2, 2, 4, 8)" in check.message
    assert "blocks.0.ffn.up: promised (2, 5, 64), never seen" in check.message


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_rows_sum_to_one_in_every_dtype(dtype):
    result = forward.run(eager(dtype=dtype, input={"batch_size": 1, "seq_len": 200}))
    assert result.verdict == "pass"
    assert {stage.dtype for stage in result.data.stages} == {dtype}


def test_nothing_is_left_behind():
    state = torch.random.get_rng_state()
    forward.run(eager())
    assert torch.equal(state, torch.random.get_rng_state())
