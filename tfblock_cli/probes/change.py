"""Change: how far two outputs are apart, and by what that is judged. An infinity that stays says nothing."""

import torch
from torch import Tensor


def change_T(a: Tensor, b: Tensor, largest: float) -> Tensor:
    """The largest difference of each position between two outputs (B, T, ...), relative to ``largest``: (T,).

    The same infinity in both, such as the logit of a banned token, is no difference; one that the other does not have
    is a change of full size, 1. nan where it cannot be told.
    """
    moved = (a - b).abs()
    if not bool(moved.isfinite().all()):
        moved = moved.masked_fill(a == b, 0.0)
    moved_T = moved.movedim(1, 0).flatten(1).amax(1) / largest
    return moved_T.masked_fill(moved_T.isinf(), 1.0)


def size(y: Tensor) -> float:
    """The largest absolute value, by which changes are divided; 1 where everything is 0. What is infinite is left out.

    A channel that is the same at every position, as the -1e30 of a padded vocabulary is, says nothing of how large the
    others are: beside it every leak would be rounding.
    """
    y_NC = y.flatten(0, 1).flatten(1) if y.dim() > 2 else y.flatten(0, 1)[:, None]
    infinite_NC = y_NC.isinf()
    low_C, high_C = y_NC, y_NC
    if bool(infinite_NC.any()):  # rarely: two copies
        low_C, high_C = (y_NC.masked_fill(infinite_NC, fill) for fill in (torch.inf, -torch.inf))
    low_C, high_C = low_C.amin(0), high_C.amax(0)
    varies_C = ~(high_C <= low_C)  # nan varies; what is nothing but inf does not
    sizes_C = torch.maximum(low_C.abs(), high_C.abs())
    sizes_C = sizes_C[varies_C] if bool(varies_C.any()) else sizes_C[sizes_C.isfinite()]
    return float(sizes_C.max()) or 1.0 if len(sizes_C) else 1.0


def speaks_T(y: Tensor) -> Tensor:
    """Which positions of an output (B, T, ...) hold anything but infinities, (T,): what is all -inf tells nothing."""
    return (~y.isinf()).movedim(1, 0).flatten(1).any(1)
