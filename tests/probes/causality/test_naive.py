"""Why content is replaced and never shifted: adding a constant to a token is invisible behind a LayerNorm."""

import pytest
import torch

from tests.probes.causality.asking import attention, findings
from tfblock_cli.probes.causality.zoo.parts import D, Net, T


def unmasked(n_layers: int) -> Net:
    torch.manual_seed(0)
    return Net(*(attention(lambda h, q, k: k == k) for _ in range(n_layers))).double()


def change_of_earlier_outputs(model: Net, shift: torch.Tensor | float) -> float:
    """The naive test: change the last token, and look at the outputs before it."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(1, T, D, generator=random, dtype=torch.float64)
    z = x.clone()
    z[:, -1] += shift
    with torch.no_grad():
        return float((model(z) - model(x))[:, :-1].abs().max())


@pytest.mark.parametrize("n_layers", [1, 2, 6])
def test_a_model_without_any_mask_passes_the_naive_test(n_layers):
    assert change_of_earlier_outputs(unmasked(n_layers), 1.5) <= 1e-12


@pytest.mark.parametrize("n_layers", [1, 2, 6])
def test_fresh_content_shows_it(n_layers):
    """The same models, the same naive comparison, but another token in the place of the last one."""
    assert change_of_earlier_outputs(unmasked(n_layers), torch.arange(D) ** 0.5) > 1e-3
    data = findings(unmasked(n_layers))
    assert next(leak.in_ for leak in data.leaks if leak.probe == "suffix_cuts") == 1


def test_a_cotangent_of_ones_has_no_gradient_behind_a_layernorm():
    """Why cotangents are random: the sum of a LayerNorm's outputs is a constant."""
    model = unmasked(1)
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    y = model(x)
    ones, random = torch.ones(D, dtype=torch.float64), torch.randn(D, dtype=torch.float64)
    (blind,) = torch.autograd.grad(y[0, 0] @ ones, x, retain_graph=True)
    (seeing,) = torch.autograd.grad(y[0, 0] @ random, x)
    assert float(blind.abs().max()) < 1e-12
    assert float(seeing[0, 1:].abs().min()) > 1e-6


def test_nan_poisoning_accuses_a_correct_model():
    """Why no nan is put in: 0 · nan is nan, and a masked weight is a 0."""
    torch.manual_seed(0)
    model = Net(attention())
    x = torch.randn(1, T, D)
    x[:, -1] = torch.nan
    with torch.no_grad():
        assert bool(model(x)[:, :-1].isnan().all())
