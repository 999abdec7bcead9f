"""Norms by what they promise, and against torch's own."""

import pytest
import torch
from torch import Tensor, nn

from tfblock_cli.modules.norm import build_norm
from tfblock_cli.spec.norm import LayerNorm, NoNorm, Norm, RMSNorm

EPS = 1e-12


@pytest.fixture
def x():
    random = torch.Generator().manual_seed(0)
    return 3 + 5 * torch.randn(4, 9, 32, dtype=torch.float64, generator=random)


def filled(norm: Norm, weight: float = 1.0, bias: float = 0.0) -> nn.Module:
    module = build_norm(norm, 32).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.fill_(weight if name == "weight" else bias)
    return module.requires_grad_(False)


def test_layernorm_gives_mean_zero_and_variance_one_then_weight_and_bias(x):
    plain = filled(LayerNorm(eps=EPS))(x)
    assert float(plain.mean(-1).abs().max()) < 1e-12
    assert float((plain.var(-1, correction=0) - 1).abs().max()) < 1e-10
    assert torch.allclose(filled(LayerNorm(eps=EPS), 2.0, 0.5)(x), 2 * plain + 0.5, atol=1e-12)


def test_rmsnorm_gives_rms_one_and_keeps_the_direction(x):
    plain = filled(RMSNorm(eps=EPS))(x)
    assert float((plain.square().mean(-1) - 1).abs().max()) < 1e-10
    assert torch.allclose(nn.functional.cosine_similarity(plain, x, dim=-1), torch.ones(4, 9, dtype=x.dtype))
    assert float(plain.mean(-1).abs().max()) > 0.1  # it does not centre
    assert torch.allclose(filled(RMSNorm(eps=EPS), 2.0)(x), 2 * plain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bias", [True, False])
def test_layernorm_equals_torchs(x, dtype, bias):
    ours, theirs = (
        build_norm(LayerNorm(eps=0.1, bias=bias), 32).to(dtype),
        nn.LayerNorm(32, eps=0.1, bias=bias, dtype=dtype),
    )
    compare(ours, theirs, x.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rmsnorm_equals_torchs(x, dtype):
    compare(build_norm(RMSNorm(eps=0.1), 32).to(dtype), nn.RMSNorm(32, eps=0.1, dtype=dtype), x.to(dtype))


def compare(ours: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        assert torch.allclose(ours(x), theirs(x), rtol=0, atol=1e-12 if x.dtype == torch.float64 else 1e-5)


def test_eps_counts(x):
    for norm in (LayerNorm, RMSNorm):
        assert not torch.allclose(filled(norm(eps=0.1))(x / 100), filled(norm(eps=EPS))(x / 100), atol=1e-2)


def test_a_constant_is_invisible_behind_a_layernorm_and_visible_behind_an_rmsnorm(x):
    """Why causality never perturbs by adding a constant."""
    assert torch.allclose(filled(LayerNorm())(x), filled(LayerNorm())(x + 7), atol=1e-5)
    assert not torch.allclose(filled(RMSNorm())(x), filled(RMSNorm())(x + 7), atol=1e-1)


def test_none_changes_nothing_and_has_no_weights(x):
    module = build_norm(NoNorm(), 32)
    assert module(x) is x
    assert not list(module.parameters())
