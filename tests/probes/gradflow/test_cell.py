"""One cell: every number has a second way to get it."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.probes.models import experiment
from tfblock_cli.modules.decoder import build
from tfblock_cli.modules.initialization import Memo
from tfblock_cli.probes.gradflow.cell import gradient_norm, loss_of, measure, token_cosine
from tfblock_cli.probes.inputs import random_input


def loss_with(asked, change):
    """The loss after ``change(decoder)``, without autograd."""
    decoder, x = build(asked), random_input(asked)
    with torch.no_grad():
        change(decoder)
        return float(loss_of(decoder(x), asked))


@pytest.mark.parametrize("placement", ["pre", "post", "parallel"])
@pytest.mark.parametrize("name", ["embed.weight", "blocks.1"])
def test_gradient_norms_are_slopes_of_the_loss(placement, name):
    """The slope along the gradient's own direction is its norm: central differences, no autograd in the slope."""
    asked = experiment({"norm_placement": placement, "initialization": "unit"})
    seen = measure(asked)
    decoder, x = build(asked), random_input(asked)
    loss_of(decoder(x), asked).backward()
    chosen = {key: p.grad for key, p in decoder.named_parameters() if key.startswith(name) and p.grad is not None}
    norm = float(torch.stack([grad.norm() for grad in chosen.values()]).norm())
    step = 1e-5

    def along(sign):
        return loss_with(
            asked,
            lambda d: [p.add_(sign * step / norm * chosen[key]) for key, p in d.named_parameters() if key in chosen],
        )

    slope = (along(+1) - along(-1)) / (2 * step)
    assert slope == pytest.approx(seen.source if name == "embed.weight" else seen.blocks[1], rel=1e-6)


def test_input_gradient_of_a_stack_without_a_vocabulary():
    asked = experiment({"vocab_size": 0, "initialization": "unit"})
    seen = measure(asked)
    x = random_input(asked).requires_grad_()
    decoder = build(asked)
    loss = loss_of(decoder(x), asked)
    (grad,) = torch.autograd.grad(loss, x)
    assert asked.gradflow.loss == "random_projection"
    assert seen.source == pytest.approx(float(grad.norm()), rel=1e-12)
    assert seen.loss == pytest.approx(float(loss.detach()), rel=1e-12)


def test_cross_entropy_is_torchs():
    asked = experiment()
    logits = torch.randn(2, 5, 11, dtype=torch.float64)
    targets = torch.cat([torch.arange(11)])  # every class once, to read the targets back
    loss = float(loss_of(logits, asked))
    rows = F.log_softmax(logits, -1)
    # the drawn targets are the only ids that explain the gradient: softmax - onehot
    logits.requires_grad_()
    (grad,) = torch.autograd.grad(loss_of(logits, asked), logits)
    onehot = logits.detach().softmax(-1) - grad * 10
    ids = onehot.argmax(-1)
    assert torch.allclose(onehot, F.one_hot(ids, len(targets)).double(), atol=1e-12)
    assert loss == pytest.approx(float(-rows.gather(-1, ids[..., None]).mean()), rel=1e-12)


def test_random_projection_has_a_gradient_of_norm_about_one():
    asked = experiment({"vocab_size": 0})
    output = torch.zeros(2, 50, 16, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(loss_of(output, asked), output)
    assert float(grad.norm()) == pytest.approx(1, rel=0.1)
    assert float(grad.mean(-1).abs().min()) > 0  # a LayerNorm does not take it away


def test_stream_statistics_by_numpy():
    asked = experiment({"initialization": "unit"})
    seen = measure(asked)
    decoder, stream = build(asked), None
    with torch.no_grad():
        stream = decoder.embed(random_input(asked))
        for block, rms, cosine in zip(decoder.blocks, seen.rms, seen.cosine, strict=True):
            stream = block(stream)
            values = stream.numpy()
            assert rms == pytest.approx(np.sqrt((values**2).mean()), rel=1e-12)
            unit = values / np.linalg.norm(values, axis=-1, keepdims=True)
            pairs = [unit[b, t] @ unit[b, s] for b in range(2) for t in range(5) for s in range(5) if s != t]
            assert cosine == pytest.approx(np.mean(pairs), rel=1e-10)


def test_cosine_of_one_token_is_undefined_and_of_equal_tokens_one():
    assert math.isnan(token_cosine(torch.ones(1, 1, 3)))
    assert token_cosine(torch.ones(2, 4, 3)) == pytest.approx(1)
    assert token_cosine(torch.eye(3)[None]) == pytest.approx(0)


def test_gradient_norm_counts_missing_gradients_as_zero():
    with_grad, without = (torch.zeros(2, requires_grad=True) for _ in range(2))
    with_grad.grad = torch.tensor([3.0, 4.0])
    assert gradient_norm([with_grad, without]) == 5.0
    assert gradient_norm([without]) == 0.0


def test_memo_changes_nothing():
    memo: Memo = {}
    for placement in ("pre", "post", "deepnorm"):
        asked = experiment({"norm_placement": placement, "initialization": "unit"})
        assert measure(asked, memo) == measure(asked)
    assert memo


def test_float32_agrees_with_float64():
    exact, rounded = (measure(experiment({"initialization": "unit"}, dtype=dtype)) for dtype in ("float64", "float32"))
    assert rounded.source == pytest.approx(exact.source, rel=1e-5)
    assert rounded.blocks == pytest.approx(exact.blocks, rel=1e-5)
    assert rounded.rms == pytest.approx(exact.rms, rel=1e-5)


def test_dropout_is_off():
    with_dropout, without = (measure(experiment({"dropout": dropout})) for dropout in (0.5, 0.0))
    assert with_dropout == without


def test_post_norm_streams_have_rms_one():
    asked = experiment({"norm_placement": "post", "norm": "layernorm", "initialization": "unit"})
    assert measure(asked).rms == pytest.approx([1, 1], rel=1e-3)
