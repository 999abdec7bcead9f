"""Causality of a module that tfblock did not build: a target, or one that a test hands over."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tfblock_cli.errors import BadInput
from tfblock_cli.probes.causality.batch_independence import BATCH_SIZE
from tfblock_cli.probes.causality.check import check, claims, expect_numbers, warnings_of
from tfblock_cli.probes.causality.declared import Declared, of_box
from tfblock_cli.probes.causality.lengths import small_length
from tfblock_cli.probes.causality.weights import rescaled
from tfblock_cli.probes.huggingface import has_weights
from tfblock_cli.probes.prints import prints_to_stderr
from tfblock_cli.probes.subject import Subject
from tfblock_cli.probes.target import from_target, narrowest, of_module, tried
from tfblock_cli.results.causality import CausalityData
from tfblock_cli.results.progress import Progress
from tfblock_cli.results.result import Result
from tfblock_cli.spec.attention import Documents
from tfblock_cli.spec.target import TargetExperiment

LONGEST = 4096
"""Of a small length; what the module takes is not known before it is tried."""
HOW_FAR = "how far back it has to see beyond that was not declared, and is not checked (--declare window=W, or causal)"
ROUND = (64, 128)
"""Small lengths for a module that refuses odd ones."""


def run_target(experiment: TargetExperiment, *, progress: Progress | None = None) -> Result[CausalityData]:
    """Check the experiment's target. What its code writes to stdout goes to stderr: stdout is the report's.

    Raises:
        BadInput: The device has no numbers; or the target cannot be made, or does not take what it was said to take.
    """
    expect_numbers(experiment.device)
    settings, target = experiment.causality, experiment.target
    with prints_to_stderr(), ExitStack() as stack:
        subjects = from_target(experiment)
        is_random = bool(target.path) and not has_weights(target.path)  # a factory may have loaded its own
        redraw = settings.weights == "rescaled" or (settings.weights == "auto" and is_random)
        if redraw:
            stack.enter_context(rescaled(subjects[0].module, experiment.seed))  # the others share its weights
        data = ask(subjects, experiment, where=f"target {target.factory}", progress=progress)
    if redraw:
        note = "weights were redrawn so large that no leak is small (--weights as-is keeps the target's own)"
        data = replace(data, notes=(*data.notes, note))
    return answer(data, experiment.model_dump())


def run_module(
    module: nn.Module, experiment: TargetExperiment, *, progress: Progress | None = None
) -> Result[CausalityData]:
    """Check a module in hand, with the weights that it has; it comes back unchanged. Its prints go to stderr as well.

    Args:
        module: In the place of the experiment's factory.
        experiment: What it takes, and how it is asked.
        progress: Told about every pass.

    Raises:
        BadInput: The module does not take what it was said to take.
    """
    target, where = experiment.target, type(module).__name__
    subject = of_module(module, target.vocab_size, target.d_model, target.output_key, target.chunk)
    redraw = rescaled(module, experiment.seed) if experiment.causality.weights == "rescaled" else nullcontext()
    with prints_to_stderr(), redraw:
        data = ask((subject,), experiment, where=where, progress=progress)
    asked = experiment.model_dump()
    asked["target"]["factory"] = f"{type(module).__module__}.{where}"  # no factory: it was handed over
    return answer(data, asked)


def ask(
    subjects: Sequence[Subject], experiment: TargetExperiment, *, where: str, progress: Progress | None
) -> CausalityData:
    """The protocol: every cut at a small length that the module takes, a ladder of cuts at the experiment's own.

    Raises:
        BadInput: A first call shows that the module does not take what it was said to take.
    """
    settings, seq_len, batch_size = experiment.causality, experiment.input.seq_len, experiment.input.batch_size
    subjects = tuple(tried(subject, seq_len, where) for subject in subjects)
    subjects = tuple(replace(subject, narrowest=narrowest(subject, seq_len)) for subject in subjects)
    if isinstance(settings.declare, Documents):
        subjects = tuple(subject.packed(settings.declare) for subject in subjects)
    declared = of_box(settings.declare, subjects[0].windows)
    lengths = _small_lengths(subjects[0], declared, seq_len, batch_size)
    small = next(length for length in lengths if _takes(subjects[0], length))
    data = check(
        subjects,
        declared=declared,
        seq_len=seq_len,
        small=small,
        seed=experiment.seed,
        dtypes=tuple(getattr(torch, name) for name in settings.dtypes),
        budget=settings.budget,
        batch_size=batch_size,
        progress=progress,
    )
    if declared.at_least is not None and declared.at_least < small:
        data = replace(data, notes=(*data.notes, f"it has a window of {declared.at_least}: {HOW_FAR}"))
    notes, not_proven = _on_chunks(subjects[0].chunks, small, seq_len)
    return replace(data, notes=(*data.notes, *notes), not_proven=(*data.not_proven, *not_proven))


def _on_chunks(chunks: Mapping[str, int], small: int, seq_len: int) -> tuple[list[str], list[str]]:
    """Which chunks the lengths exceed, and which they do not."""
    exceeded = [f"{name} {chunk}" for name, chunk in chunks.items() if chunk < small]
    notes = [f"every cut was tried at T={small}, which exceeds {', '.join(exceeded)}"] if exceeded else []
    return notes, [
        f"what comes behind {name} {chunk} (--seq {chunk + 5})"
        for name, chunk in chunks.items()
        if chunk >= max(small, seq_len)
    ]


def answer(data: CausalityData, experiment: Mapping[str, Any]) -> Result[CausalityData]:
    """With the claims that decide the verdict."""
    return Result(
        command="causality", data=data, checks=claims(data), warnings=warnings_of(data), experiment=experiment
    )


def _small_lengths(subject: Subject, declared: Declared, seq_len: int, batch_size: int) -> Iterator[int]:
    """Of lengths at which every cut can be tried, best first; the experiment's own is always taken."""
    if seq_len > 1 and subject.vocab_size != 1:
        sizes = {size for parameter in subject.module.parameters() for size in parameter.shape}
        others = {BATCH_SIZE, batch_size, subject.vocab_size, subject.d_model, *sizes}
        yield small_length(declared, others, LONGEST, subject.chunks.values())
        yield small_length(declared, others, LONGEST)
        yield from (length for length in ROUND if length < seq_len)
    yield seq_len


def _takes(subject: Subject, seq_len: int) -> bool:
    try:
        tried(subject, seq_len, "")
    except BadInput:
        return False
    return True
