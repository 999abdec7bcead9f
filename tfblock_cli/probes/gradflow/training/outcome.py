"""The verdict on a training run, from what it did on held-out text."""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from tfblock_cli.spec.train import Outcome

COLLAPSED = 0.99
"""Above this mean cosine between tokens the output no longer depends on the input."""
STILL_FALLING = 0.1
"""Of the margin: a loss that falls by more over the last quarter of the steps has not come to rest."""


class Judged(NamedTuple):
    """The network on the held-out text, after so many steps."""

    step: int
    loss: float
    cosine: float


def verdict(seen: Sequence[Judged], *, unigram_loss: float, margin: float, broke: bool) -> Outcome:
    """LEARNS, SLOW, STUCK, COLLAPSED or DIVERGED.

    The loss of the training batches has no say: it is too noisy to tell a network that learns from one that does not.

    Args:
        seen: On the held-out text: at the start, at every quarter of the steps, at the end.
        unigram_loss: Of a network that knows frequencies and nothing else, on the same text.
        margin: In nats.
        broke: Whether a training loss was nan or inf.
    """
    start, before, end = seen[0], seen[-2], seen[-1]
    if broke or not isfinite(end.loss) or end.loss > start.loss:
        return "DIVERGED"
    if end.loss < unigram_loss - margin:
        return "LEARNS"
    if end.cosine > COLLAPSED:
        return "COLLAPSED"
    return "SLOW" if before.loss - end.loss >= STILL_FALLING * margin else "STUCK"
