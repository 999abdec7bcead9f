"""Rounding: what outputs are held against that were computed in other shapes, and how close they must come."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.verdict import Tolerance, other_shape
from tfblock_cli.probes.change import change_T, size

TIMES = 4.0
"""In 16 bits: how many times the error of the full pass another right way to the same outputs may have. On all shipped
experiments and 50 random models it had at most 1.8 times as much."""


class Reference(NamedTuple):
    """What is right, within a tolerance.

    Attributes:
        y: The outputs.
        tolerance: Of changes relative to the largest of them.
    """

    y: Tensor
    tolerance: Tolerance


def reference(session: Session, x: Tensor) -> Reference | str:
    """The outputs for x, which every other way to compute them must give; or why none can be held against them.

    In 32 and 64 bits it is the full pass, with a fixed tolerance. In 16 bits correct models differ by a percent, the
    deep ones by more, so the tolerance is measured: how far the full pass is from one in float32 with the same rounded
    weights. That takes a model without jumps, where the same rounding error cannot send a token another way, as a
    router does; our decoder is one. As a control, the tolerance must be less than what replacing one input does.
    """
    narrow = session.rounding
    if torch.finfo(narrow).bits > 16:
        session.progress.start(f"full pass, {session.mode_name}", 1)
        return Reference(session(x), other_shape(narrow))
    name = str(narrow).removeprefix("torch.")
    if not isinstance(session.subject.module, Decoder):
        return f"rounding in {name} may be as large as a leak, so other shapes tell nothing; float64 is asked as well"
    session.progress.start(f"rounding, {session.mode_name}", 3)
    y = session(x)
    with session.subject.lend(torch.float32, training=session.mode.training):
        exact = session(x.float() if x.is_floating_point() else x)
    other = torch.cat((session.redraw(x[:, :1], "control"), x[:, 1:]), dim=1)
    largest = size(exact)
    limit = TIMES * float(change_T(y, exact, largest).max())
    moved_T = change_T(session(other), y, largest)
    control = float(moved_T[min(1, len(moved_T) - 1) :].max())
    if not math.isfinite(limit):
        return Reference(y, Tolerance(math.inf, math.inf))  # what is nan is nan in any comparison, and not a leak
    if control <= limit:
        return f"rounding in {name} is as large as what one input does ({control:.1e}): other shapes tell nothing"
    return Reference(exact, Tolerance(limit, limit))
