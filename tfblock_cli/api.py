"""The commands as functions: no screen, no files. ``import tfblock_cli`` offers them; the command line calls them.

Where a function takes an experiment, anything that ``load`` reads will do.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfblock_cli import loading
from tfblock_cli.results.progress import NoProgress, Progress
from tfblock_cli.results.result import Result
from tfblock_cli.spec.experiment import Experiment

if TYPE_CHECKING:
    from tfblock_cli.modules.decoder import Decoder
    from tfblock_cli.results.causality import CausalityData
    from tfblock_cli.results.forward import ForwardData
    from tfblock_cli.results.gradflow import GradflowData
    from tfblock_cli.results.params import ParamsData

FORWARD_DEFAULTS: Mapping[str, Any] = {"kernel": "eager"}
"""What forward assumes below the file and the flags: it shows stages that the fused kernel never stores."""

_NOBODY = NoProgress()


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
    with _torch_threads(experiment.threads):
        return forward.run(experiment, head=head, progress=progress)


def causality(experiment: Experiment | str | Path, *, progress: Progress = _NOBODY) -> "Result[CausalityData]":
    """Does any output see the future?"""
    from tfblock_cli.probes import causality

    experiment = _experiment(experiment)
    with _torch_threads(experiment.threads):
        return causality.run(experiment, progress=progress)


def gradflow(experiment: Experiment | str | Path, *, progress: Progress = _NOBODY) -> "Result[GradflowData]":
    """How do gradients flow under different norm placements?"""
    from tfblock_cli.probes import gradflow

    experiment = _experiment(experiment)
    with _torch_threads(experiment.threads):
        return gradflow.run(experiment, progress=progress)


def _experiment(asked: Experiment | str | Path, defaults: Mapping[str, Any] | None = None) -> Experiment:
    return asked if isinstance(asked, Experiment) else _load(asked, (), defaults or {})


def _load(source: str | Path, sets: Sequence[str], defaults: Mapping[str, Any]) -> Experiment:
    loaded = loading.load(source, flags=(), sets=sets, defaults=defaults)
    for warning in loaded.warnings:
        warnings.warn(warning, stacklevel=3)
    return loaded.experiment


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """So many threads inside, as many as before behind: the caller's program goes on."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
