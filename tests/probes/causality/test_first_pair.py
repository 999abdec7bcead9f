"""The first pair: the smallest output that sees ahead and the nearest input that it sees, by every probe."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.probes.causality.asking import findings
from tfblock_cli.probes.causality.session import EVAL, Session
from tfblock_cli.probes.causality.suffix_cuts import suffix_cuts
from tfblock_cli.probes.causality.truncation import truncation
from tfblock_cli.probes.causality.weights import rescaled
from tfblock_cli.probes.causality.zoo.parts import D
from tfblock_cli.probes.subject import Subject
from tfblock_cli.results.progress import NoProgress

CHUNK = 16


class OwnEndState(nn.Module):
    """A state space in chunks, in float32: from the second chunk on each is given the state at its own end.

    The fault of Zamba2 in transformers 5.10.4 (huggingface/transformers#47475).
    """

    def __init__(self, chunk: int = CHUNK) -> None:
        super().__init__()
        self.chunk = chunk
        self.A_log = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        n = torch.arange(x.shape[1])
        rate = self.A_log.float().exp()
        age_TT = (n[:, None] - n[None, :]).clamp(min=0)
        seen_TTD = (-rate * age_TT[..., None]).exp() * (n[:, None] >= n[None, :])[..., None]
        state = torch.einsum("tsd,bsd->btd", seen_TTD, x.float())
        start = n // self.chunk * self.chunk
        end = (start + self.chunk - 1).clamp(max=x.shape[1] - 1)
        handed = (-rate * (n - start + 1)[:, None]).exp() * state[:, end] * (start > 0)[:, None]
        out: Tensor = x + (state + handed).to(x.dtype)
        return out


def test_a_leak_in_every_chunk_is_named_at_the_first_one_by_every_probe():
    module = OwnEndState()
    with rescaled(module, seed=0):
        data = findings(module, seq_len=37)
    assert {leak.probe for leak in data.leaks} >= {"suffix_cuts", "gradient_map", "truncation"}
    assert {(leak.out, leak.in_) for leak in data.leaks} == {(CHUNK, CHUNK + 1)}
    assert data.leaks[0].stage == "<root forward>"


def test_what_decays_below_the_rounding_is_not_seen():
    """Why rates are redrawn: over 15 steps at the rate e what is handed on is 1e-18 of what it was."""
    leaks = findings(OwnEndState(), seq_len=37).leaks
    assert (CHUNK, CHUNK + 1) not in {(leak.out, leak.in_) for leak in leaks if leak.probe == "suffix_cuts"}


class Sees(nn.Module):
    """Outputs that see some inputs ahead."""

    def __init__(self, *pairs: tuple[int, int]) -> None:
        super().__init__()
        self.pairs = pairs

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        y = x.cumsum(1)
        for out, in_ in self.pairs:
            if in_ < x.shape[1]:
                y = y + F.pad(x[:, in_ : in_ + 1], (0, 0, out, x.shape[1] - out - 1))
        return y


@pytest.mark.parametrize("probe", [suffix_cuts, truncation])
@pytest.mark.parametrize(
    ("pairs", "first"),
    [
        (((7, 9), (7, 25)), (7, 9)),
        (((7, 25), (7, 22)), (7, 22)),
        (((3, 6), (7, 9), (7, 25)), (7, 9)),  # 3 sees nothing behind the cuts that are tried
        (((3, 8), (7, 9), (7, 25)), (3, 8)),  # but this one shows as the nearest input of 7 is looked for
    ],
)
def test_a_ladder_that_leaves_cuts_out_names_the_nearest_input_all_the_same(probe, pairs, first):
    subject = Subject(module=Sees(*pairs), d_model=D)
    session = Session(subject=subject, mode=EVAL, dtype=torch.float64, seq_len=30, seed=0, progress=NoProgress())
    with session.open():
        leak: Any = probe(session, cuts=(20,)).leak
    assert (leak.out, leak.in_, leak.cuts, leak.cuts_total) == (*first, 1, 1)


def test_leaks_of_the_future_are_told_in_their_order():
    pairs = [(leak.out, leak.in_) for leak in findings(Sees((7, 9), (3, 5))).leaks if leak.in_ > leak.out]
    assert pairs == sorted(pairs)
    assert pairs[0] == (3, 5)
