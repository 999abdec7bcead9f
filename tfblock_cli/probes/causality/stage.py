"""The stage of a leak: the first module whose inputs before the cut agree while its output differs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tfblock_cli.probes.causality.session import Session

ROOT = "<root forward>"
_TIME = {1: (0,), 2: (1, 0), 3: (1, 0, 2), 4: (2, 1, 0, 3)}
"""By number of dimensions, where the positions are looked for: (B, T, D) and (B, H, T, E) before other layouts."""


class Pass(NamedTuple):
    """A forward pass, to be run, and the positions of it that must be those of another one.

    Attributes:
        run: Runs it.
        seq_len: How many positions it has; the axis of time is known by its length.
        rows: Those that are compared.
        sample: The place in the batch of the one that is compared; None: all are.
    """

    run: Callable[[], Tensor]
    seq_len: int
    rows: slice
    sample: int | None = None


class _Call(NamedTuple):
    """One call of one module, at the positions that are compared."""

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
    one, other = (Pass(partial(session, input_), input_.shape[1], slice(k)) for input_ in (x, z))
    return first_difference(session, one, other, limit)


def first_difference(session: Session, one: Pass, other: Pass, limit: float) -> str | None:
    """The same, of any two passes: one with a cache and one without, one with padding and one without.

    Args:
        session: An open one.
        one: A pass.
        other: One that must give the same.
        limit: The largest relative change that is none.
    """
    for a, b in zip(_calls(session, one), _calls(session, other), strict=False):
        if a.name != b.name:
            return None  # the two took different ways through the model
        if _agree(a.inputs, b.inputs, limit) and not _agree(a.outputs, b.outputs, limit):
            return a.name or ROOT
    return None


def _calls(session: Session, asked: Pass) -> list[_Call]:
    """Every call in the order in which calls end: children before the module that they are in."""
    calls: list[_Call] = []

    def note(name: str, args: Any, kwargs: Any, output: Any) -> None:
        outputs = (part for tensor in _tensors(output) if (part := _at(tensor, asked)) is not None)
        inputs = (
            tensor.detach().clone() if (part := _at(tensor, asked)) is None else part
            for tensor in _tensors((args, kwargs))
        )
        calls.append(_Call(name, tuple(inputs), tuple(outputs)))

    with _listening(session.subject.module, note):
        asked.run()
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


def _at(tensor: Tensor, asked: Pass) -> Tensor | None:
    """A copy of the positions that are compared; None for a tensor without positions."""
    if asked.sample is not None and tensor.dim() > 1 and tensor.shape[0] > asked.sample:
        tensor = tensor.narrow(0, asked.sample, 1)
    for axis in _TIME.get(tensor.dim(), ()):
        if tensor.shape[axis] == asked.seq_len:
            start, stop, _ = asked.rows.indices(asked.seq_len)
            return tensor.detach().narrow(axis, start, stop - start).clone()
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
