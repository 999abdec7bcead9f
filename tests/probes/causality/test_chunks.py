"""Modules that compute in chunks: what only comes behind one is tried once the chunk is told."""

import pytest
import torch
from torch import Tensor, nn

from tests.probes.causality.asking import row
from tfblock_cli import check_causality
from tfblock_cli.probes.causality.zoo.parts import D

CHUNK = 40


class Chunked(nn.Module):
    """A mean of the past; behind the first chunk every position also sees the whole of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        y = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        later = [y[:, CHUNK:][:, n : n + CHUNK] for n in range(0, x.shape[1] - CHUNK, CHUNK)]
        return torch.cat((y[:, :CHUNK], *(part + part.mean(1, keepdim=True) for part in later)), dim=1)


@pytest.mark.parametrize(("chunk", "seq_len", "verdict"), [(0, 37, "pass"), (CHUNK, 85, "fail")])
def test_a_leak_behind_a_chunk_is_found_once_the_chunk_is_told(chunk, seq_len, verdict):
    result = check_causality(Chunked(), torch.zeros(1, 20, D), chunk=chunk, dtypes=["float64"])
    assert result.verdict == verdict
    assert row(result.data, "suffix_cuts").seq_len == seq_len
    if chunk:
        assert (result.data.leaks[0].out, result.data.leaks[0].in_) == (CHUNK, CHUNK + 1)
        assert "every cut was tried at T=85, which exceeds chunk 40" in result.data.notes


def test_a_chunk_that_is_longer_than_what_was_tried_is_not_proven():
    data = check_causality(Chunked(), torch.zeros(1, 20, D), chunk=500, dtypes=["float64"]).data
    assert "what comes behind chunk 500 (--seq 505)" in data.not_proven
    assert not data.notes
