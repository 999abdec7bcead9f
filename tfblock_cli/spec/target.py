"""A target: somebody else's model, named and not described. An experiment has a [model] or a [target]."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from tfblock_cli.spec.base import LARGEST, Spec, fault, validate_all
from tfblock_cli.spec.experiment import Device, Experiment, InputSpec, Name, Seed, Threads
from tfblock_cli.spec.settings import CausalitySettings, TargetGradflowSettings

HUGGING_FACE = "hf:"
FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
Size = Annotated[int, Field(ge=0, le=LARGEST)]
"""Of what a target takes; 0 where it takes the other thing."""


def _named(factory: Any) -> Any:
    if isinstance(factory, str) and not factory.removeprefix(HUGGING_FACE):
        raise fault("is empty: name a factory as pkg.mod:factory, or hf:PATH", "")
    if isinstance(factory, str) and not factory.startswith(HUGGING_FACE) and not FACTORY.fullmatch(factory):
        raise fault(f"{factory[:60]!r} names no factory: write pkg.mod:factory, as in an import, or hf:PATH", "")
    return factory


def _plain(kwargs: Any) -> Any:
    """Only what a result, which is JSON, can hold as well."""
    if isinstance(kwargs, Mapping):
        for key, value in kwargs.items():
            for odd in _odd(value):
                raise fault(f"{odd} cannot be passed on: only text, finite numbers, true, false, arrays, tables", key)
    return kwargs


def _odd(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _odd(inner)
    elif not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        yield value


class TargetSpec(Spec):
    """[target]: any nn.Module that maps ids (B, T), or vectors (B, T, D), to one output per position (B, T, ...).

    Attributes:
        factory: ``pkg.mod:factory``, a function that returns the module or the module's class; or ``hf:PATH``, a
            local Hugging Face config.json or checkpoint folder.
        kwargs: What the factory is called with.
        vocab_size: V: it takes ids below V. A Hugging Face model knows its own.
        d_model: D: it takes vectors of this width.
        output_key: Which output is read, by attribute, key or index; "" is the tensor itself, else its ``logits``,
            else its first item.
        chunk: It computes in chunks, blocks or windows of so many tokens, so that longer inputs are tried; 0 where it
            does not. A Hugging Face model's config.json says so itself.
    """

    factory: Annotated[str, BeforeValidator(_named)]
    kwargs: Annotated[dict[str, Any], BeforeValidator(_plain)] = Field(default_factory=dict)
    vocab_size: Size = 0
    d_model: Size = 0
    output_key: str | int = ""
    chunk: Size = 0

    @property
    def path(self) -> str:
        """Of a Hugging Face model; "" for a factory."""
        return self.factory.removeprefix(HUGGING_FACE) if self.factory.startswith(HUGGING_FACE) else ""

    @model_validator(mode="wrap")
    @classmethod
    def _resolve(cls, table: Any, handler: ModelWrapValidatorHandler["TargetSpec"]) -> "TargetSpec":
        if not isinstance(table, Mapping):
            return handler(table)
        return validate_all(cls.__name__, table, handler, _faults(table))


def _faults(target: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    """Rules between keys."""
    factory, vocab_size, d_model = (target.get(key) for key in ("factory", "vocab_size", "d_model"))
    if vocab_size and d_model:
        yield fault(
            "it takes either ids below vocab_size or vectors of width d_model, not both", "vocab_size", "d_model"
        )
    if not isinstance(factory, str):
        return
    if factory.startswith(HUGGING_FACE):
        if d_model:
            yield fault("a Hugging Face model takes ids", "d_model")
        if target.get("kwargs"):
            yield fault("a Hugging Face model is built from its config.json alone", "kwargs")
    elif not vocab_size and not d_model:
        yield fault(
            "what does it take? vocab_size = V (--vocab V) for ids below V, d_model = D (--d D) for vectors of width D",
            "factory",
        )


class TargetExperiment(Spec):
    """One question about a target, with nothing left open.

    Its dtype and its attention are the target's own business; ``[causality] dtypes`` names those that are tried.

    Attributes:
        name: Of its run folders; the file's stem, or the factory's name, unless given.
        seed: Everything random comes from it, the target's first weights included.
        device: Where torch runs: cpu, cuda, cuda:1 or mps.
        threads: That torch may use.
    """

    name: Name = "tfblock"
    seed: Seed = 0
    device: Device = "cpu"
    threads: Threads = 1
    input: InputSpec = InputSpec()
    target: TargetSpec
    causality: CausalitySettings = CausalitySettings()
    gradflow: TargetGradflowSettings = TargetGradflowSettings()


AnyExperiment = Experiment | TargetExperiment
