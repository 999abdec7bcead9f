"""The stage of a leak: the first module whose inputs before the cut agree while its output differs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tfblock_cli.probes.causality.session import Session

ROOT = "<root forward>"
_TIME = {1: (0,), 2: (1, 0), 3: (1, 0, 2), 4: (2, 1, 0, 3)}
"""By number of dimensions, where the positions are looked for: (B, T, D) and (B, H, T, E) before other layouts."""


class _Call(NamedTuple):
    """One call of one module, cut off at k."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def first_stage(session: Session, x: Tensor, z: Tensor, k: int, limit: float) -> str | None:
    """The name of the module, ``ROOT`` for the model's own forward, None where the outputs agree.

    Args:
        session: An open one.
        x: An input.
        z: One whose first k positions are the same.
        k: The cut.
        limit: The largest relative change that is none.
    """
    for one, other in zip(_calls(session, x, k), _calls(session, z, k), strict=False):
        if one.name != other.name:
            return None  # the two inputs took different ways through the model
        if _agree(one.inputs, other.inputs, limit) and not _agree(one.outputs, other.outputs, limit):
            return one.name or ROOT
    return None


def _calls(session: Session, x: Tensor, k: int) -> list[_Call]:
    """Every call in the order in which calls end: children before the module that they are in."""
    calls: list[_Call] = []
    seq_len = x.shape[1]

    def note(name: str, args: Any, kwargs: Any, output: Any) -> None:
        outputs = (part for tensor in _tensors(output) if (part := _before(tensor, k, seq_len)) is not None)
        inputs = (
            tensor.detach().clone() if (part := _before(tensor, k, seq_len)) is None else part
            for tensor in _tensors((args, kwargs))
        )
        calls.append(_Call(name, tuple(inputs), tuple(outputs)))

    with _listening(session.subject.module, note):
        session(x)
    return calls


@contextmanager
def _listening(root: nn.Module, note: Any) -> Iterator[None]:
    handles: list[RemovableHandle] = []
    try:
        for name, module in root.named_modules():
            handles.append(
                module.register_forward_hook(
                    lambda module, args, kwargs, output, name=name: note(name, args, kwargs, output),
                    with_kwargs=True,
                )
            )
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Those inside tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _before(tensor: Tensor, k: int, seq_len: int) -> Tensor | None:
    """A copy of the positions before k; None for a tensor without positions. The axis is known by its length."""
    for axis in _TIME.get(tensor.dim(), ()):
        if tensor.shape[axis] == seq_len:
            return tensor.detach().narrow(axis, 0, k).clone()
    return None


def _agree(one: tuple[Tensor, ...], other: tuple[Tensor, ...], limit: float) -> bool:
    """Whether all that can be compared is equal, up to rounding; scores of another length cannot."""
    return all(_close(a, b, limit) for a, b in zip(one, other, strict=False) if a.shape == b.shape)


def _close(a: Tensor, b: Tensor, limit: float) -> bool:
    if not a.is_floating_point():
        return bool((a == b).all())
    different = a != b  # so that -inf and -inf, the masked scores, agree
    if not bool(different.any()):
        return True
    largest = float(a[a.isfinite()].abs().max()) if bool(a.isfinite().any()) else 1.0
    return not float((a - b)[different].abs().max()) > limit * largest
