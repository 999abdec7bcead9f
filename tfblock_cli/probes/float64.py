"""Where float64 can be computed: statistics are taken in it, whatever the model computes in."""

from torch import Tensor


def for_float64(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one device, on the CPU if that has no float64, as mps."""
    if tensors and tensors[0].device.type == "mps":
        return tuple(tensor.cpu() for tensor in tensors)
    return tensors
