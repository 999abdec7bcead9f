"""Statistics of streams, by numpy and by what they must be."""

import math

import numpy as np
import pytest
import torch

from tfblock_cli.probes.gradflow.streams import statistics


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_by_numpy(dtype):
    streams = [torch.randn(3, 5, 8, dtype=torch.float64).add(shift).to(dtype) for shift in (0, 1)]
    for stream, found in zip(streams, statistics(streams), strict=True):
        values = stream.double().numpy()
        unit = values / np.linalg.norm(values, axis=-1, keepdims=True)
        pairs = [unit[b, t] @ unit[b, s] for b in range(3) for t in range(5) for s in range(5) if s != t]
        assert found.rms == pytest.approx(np.sqrt((values**2).mean()), rel=1e-12)
        assert found.cosine == pytest.approx(np.mean(pairs), rel=1e-10, abs=1e-12)


def test_cosine_of_one_token_is_undefined_and_of_equal_tokens_one():
    alike, opposite = torch.ones(1, 2, 3), torch.tensor([[[1.0, 0, 0], [-1, 0, 0]]])
    streams = [torch.ones(1, 1, 3), torch.ones(2, 4, 3), torch.eye(3)[None], alike, opposite]
    one, *others = (statistics([stream])[0].cosine for stream in streams)
    assert math.isnan(one)
    assert others == pytest.approx([1, 0, 1, -1], abs=1e-12)


def test_a_token_of_length_zero_is_like_no_other():
    (found,) = statistics([torch.tensor([[[1.0, 0], [1, 0], [0, 0]]])])
    assert found.cosine == pytest.approx(1 / 3)  # one of three pairs is alike


def test_a_stream_that_is_not_finite_has_no_finite_statistics():
    (lost, infinite) = statistics([torch.full((1, 2, 2), math.nan), torch.full((1, 2, 2), math.inf)])
    assert math.isnan(lost.rms)
    assert infinite.rms == math.inf
