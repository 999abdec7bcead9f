"""Stage: a named point of the computation. record: what passed by, seen from outside."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class Stage(nn.Identity):
    """x: a place for hooks where no other module puts out the tensor. It has no parameters and changes nothing."""


@contextmanager
def record(model: nn.Module, names: Iterable[str], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call ``see(name, output)`` whenever one of the named submodules has run; the hooks are always removed.

    Raises:
        AttributeError: A name is no submodule of the model.
    """
    handles: list[RemovableHandle] = []

    def listen(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: see(name, output)

    try:
        for name in names:
            handle = model.get_submodule(name).register_forward_hook(listen(name))
            handles.append(handle)  # one by one, so that an unknown name leaves none of the earlier ones behind
        yield
    finally:
        for handle in handles:
            handle.remove()
