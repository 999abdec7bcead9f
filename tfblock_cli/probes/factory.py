"""A factory: ``pkg.mod:factory`` imported and called. Whatever goes wrong in it is told in one sentence."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.spec.target import TargetSpec

RAISED = (Exception, SystemExit)
"""What foreign code may raise; a script without a main guard raises SystemExit. Ctrl-C stays Ctrl-C."""

SHORT, CLOSE, CLOSE_SHORT = 5, 0.6, 0.55
"""Of a name with fewer letters one wrong letter is more of it: gud shares only 4 of the 7 letters of gud and good."""


def call(target: TargetSpec, seed: int) -> nn.Module:
    """The module that the factory returns; its first weights are drawn from the seed.

    Raises:
        BadInput: There is no such factory, or it returns no module, or what is in the way.
    """
    with _current_folder(), torch.random.fork_rng():
        factory = _find(target.factory)
        torch.manual_seed(seed)  # not before: an import may draw, but the second time it does not
        try:
            module = factory(**target.kwargs)
        except RAISED as error:
            raise fault(target, f"{_call(target)} raised {said(error)}") from error
    if not isinstance(module, nn.Module):
        raise fault(target, f"{_call(target)} returned {_kind(module)}, not a torch.nn.Module")
    return module


def fault(target: TargetSpec, message: str) -> BadInput:
    """Something about a target that only its own code knows."""
    return BadInput(Problem(f"target {target.factory}", message))


def said(error: BaseException) -> str:
    """An exception in one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def did_you_mean(word: str, words: Iterator[str] | list[str]) -> str:
    """The closest of the words, if one is close: of a short one more may differ, and capitals do not count."""
    from difflib import get_close_matches

    spelled = {other.lower(): other for other in words}
    close = get_close_matches(word.lower(), spelled, 1, CLOSE if len(word) >= SHORT else CLOSE_SHORT)
    return f"; did you mean {spelled[close[0]]}?" if close else ""


@contextmanager
def _current_folder() -> Iterator[None]:
    """Importable for a while, in front of everything, as ``python -m`` has it; and the current one afterwards."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        os.chdir(here)
        with suppress(ValueError):  # somebody else has removed it
            sys.path.remove(here)


def _find(factory: str) -> Any:
    """What ``pkg.mod:factory`` names."""
    module_name, _, path = factory.partition(":")
    found: Any = _module(module_name, factory)
    where = f"module {module_name}"
    for name in path.split("."):
        if not hasattr(found, name):
            close = did_you_mean(name, [other for other in dir(found) if not other.startswith("_")])
            raise BadInput(Problem(f"target {factory}", f"{where} has no {name!r}{close}"))
        found, where = getattr(found, name), name
    if not callable(found) or isinstance(found, nn.Module):
        rule = "name a function that returns a torch.nn.Module, or the module's class"
        raise BadInput(Problem(f"target {factory}", f"{path} is {_kind(found)}; {rule}"))
    return found


def _module(name: str, factory: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):  # it is there, and misses another one
            raise BadInput(Problem(f"target {factory}", f"importing {name} raised {said(error)}")) from error
        above, _, last = missing.rpartition(".")
        folder = getattr(sys.modules.get(above), "__path__", None) if above else [os.getcwd()]
        there = [f"{above}.{found.name}" if above else found.name for found in iter_modules(folder)] if folder else []
        where = f"in {above}" if above else "in the current folder or among the installed packages"
        message = f"there is no module {last or missing!r} {where}{did_you_mean(missing, there)}"
        raise BadInput(Problem(f"target {factory}", message)) from error
    except RAISED as error:
        raise BadInput(Problem(f"target {factory}", f"importing {name} raised {said(error)}")) from error


def _call(target: TargetSpec) -> str:
    """As one would write it."""
    kwargs = ", ".join(f"{key}={value!r}" for key, value in target.kwargs.items())
    return f"{target.factory.partition(':')[2]}({kwargs})"


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"
