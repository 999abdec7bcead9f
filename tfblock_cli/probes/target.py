"""Anybody's module as a Subject: which of its outputs is read, where its ids become vectors, whether it runs at all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes import factory
from tfblock_cli.probes.change import change_T, size
from tfblock_cli.probes.factory import RAISED, said
from tfblock_cli.probes.output import reader
from tfblock_cli.probes.room import HELPS_TARGET, require
from tfblock_cli.probes.subject import ARGUMENTS, Subject
from tfblock_cli.spec.target import TargetExperiment

TRIED = 2
"""Samples of the first call; 3 where there are as many tokens, so that no axis passes for another."""


def in_float64(subject: Subject) -> int:
    """Bytes of its weights in float64."""
    return sum(8 * weight.numel() for weight in subject.module.parameters())


def from_target(
    experiment: TargetExperiment,
    *,
    beside: Callable[[Subject], int] = in_float64,
    what: str = "its weights alone",
) -> tuple[Subject, ...]:
    """The target as subjects, one for each kernel that is known of it, on the experiment's device.

    Args:
        experiment: With the target.
        beside: Bytes that will be needed beside the weights, whatever the input.
        what: The weights and these, in words.

    Raises:
        BadInput: It cannot be made, or its weights do not fit.
    """
    target = experiment.target
    if target.path:
        from tfblock_cli.probes import huggingface

        subjects = huggingface.from_path(target, experiment.seed)
    else:
        module = factory.call(target, experiment.seed)
        subjects = (of_module(module, target.vocab_size, target.d_model, target.output_key, target.chunk),)
    for subject in subjects:
        expect_weights(subject.module, f"target {target.factory}")
    need = sum(weight.numel() * weight.element_size() for weight in subjects[0].module.parameters())
    what = f"the target {target.factory}, {what},"
    require(need + beside(subjects[0]), experiment.device, what, HELPS_TARGET)
    for subject in subjects:
        subject.module.to(experiment.device)
    return subjects


def of_module(module: nn.Module, vocab_size: int, d_model: int, output_key: str | int = "", chunk: int = 0) -> Subject:
    """A module that takes ids below ``vocab_size`` or vectors of width ``d_model``, and computes in chunks or not."""
    return Subject(
        module=module,
        vocab_size=vocab_size,
        d_model=d_model,
        read=reader(output_key),
        chunks={"chunk": chunk} if chunk else {},
    )


def expect_weights(module: nn.Module, where: str) -> None:
    """Refuse a module that cannot be looked into, and weights that have no numbers or no gradient.

    Raises:
        BadInput: It is TorchScript; or some weights are lazy, on the device meta, or made in inference mode.
    """
    if any(isinstance(inner, torch.jit.ScriptModule) for inner in module.modules()):
        raise BadInput(
            Problem(where, "is TorchScript, which nobody can look into; give the module that it is made from")
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise BadInput(Problem(where, f"{name} is lazy and has no shape yet; call the module once first"))
        if tensor.is_meta:
            raise BadInput(Problem(where, f"{name} is on the device meta and has no numbers"))
        if tensor.is_inference():
            message = f"{name} was made under torch.inference_mode() and can have no gradient; use torch.no_grad()"
            raise BadInput(Problem(where, message))


def tried(subject: Subject, seq_len: int, where: str) -> Subject:
    """The subject after a call, which shows where its ids become vectors, and one that tells it about padding.

    Args:
        subject: One that has not been called yet.
        seq_len: T.
        where: What to call it in a message.

    Raises:
        BadInput: The call raises, or its output has no row per position.
    """
    shape = (TRIED + (seq_len == TRIED), seq_len)
    x = subject.draw(shape, generator(0, "target.trial"), subject.dtype)
    asked = f"ids {shape} below {subject.vocab_size}" if subject.vocab_size else f"vectors {tuple(x.shape)}"
    with _tables(subject.module, x) as tables, torch.no_grad(), subject.lend(subject.dtype):
        try:
            y = subject.read(subject.run(x))
        except BadInput as error:  # there is no such output
            raise BadInput(*(Problem(where, problem.message) for problem in error.problems)) from error
        except RAISED as error:
            message = f"called with {asked} it raised {said(error)}{_guess(subject, error)}"
            raise BadInput(Problem(where, message)) from error
    if tuple(y.shape[:2]) != shape:
        message = f"called with {asked} it returns {tuple(y.shape)}; the first two axes must be {shape}, (B, T)"
        raise BadInput(Problem(where, message))
    if not y.is_floating_point():
        raise BadInput(Problem(where, f"its output is {_plain(y)}; only real numbers can be compared"))
    subject = replace(subject, embedding=tables[0]) if tables and not subject.embedding else subject
    told = tuple(name for name in ARGUMENTS if name in signature(subject.module.forward).parameters)
    if not subject.told and not subject.untold and ARGUMENTS[0] in told:
        subject = _told(subject, x, told)
    return subject if _counts_from_zero(subject, x) else replace(subject, told=ARGUMENTS[:1])


def _told(subject: Subject, x: Tensor, told: tuple[str, ...]) -> Subject:
    """The subject that takes such arguments, with the first kind of mask that it takes; itself where it takes none."""
    for dtype in (torch.bool, torch.long):
        asked = replace(subject, told=told, mask_dtype=dtype)
        with torch.no_grad(), subject.lend(subject.dtype):
            try:
                y = asked.padded(x, torch.tensor([0, *[1] * (len(x) - 1)]))
            except RAISED:  # another kind of mask, or none of padding at all
                continue
        if y.shape[:2] == x.shape[:2]:
            return asked
    return subject


def _counts_from_zero(subject: Subject, x: Tensor) -> bool:
    """Whether the positions 0, 1, ... are those that it takes unless told otherwise; RoBERTa counts from 2."""
    if ARGUMENTS[1] not in subject.told:
        return True
    with torch.no_grad(), subject.lend(subject.dtype):
        try:
            y, told = subject(x), subject.padded(x, torch.zeros(len(x), dtype=torch.long))
        except RAISED:  # told by the probes
            return True
    return bool(change_T(told, y, size(y)).max() <= 1e-3)


def _guess(subject: Subject, error: BaseException) -> str:
    """What may be behind an error that a wrong input would raise."""
    if isinstance(error, IndexError):
        return " (has it fewer ids than V, or fewer positions than T?)"
    if not isinstance(error, RuntimeError | TypeError | ValueError) or isinstance(error, RecursionError):
        return ""
    return f" (does it take {'vectors of width D (--d D)' if subject.vocab_size else 'ids below V (--vocab V)'}?)"


def narrowest(subject: Subject, seq_len: int) -> torch.dtype:
    """What the module casts content to although it is asked in float64: a softmax in float32, for example.

    What does not depend on the content, such as a table of angles, does not count: it is rounded equally in every
    call. float64 also where it cannot be asked in that.
    """
    passes: list[list[tuple[torch.dtype, float]]] = []
    for name in ("target.one", "target.other"):
        x = subject.draw((1, seq_len), generator(0, name), torch.float64)
        with torch.no_grad(), subject.lend(torch.float64), _Casts() as casts:
            try:
                subject.run(x)
            except RAISED:  # told by the probes
                return torch.float64
        passes.append(casts.seen)
    narrow = [one[0] for one, other in zip(*passes, strict=False) if one != other]
    return max(narrow, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


class _Casts(TorchFunctionMode):
    """Takes down every call that makes of float64 something narrower: to what, and a fingerprint."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[torch.dtype, float]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        wide = any(isinstance(given, Tensor) and given.dtype == torch.float64 for given in args)
        if wide and isinstance(out, Tensor) and out.is_floating_point() and out.dtype != torch.float64:
            # squashed: what hides masked scores is -inf or the smallest number, beside which a sum sees nothing else
            self.seen.append((out.dtype, float(out.double().atan().nansum())))
        return out


def kind_of(module: nn.Module, example: Tensor | None, *, vocab_size: int, d_model: int) -> dict[str, int]:
    """What a module takes, as keys of [target]: what is said of it, else what an example shows.

    Raises:
        BadInput: It is no module that can be asked, or the example no input.
    """
    where = type(module).__name__
    if not isinstance(module, nn.Module):
        raise BadInput(Problem(where, f"expected a torch.nn.Module, got {module!r:.100}"))
    expect_weights(module, where)
    if vocab_size or d_model:
        return {"vocab_size": vocab_size, "d_model": d_model}
    if example is None:
        raise BadInput(Problem(where, "what does it take? give an example, vocab_size for ids, or d_model for vectors"))
    if example.dim() == 3 and example.is_floating_point():
        return {"d_model": example.shape[2]}
    if example.dim() == 2 and not example.is_floating_point():
        return {"vocab_size": vocabulary(module, example, where)}
    shape = f"{_plain(example)} of shape {tuple(example.shape)}"
    raise BadInput(Problem(where, f"an example is ids (B, T) or real vectors (B, T, D), not {shape}"))


def vocabulary(module: nn.Module, ids: Tensor, where: str) -> int:
    """V of a module that takes ids: the rows of the table that it looks them up in.

    Raises:
        BadInput: It looks them up in none.
    """
    subject = Subject(module=module, vocab_size=1)
    with _tables(module, ids) as tables, torch.no_grad(), subject.lend(subject.dtype):
        try:
            module(ids)
        except RAISED as error:
            raise BadInput(Problem(where, f"called with the example it raised {said(error)}")) from error
    if not tables:
        raise BadInput(Problem(where, "it looks its ids up in no nn.Embedding, so give vocab_size"))
    table = module.get_submodule(tables[0])
    assert isinstance(table, nn.Embedding)
    return table.num_embeddings


@contextmanager
def _tables(module: nn.Module, x: Tensor) -> Iterator[list[str]]:
    """The names of the tables that are asked for exactly these ids, as they are asked; positions are other numbers."""
    names: list[str] = []

    def listener(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def listen(_: nn.Module, args: Any, kwargs: Any) -> None:
            names.extend(name for given in (*args, *kwargs.values()) if _equal(given, x))

        return listen

    handles = [
        inner.register_forward_pre_hook(listener(name), with_kwargs=True)
        for name, inner in module.named_modules()
        if isinstance(inner, nn.Embedding)
    ]
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()


def _equal(given: Any, x: Tensor) -> bool:
    return isinstance(given, Tensor) and given.dtype == x.dtype and torch.equal(given, x)


def _plain(y: Tensor) -> str:
    return str(y.dtype).removeprefix("torch.")
