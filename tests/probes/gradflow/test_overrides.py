"""Layers that differ, devices without numbers, and callers in other grad modes."""

import pytest
import torch

import tfblock_cli
from tests.probes.models import experiment
from tfblock_cli.errors import BadInput
from tfblock_cli.probes import gradflow


def asked(*layers, **keys):
    model = {"initialization": "unit", "layers": list(layers)}
    return experiment(model, gradflow={"seeds": 1, "placements": ["pre", "post"]}, **keys)


def test_the_placement_compared_is_that_of_every_layer():
    plain = gradflow.run(asked())
    overridden = gradflow.run(asked({"at": "::1", "norm_placement": "none"}))
    assert overridden.data.rows == plain.data.rows
    assert any("set aside" in warning for warning in overridden.warnings)
    assert not any("set aside" in warning for warning in plain.warnings)


def test_other_overrides_are_kept():
    assert gradflow.run(asked({"at": [1], "ffn": "mlp"})).data.rows != gradflow.run(asked()).data.rows


def test_the_device_meta_is_refused():
    with pytest.raises(BadInput, match="no numbers"):
        gradflow.run(asked(device="meta"))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(mode):
    with mode():
        result = tfblock_cli.gradflow(asked())
        assert not torch.is_grad_enabled()
    assert result.data == tfblock_cli.gradflow(asked()).data
