"""Self-test: the checker is asked about models whose causality is known, and must be right about each."""

from collections.abc import Sequence

import torch

from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes.causality.check import check
from tfblock_cli.probes.causality.session import Mode
from tfblock_cli.probes.causality.zoo import ZOO
from tfblock_cli.probes.causality.zoo.parts import Specimen, T, Wanted
from tfblock_cli.results.causality import CausalityData, Control, ProbeRow
from tfblock_cli.results.progress import NoProgress, Progress
from tfblock_cli.results.result import Check, Result
from tfblock_cli.spec.experiment import Experiment


def self_test(experiment: Experiment, *, progress: Progress | None = None) -> Result[CausalityData]:
    """Every correct model through the whole protocol, every broken one through the probes that must speak.

    A control that slips through makes the result inconclusive.

    Args:
        experiment: Its seed is used, and nothing else.
        progress: Told about every model.
    """
    progress = progress or NoProgress()
    progress.start("self-test", sum(map(len, ZOO.values())))
    controls = []
    for family, specimens in ZOO.items():
        for specimen in specimens:
            controls.append(ask(specimen, family, experiment.seed))
            progress.advance()
    progress.stop()
    return Result(
        command="causality",
        data=CausalityData(
            declared="of each model its own",
            seq_len=T,
            probes=(),
            leaks=(),
            not_proven=("faults of which the zoo has no model",),
            controls=tuple(controls),
        ),
        checks=tuple(map(_claim, controls)),
        experiment=experiment.model_dump(),
    )


def ask(specimen: Specimen, family: str, seed: int) -> Control:
    """What the protocol says of one model, and whether that is right."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, f"zoo.{specimen.name}").initial_seed())
        only = _Once(specimen.wanted) if specimen.wanted else ()  # of a correct model, all
        data = check([specimen.subject()], declared=specimen.declared, seq_len=T, seed=seed, only=only)
    if not specimen.wanted:
        return _correct(specimen, family, data)
    first, *_ = specimen.wanted
    row = _row(data, first)
    return Control(
        name=specimen.name,
        family=family,
        probe=f"{first.probe} {first.mode or first.dtype}".rstrip(),
        wanted=first.verdict,
        found=row.verdict if row else "not run",
        caught=all((found := _row(data, wanted)) and found.verdict == wanted.verdict for wanted in specimen.wanted),
        worst=row.worst if row else None,
    )


class _Once:
    """Asks for each of the rows that are wanted, and for no other."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.open = list(wanted)

    def __call__(self, name: str, mode: Mode, dtype: torch.dtype) -> bool:
        """Whether it is one that is still to come."""
        found = [wanted for wanted in self.open if _fits(wanted, name, mode.name(""), str(dtype))]
        self.open = [wanted for wanted in self.open if wanted not in found]
        return bool(found)


def _fits(wanted: Wanted, name: str, mode: str, dtype: str) -> bool:
    """Whether a row is of the probe's name, mode and dtype. The mode is whole words: eval is not eval, grad."""
    return (
        name == wanted.probe
        and (not wanted.mode or mode == wanted.mode)
        and (not wanted.dtype or dtype.removeprefix("torch.") == wanted.dtype)
    )


def _correct(specimen: Specimen, family: str, data: CausalityData) -> Control:
    allowed = {"clean", "skipped", *(["noise"] if specimen.noise else [])}
    worst = next((row for row in data.probes if row.verdict not in allowed), None)
    shown = worst or next((row for row in data.probes if row.verdict == "noise"), None)
    return Control(
        name=specimen.name,
        family=family,
        probe=shown.name if shown else "every",
        wanted="noise at most" if specimen.noise else "clean",
        found=shown.verdict if shown else "clean",
        caught=worst is None,
        worst=max((row.worst for row in data.probes if row.worst is not None), default=None),
    )


def _row(data: CausalityData, wanted: Wanted) -> ProbeRow | None:
    """The first that fits."""
    return next((row for row in data.probes if _fits(wanted, row.name, _mode(row), row.dtype)), None)


def _mode(row: ProbeRow) -> str:
    """Without the kernel."""
    return row.mode.removesuffix(" eager").removesuffix(" sdpa")


def _claim(control: Control) -> Check:
    """A checker that is wrong about a known model can answer nothing: the check is not failed but undecided."""
    return Check(
        name="control",
        subject=control.name,
        passed=True if control.caught else None,
        value=control.found,
        op="==",
        limit=control.wanted,
        message=f"{control.family}: {control.probe} says {control.found}; it must say {control.wanted}",
    )
