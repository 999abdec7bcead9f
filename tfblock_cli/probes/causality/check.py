"""The protocol: which probes run in which modes, in which order, and what their findings amount to."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from tfblock_cli.account.memory import activations, forward_bytes
from tfblock_cli.account.weights import total
from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.probes.causality import cuts
from tfblock_cli.probes.causality.batch_independence import BATCH_SIZE, batch_independence
from tfblock_cli.probes.causality.gradient_map import gradient_map
from tfblock_cli.probes.causality.preflight import preflight
from tfblock_cli.probes.causality.session import EVAL, EVAL_GRAD, TRAIN, Mode, Session
from tfblock_cli.probes.causality.suffix_cuts import TWO_SCALES, suffix_cuts
from tfblock_cli.probes.causality.truncation import truncation
from tfblock_cli.probes.causality.verdict import Finding
from tfblock_cli.probes.room import require
from tfblock_cli.probes.subject import Subject, from_experiment, with_kernel
from tfblock_cli.results.causality import CausalityData, Leak, ProbeRow
from tfblock_cli.results.progress import NoProgress, Progress
from tfblock_cli.results.result import Check, Result
from tfblock_cli.spec.experiment import BYTES, Experiment

Probe = Callable[[Session], Finding]


def run(experiment: Experiment, *, progress: Progress | None = None) -> Result[CausalityData]:
    """Check the experiment's decoder, under both kernels, at its own length.

    Raises:
        BadInput: The device has no numbers, or the memory does not suffice.
    """
    if experiment.device == "meta":
        raise BadInput(Problem("device", "there are no numbers on the device meta, and a leak is a matter of numbers"))
    _expect_room(experiment)
    subject = from_experiment(experiment)
    twin = with_kernel(subject, "eager" if experiment.kernel == "sdpa" else "sdpa")
    data = check(
        (subject, twin),
        declared=experiment.causality.declare,
        seq_len=experiment.input.seq_len,
        seed=experiment.seed,
        progress=progress or NoProgress(),
    )
    return Result(
        command="causality",
        data=data,
        checks=tuple(map(_claim, data.probes)),
        warnings=tuple(
            f"{row.name}, {row.mode}: {row.message}; a correct decoder has none of it"
            for row in data.probes
            if row.verdict == "noise"
        ),
        experiment=experiment.model_dump(),
    )


def check(
    subjects: Sequence[Subject], *, declared: str = "causal", seq_len: int, seed: int, progress: Progress
) -> CausalityData:
    """Run the protocol.

    Args:
        subjects: The one in question, and others that must give the same results, such as its other kernel.
        declared: What the model is declared to be.
        seq_len: T.
        seed: All content is drawn from it.
        progress: Told about every pass.
    """
    exact, fallback = _exact_dtype(subjects[0], seq_len, seed)
    rows: list[ProbeRow] = []
    leaks: list[Leak] = []
    unfit: set[tuple[str, bool, torch.dtype]] = set()
    for subject, mode, dtype, probes in _plan(subjects, exact, seq_len):
        key = (subject.kernel, mode.training, dtype)
        for probe in probes:
            if key in unfit:
                break
            session = Session(subject=subject, mode=mode, dtype=dtype, seq_len=seq_len, seed=seed, progress=progress)
            finding = _ask(probe, session)
            if probe is preflight and finding.verdict != "clean":
                unfit.add(key)
            if finding.leak:
                leaks.append(finding.leak)
            rows.append(_row(_name(probe), session, finding, fallback if dtype == exact else ""))
    progress.stop()
    return CausalityData(
        declared=declared,
        seq_len=seq_len,
        probes=tuple(rows),
        leaks=tuple(leaks),
        not_proven=_not_proven(subjects, rows, seq_len, seed),
    )


class _Step(NamedTuple):
    """Some probes of one subject in one mode and dtype."""

    subject: Subject
    mode: Mode
    dtype: torch.dtype
    probes: tuple[Probe, ...]


def _plan(subjects: Sequence[Subject], exact: torch.dtype, seq_len: int) -> Iterator[_Step]:
    """All probes and every cut, twice, for the subject in question.

    The other modes get one draw, and at large T a ladder of cuts: they have to show that a mode does not take
    another, leaking way through the model.
    """
    subject, *others = subjects
    everywhere: tuple[Probe, ...] = (preflight, batch_independence)
    if subject.vocab_size == 1:
        yield _Step(subject, EVAL, exact, (nothing_to_cut,))
        return
    if seq_len == 1:
        yield _Step(subject, EVAL, exact, (*everywhere, nothing_to_cut))
        return
    every, some = cuts.every(seq_len), cuts.ladder(seq_len)
    briefly = partial(suffix_cuts, cuts=some, scales=TWO_SCALES[:1])
    yield _Step(subject, EVAL, exact, (*everywhere, partial(suffix_cuts, cuts=every)))
    yield _Step(subject, EVAL_GRAD, exact, (gradient_map,))
    yield _Step(subject, EVAL, exact, (partial(truncation, cuts=every),))
    for other in others:
        yield _Step(other, EVAL, exact, (*everywhere, briefly))
    yield _Step(subject, TRAIN, exact, (*everywhere, briefly))
    if subject.dtype != exact:
        yield _Step(subject, EVAL, subject.dtype, (preflight, briefly))


def nothing_to_cut(session: Session) -> Finding:
    """One token has no future, and one word no other: nothing can leak, and nothing is shown."""
    if session.subject.vocab_size == 1:
        why = "a vocabulary of one word leaves nothing to replace, so nothing is proven: use at least 2 (--vocab 2)"
    else:
        why = "a single token has no future, so nothing can leak and nothing is proven: use at least 2 (--seq 2)"
    return Finding(verdict="inconclusive", worst=None, message=why)


def _exact_dtype(subject: Subject, seq_len: int, seed: int) -> tuple[torch.dtype, str]:
    """float64, or float32 and the reason why, where the device or an operation has no float64."""
    session = Session(
        subject=subject, mode=EVAL, dtype=torch.float64, seq_len=seq_len, seed=seed, progress=NoProgress()
    )
    try:
        with session.open():
            if bool(session(session.draw("input")).isfinite().all()):
                return torch.float64, ""
            reason = "the output is not finite in it"
    except (RuntimeError, TypeError) as error:  # what torch raises, by device
        reason = _first_line(error)
    return torch.float32, f"float64 cannot be used here ({reason}), so float32 is; "


def _ask(probe: Probe, session: Session) -> Finding:
    """What the probe finds. A module that raises cannot be judged, and that is a finding, too."""
    try:
        with session.open():
            return probe(session)
    except RuntimeError as error:
        return Finding(verdict="inconclusive", worst=None, message=f"the module raised: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _name(probe: Probe) -> str:
    function = probe.func if isinstance(probe, partial) else probe
    return "suffix_cuts" if function is nothing_to_cut else function.__name__


def _row(name: str, session: Session, finding: Finding, preface: str) -> ProbeRow:
    return ProbeRow(
        name=name,
        mode=session.mode_name,
        seq_len=session.seq_len,
        dtype=_plain(session.dtype),
        verdict=finding.verdict,
        worst=finding.worst,
        limit=finding.limit,
        forwards=session.forwards,
        vjps=session.vjps,
        cuts_tried=len(finding.cuts),
        cuts_total=session.seq_len - 1,
        pairs_covered=cuts.pairs_covered(finding.cuts, session.seq_len) if finding.cuts else 0.0,
        message=preface + finding.message,
    )


def _claim(row: ProbeRow) -> Check:
    """The row as a check: a leak and a dead path fail, what cannot be judged is neither passed nor failed."""
    subject = f"{row.mode}, {row.dtype}"
    if row.verdict == "no-flow":
        return Check(name=row.name, subject=subject, passed=False, value=0.0, op=">", limit=0.0, message=row.message)
    return Check(
        name=row.name,
        subject=subject,
        passed=None if row.verdict == "inconclusive" else row.verdict != "LEAK",
        value=row.worst,
        op="<=",
        limit=row.limit,
        message=row.message,
    )


def _not_proven(subjects: Sequence[Subject], rows: Sequence[ProbeRow], seq_len: int, seed: int) -> tuple[str, ...]:
    """What nothing above speaks of, told by what was run."""
    dtypes = ", ".join(dict.fromkeys(row.dtype for row in rows))
    kernels = ", ".join(subject.kernel for subject in subjects if subject.kernel)
    return (
        f"other weights and inputs than those drawn from seed {seed}",
        f"other lengths than T = {seq_len}",
        f"other dtypes than {dtypes}",
        f"other kernels than {kernels} (or compiled ones)" if kernels else "other kernels, or compiled ones",
        f"other devices than {subjects[0].device.type}",
        "generation with a cache, padding and packed documents",
    )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _expect_room(experiment: Experiment) -> None:
    """The model in its own dtype and in float64, and what a recorded pass of the batch keeps."""
    size = experiment.input.model_copy(update={"batch_size": BATCH_SIZE})
    exact = experiment.model_copy(update={"dtype": "float64", "kernel": "eager", "input": size})
    own_weights = BYTES[experiment.dtype] * total(experiment.model)
    require(
        own_weights + forward_bytes(exact) + activations(exact), experiment.device, f"causality of {experiment.name}"
    )
