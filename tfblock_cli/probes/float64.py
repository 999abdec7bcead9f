"""Where float64 can be computed: statistics are taken in it, whatever the model computes in."""

from torch import Tensor


def for_float64(tensor: Tensor) -> Tensor:
    """The tensor without its history, on the CPU if its own device has no float64, as mps."""
    return tensor.detach().cpu() if tensor.device.type == "mps" else tensor.detach()
