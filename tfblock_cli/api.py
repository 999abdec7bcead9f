"""The commands as functions: no screen, no files. ``import tfblock_cli`` offers them; the command line calls them.

Where a function takes an experiment, anything that ``load`` reads will do.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tfblock_cli import loading
from tfblock_cli.results.progress import NoProgress, Progress
from tfblock_cli.results.result import Result
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.target import AnyExperiment, TargetExperiment

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tfblock_cli.modules.decoder import Decoder
    from tfblock_cli.probes.gradflow.training.cells import Executors, Finished
    from tfblock_cli.results.causality import CausalityData
    from tfblock_cli.results.forward import ForwardData
    from tfblock_cli.results.gradflow import GradflowData
    from tfblock_cli.results.params import ParamsData
    from tfblock_cli.results.target_gradflow import TargetGradflowData

FORWARD_DEFAULTS: Mapping[str, Any] = {"kernel": "eager"}
"""What forward assumes below the file and the flags: it shows stages that the fused kernel never stores."""

_NOBODY = NoProgress()
_Asked = TypeVar("_Asked", bound=AnyExperiment)


def load(source: str | Path, *, set: Sequence[str] = ()) -> Experiment:
    """The experiment of a TOML file, a shipped name or a run folder, with nothing left open.

    Args:
        source: As EXPERIMENT on the command line.
        set: KEY=VALUE each, as ``--set`` on the command line.

    Raises:
        tfblock_cli.errors.BadInput: With every fault at once.
    """
    return _load(source, set, {})


def build(experiment: Experiment | str | Path) -> "Decoder":
    """The experiment's decoder: in its dtype, on its device, its weights drawn from its seed, in eval mode."""
    from tfblock_cli.modules import decoder

    return decoder.build(_experiment(experiment))


def params(experiment: Experiment | str | Path, *, verify: bool = False) -> "Result[ParamsData]":
    """How many parameters, FLOPs and bytes? torch is needed to ``verify`` only: that builds the model."""
    from tfblock_cli.probes import params

    return params.run(_experiment(experiment), verify=verify)


def forward(
    experiment: Experiment | str | Path,
    *,
    head: tuple[int, int] | None = None,
    progress: Progress = _NOBODY,
) -> "Result[ForwardData]":
    """Which shape and which numbers at every stage? ``head`` is a layer and a head whose weights are wanted."""
    from tfblock_cli.probes import forward

    experiment = _experiment(experiment, FORWARD_DEFAULTS)
    with _torch_settings(experiment.threads):
        return forward.run(experiment, head=head, progress=progress)


def causality(
    experiment: AnyExperiment | str | Path, *, trust: bool = False, progress: Progress = _NOBODY
) -> "Result[CausalityData]":
    """Does any output see the future? ``trust`` lets a file name the code that is run: its [target]."""
    from tfblock_cli.probes import causality

    if isinstance(experiment, str | Path):
        experiment = _load_any(experiment, trust=trust)
    with _torch_settings(experiment.threads):
        if isinstance(experiment, TargetExperiment):
            return causality.run_target(experiment, progress=progress)
        return causality.run(experiment, progress=progress)


def self_test(experiment: Experiment, *, progress: Progress = _NOBODY) -> "Result[CausalityData]":
    """Is the causality check right about models whose causality is known? The experiment gives the seed alone."""
    from tfblock_cli.probes.causality.self_test import self_test

    with _torch_settings(experiment.threads):
        return self_test(experiment, progress=progress)


def check_causality(
    model: "nn.Module",
    example: "Tensor | None" = None,
    *,
    vocab_size: int = 0,
    d_model: int = 0,
    seq_len: int = 0,
    declare: str | Mapping[str, Any] = "causal",
    output_key: str | int = "",
    chunk: int = 0,
    weights: str = "as-is",
    dtypes: Sequence[str] = (),
    budget: int = 64,
    seed: int = 0,
    threads: int = 1,
    progress: Progress = _NOBODY,
) -> "Result[CausalityData]":
    """Does any output of a model see the future? The model comes back unchanged.

    Args:
        model: From ids (B, T), or vectors (B, T, D), to one output per position (B, T, ...).
        example: An input, whose kind and length are taken; its content is not, since it is drawn from the seed.
        vocab_size: V, for ids below V; without it the rows of the table that the example is looked up in.
        d_model: D, for vectors; without it the example's width.
        seq_len: T; without it the example's, else 16.
        declare: What may be seen: "causal", "window=16", "prefix=4", "documents=5,7", "bidirectional", or a table.
        output_key: The output to read, by attribute, key or index; "" is the tensor itself, else its ``logits``,
            else its first item.
        chunk: The model computes in chunks, blocks or windows of so many tokens, so that longer inputs are tried.
        weights: "as-is", or "rescaled": drawn anew for the time of the check, so large that no leak is small.
        dtypes: What to compute in; float64, then the model's own, unless given.
        budget: Forward passes at length T, if that is not the length at which every cut is tried.
        seed: All content is drawn from it.
        threads: That torch may use meanwhile.
        progress: Told about every pass.

    Raises:
        tfblock_cli.errors.BadInput: The model does not take what it was said to take, or a value is wrong.
    """
    from tfblock_cli.probes import causality
    from tfblock_cli.probes.target import kind_of

    with _torch_settings(threads):
        taken = kind_of(model, example, vocab_size=vocab_size, d_model=d_model)
        shortest = {} if example is None else {"seq_len": example.shape[1]}
        settings = {"declare": declare, "dtypes": list(dtypes), "budget": budget, "weights": weights}
        experiment = loading.target_experiment(
            {
                "name": type(model).__name__,
                "seed": seed,
                "threads": threads,
                "input": {"seq_len": seq_len} if seq_len else shortest,
                "target": {"factory": "in:memory", "output_key": output_key, "chunk": chunk, **taken},
                "causality": settings,
            }
        )
        return causality.run_module(model, experiment, progress=progress)


def check_gradients(
    model: "nn.Module",
    example: "Tensor | None" = None,
    *,
    vocab_size: int = 0,
    d_model: int = 0,
    batch_size: int = 0,
    seq_len: int = 0,
    loss: str = "auto",
    output_key: str | int = "",
    seeds: int = 5,
    seed: int = 0,
    threads: int = 1,
    progress: Progress = _NOBODY,
) -> "Result[TargetGradflowData]":
    """How large are the gradients of a model's weights, layer by layer? The model comes back unchanged.

    Args:
        model: As of ``check_causality``, with the weights that are asked.
        example: As there; its batch size is taken as well.
        vocab_size: As there.
        d_model: As there.
        batch_size: B; without it the example's, else 1.
        seq_len: T; without it the example's, else 16.
        loss: "auto", "cross_entropy", "random_projection" or "mean_squared_error".
        output_key: As there.
        seeds: How many inputs.
        seed: Of the first of them.
        threads: That torch may use meanwhile.
        progress: Told about every seed.

    Raises:
        tfblock_cli.errors.BadInput: The model does not take what it was said to take, or lets no gradient through; or
            a value is wrong.
    """
    from tfblock_cli.probes import gradflow
    from tfblock_cli.probes.target import kind_of

    with _torch_settings(threads):
        taken = kind_of(model, example, vocab_size=vocab_size, d_model=d_model)
        shown = {} if example is None else {"batch_size": example.shape[0], "seq_len": example.shape[1]}
        given = {key: n for key, n in (("batch_size", batch_size), ("seq_len", seq_len)) if n}
        experiment = loading.target_experiment(
            {
                "name": type(model).__name__,
                "seed": seed,
                "threads": threads,
                "input": shown | given,
                "target": {"factory": "in:memory", "output_key": output_key, **taken},
                "gradflow": {"seeds": seeds, "loss": loss},
            }
        )
        return gradflow.run_module(model, experiment, progress=progress)


def assert_causal(model: "nn.Module", example: "Tensor | None" = None, *, strict: bool = False, **options: Any) -> None:
    """Assert that no output of a model sees the future: for test suites.

    Args:
        model: As of ``check_causality``, and unchanged afterwards.
        example: As there.
        strict: Rounding fails, too, where a correct decoder has none.
        options: As there.

    Raises:
        AssertionError: It leaks, or it cannot be told; with the report.
        tfblock_cli.errors.BadInput: The model does not take what it was said to take, or a value is wrong.
    """
    __tracebackhide__ = True  # pytest then points at the caller's line
    from tfblock_cli.report.terminal import to_text

    result = check_causality(model, example, **options)
    if result.verdict != "pass" or (strict and result.warnings):
        raise AssertionError(f"{type(model).__name__} is not causal\n{to_text(result)}")


@overload
def gradflow(
    experiment: Experiment,
    *,
    jobs: int = 1,
    executors: "Executors | None" = None,
    finished: "Finished | None" = None,
    progress: Progress = _NOBODY,
) -> "Result[GradflowData]": ...


@overload
def gradflow(
    experiment: TargetExperiment, *, needs_layers: bool = False, progress: Progress = _NOBODY
) -> "Result[TargetGradflowData]": ...


@overload
def gradflow(
    experiment: AnyExperiment | str | Path,
    *,
    trust: bool = False,
    jobs: int = 1,
    executors: "Executors | None" = None,
    finished: "Finished | None" = None,
    needs_layers: bool = False,
    progress: Progress = _NOBODY,
) -> "Result[GradflowData | TargetGradflowData]": ...


def gradflow(
    experiment: AnyExperiment | str | Path,
    *,
    trust: bool = False,
    jobs: int = 1,
    executors: "Executors | None" = None,
    finished: "Finished | None" = None,
    needs_layers: bool = False,
    progress: Progress = _NOBODY,
) -> "Result[GradflowData | TargetGradflowData]":
    """How do gradients flow under different norm placements, and does a network with them learn?

    Of a target: how large are the gradients of its own weights, layer by layer?

    Args:
        experiment: With its [gradflow].
        trust: Whether a file may name the code that is run: its [target].
        jobs: How many runs of [gradflow.train] at once, each in a process of its own unless it is one; the numbers
            are the same. A script that asks for more than one needs ``if __name__ == "__main__":``.
        executors: What runs them instead: from a number of workers to a ``concurrent.futures.Executor``.
        finished: Runs of an earlier call, as a dict; what is in it is not run again, and new ones are put into it.
        needs_layers: Whether a target without a list of layers is refused before it is run.
        progress: Told about every pass.

    Raises:
        tfblock_cli.errors.BadInput: It does not fit into memory, or the text to be learned does not fit the model; a
            target cannot be made, or lets no gradient through.
    """
    from tfblock_cli.probes import gradflow

    if isinstance(experiment, str | Path):
        experiment = _load_any(experiment, trust=trust)
    with _torch_settings(experiment.threads):
        if isinstance(experiment, TargetExperiment):
            return gradflow.run_target(experiment, needs_layers=needs_layers, progress=progress)
        return gradflow.run(experiment, progress=progress, jobs=jobs, executors=executors, finished=finished)


def _experiment(asked: Experiment | str | Path, defaults: Mapping[str, Any] | None = None) -> Experiment:
    return asked if isinstance(asked, Experiment) else _load(asked, (), defaults or {})


def _load(source: str | Path, sets: Sequence[str], defaults: Mapping[str, Any]) -> Experiment:
    return _warned(loading.load(source, flags=(), sets=sets, defaults=defaults)).experiment


def _load_any(source: str | Path, *, trust: bool) -> AnyExperiment:
    return _warned(loading.load_any(source, trust=trust)).experiment


def _warned(loaded: loading.Loaded[_Asked]) -> loading.Loaded[_Asked]:
    for warning in loaded.warnings:
        warnings.warn(warning, stacklevel=4)
    return loaded


@contextmanager
def _torch_settings(threads: int) -> Iterator[None]:
    """So many threads and the ordinary grad mode inside; as before behind: the caller's program goes on."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(before)
