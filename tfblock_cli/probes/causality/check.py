"""The protocol: run the plan, and say what the findings amount to and what they do not."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch

from tfblock_cli.account.memory import activations, forward_bytes
from tfblock_cli.account.weights import total
from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.probes.causality import cuts
from tfblock_cli.probes.causality.batch_independence import BATCH_SIZE
from tfblock_cli.probes.causality.declared import CAUSAL, Declared, of_model
from tfblock_cli.probes.causality.lengths import dimensions, small_length
from tfblock_cli.probes.causality.plan import Probe, Trial, in_full, name_of, on_a_ladder
from tfblock_cli.probes.causality.preflight import preflight
from tfblock_cli.probes.causality.session import EVAL, Mode, Session
from tfblock_cli.probes.causality.shrink import ABOVE, shrunk, shrunk_declaration
from tfblock_cli.probes.causality.verdict import Finding
from tfblock_cli.probes.causality.weights import redraw
from tfblock_cli.probes.factory import RAISED
from tfblock_cli.probes.room import require
from tfblock_cli.probes.subject import Subject, from_experiment, has_noise, with_kernel
from tfblock_cli.results.causality import CausalityData, Leak, ProbeRow
from tfblock_cli.results.progress import NoProgress, Progress
from tfblock_cli.results.result import Check, Result
from tfblock_cli.spec.experiment import BYTES, Experiment

Asked = Callable[[str, Mode, torch.dtype], bool]
"""Whether a probe is to be asked in a mode and a dtype. The preflight always is."""
BUDGET = 64
"""Forward passes at the experiment's own length, unless told otherwise."""


def expect_numbers(device: str) -> None:
    """Raise BadInput on a device that has shapes alone."""
    if device == "meta":
        raise BadInput(Problem("device", "there are no numbers on the device meta, and a leak is a matter of numbers"))


def run(experiment: Experiment, *, progress: Progress | None = None) -> Result[CausalityData]:
    """Check the experiment's decoder: in full at a small length, and on a ladder of cuts at its own.

    Raises:
        BadInput: The device has no numbers, or the memory does not suffice.
    """
    expect_numbers(experiment.device)
    settings, model = experiment.causality, experiment.model
    parameters = total(model)
    small = _small(experiment, shrink=parameters > ABOVE if settings.shrink == "auto" else settings.shrink)
    _expect_room(experiment, in_full=small.model == model)
    dtypes = tuple(getattr(torch, name) for name in settings.dtypes or ("float64", experiment.dtype))
    redrawn = settings.weights != "as-is"
    notes = []
    if small.model != model:
        notes.append(
            f"every cut was tried on a small copy of {total(small.model):,} parameters instead of {parameters:,}: "
            f"d_model {small.model.d_model}, {small.model.n_layers} layers, "
            f"{small.model.attention.n_heads} heads, {small.model.attention.n_kv_heads} key-value heads, the same "
            "kinds and patterns; at full size a ladder of cuts was"
        )
    if redrawn:
        notes.append("weights were redrawn so large that no leak is small (--weights as-is keeps those of the file)")
    full = Trial(
        subjects=_decoders(small, redrawn=redrawn, twin=True),
        seq_len=small.input.seq_len,
        declared=of_model(small.causality.declare, small.model),
        dtypes=_distinct(dtypes),
    )
    own: Trial | None = replace(full, seq_len=experiment.input.seq_len)
    if small.model != model:
        own = Trial(
            subjects=_decoders(experiment, redrawn=redrawn),
            seq_len=experiment.input.seq_len,
            declared=of_model(settings.declare, model),
            dtypes=_distinct(dtypes)[-1:],
        )
    elif small.input.seq_len == experiment.input.seq_len:
        own = None
    data = _check(full, own, seed=experiment.seed, progress=progress, budget=settings.budget)
    data = replace(
        data,
        declared=of_model(settings.declare, model).words,
        seq_len=experiment.input.seq_len,
        notes=tuple(notes),
    )
    return Result(
        command="causality",
        data=data,
        checks=claims(data),
        warnings=warnings_of(data),
        experiment=experiment.model_dump(),
    )


def check(
    subjects: Sequence[Subject],
    *,
    declared: Declared = CAUSAL,
    seq_len: int,
    small: int | None = None,
    seed: int = 0,
    dtypes: Sequence[torch.dtype] = (),
    budget: int = BUDGET,
    batch_size: int = 1,
    only: Collection[str] | Asked = (),
    progress: Progress | None = None,
) -> CausalityData:
    """Run the protocol on any subject, with the weights that it has.

    Args:
        subjects: The one in question, and others that must give the same results, such as its other kernel.
        declared: Which outputs may see which inputs.
        seq_len: T.
        small: A length at which every cut is tried; T itself unless given.
        seed: All content is drawn from it.
        dtypes: To compute in; float64, then the subject's own, unless given.
        budget: Forward passes at T, if that is not the length at which every cut is tried.
        batch_size: B: so many sequences at a time, or more where a probe needs them.
        only: The names of the probes to run, or which of them in which mode and dtype; the preflight always is. All of
            them unless given.
        progress: Told about every pass.
    """
    wanted = _distinct(dtypes or (torch.float64, subjects[0].dtype))
    full = Trial(subjects=subjects, seq_len=small or seq_len, declared=declared, dtypes=wanted, batch_size=batch_size)
    own = None if full.seq_len == seq_len else replace(full, seq_len=seq_len)
    asked = only if callable(only) else lambda name, mode, dtype: not only or name in only
    return _check(full, own, seed=seed, progress=progress, budget=budget, asked=asked)


def _check(
    full: Trial,
    own: Trial | None,
    *,
    seed: int,
    progress: Progress | None,
    budget: int = BUDGET,
    asked: Asked = lambda name, mode, dtype: True,
) -> CausalityData:
    progress = progress or NoProgress()
    full, fallback = _computable(full, seed)
    if own is not None:
        lost = torch.float64 not in full.dtypes
        own = replace(own, dtypes=_distinct(torch.float32 if lost and d == torch.float64 else d for d in own.dtypes))
    rows: list[ProbeRow] = []
    leaks: list[Leak] = []
    influence: tuple[tuple[float, ...], ...] = ()
    unfit: set[tuple[int, int, bool, torch.dtype]] = set()
    for trial, subject, mode, dtype, probes in chain(in_full(full), on_a_ladder(own, budget) if own else ()):
        key = (id(subject), trial.seq_len, mode.training, dtype)
        for probe in probes:
            if key in unfit:
                break
            if probe is not preflight and not asked(name_of(probe), mode, dtype):
                continue
            session = Session(
                subject=subject,
                mode=mode,
                dtype=dtype,
                seq_len=trial.seq_len,
                seed=seed,
                progress=progress,
                declared=trial.declared,
                batch_size=trial.batch_size,
            )
            finding = _ask(probe, session)
            if probe is preflight and finding.verdict != "clean":
                unfit.add(key)
            if finding.leak:
                leaks.append(finding.leak)
            if finding.influence is not None and not influence:
                influence = tuple(tuple(map(_rounded, row)) for row in finding.influence.tolist())
            rows.append(_row(name_of(probe), session, finding, fallback if dtype == full.dtypes[0] else ""))
    progress.stop()
    return CausalityData(
        declared=full.declared.words,
        seq_len=(own or full).seq_len,
        probes=tuple(rows),
        leaks=tuple(sorted(leaks, key=_order)),
        not_proven=_not_proven(full, own, rows, seed),
        influence=influence,
    )


def _order(leak: Leak) -> tuple[int, ...]:
    """The first pair of all first, since some probes are blind to it; what is not about the future stays behind."""
    return (0, leak.out, leak.in_) if leak.in_ > leak.out else (1,)


def _rounded(value: float) -> float:
    """To three digits: it is looked at, and nothing is computed from it."""
    return float(f"{value:.3g}")


def claims(data: CausalityData) -> tuple[Check, ...]:
    """Every row that was not skipped as a check."""
    return tuple(_claim(row) for row in data.probes if row.verdict != "skipped")


def warnings_of(data: CausalityData) -> tuple[str, ...]:
    """What passes and should not be there."""
    return tuple(
        f"{row.name}, {row.mode}: {row.message}; a correct decoder has none of it"
        for row in data.probes
        if row.verdict == "noise"
    )


def _small(experiment: Experiment, *, shrink: bool) -> Experiment:
    """The experiment at the length at which every cut is tried, as a small copy if it is to shrink."""
    settings, model, T = experiment.causality, experiment.model, experiment.input.seq_len
    if shrink:
        model = shrunk(model)
        settings = settings.model_copy(update={"declare": shrunk_declaration(settings.declare)})
    if T > 1 and model.vocab_size != 1:
        own = {BATCH_SIZE, *dimensions(model)}
        T = small_length(of_model(settings.declare, model), own, model.max_seq_len)
    size = experiment.input.model_copy(update={"seq_len": T})
    return experiment.model_copy(update={"model": model, "input": size, "causality": settings})


def _decoders(experiment: Experiment, *, redrawn: bool, twin: bool = False) -> tuple[Subject, ...]:
    """The experiment's decoder, and the same with the other kernel."""
    subject = from_experiment(experiment)
    if redrawn:
        redraw(subject.module, experiment.seed)
    if not twin:
        return (subject,)
    return subject, with_kernel(subject, "eager" if experiment.kernel == "sdpa" else "sdpa")


def _distinct(dtypes: "Iterator[torch.dtype] | Sequence[torch.dtype]") -> tuple[torch.dtype, ...]:
    return tuple(dict.fromkeys(dtypes))


def _computable(full: Trial, seed: int) -> tuple[Trial, str]:
    """With float32 in the place of float64 and the reason why, where the device or an operation has no float64."""
    if torch.float64 not in full.dtypes:
        return full, ""
    session = Session(
        subject=full.subjects[0],
        mode=EVAL,
        dtype=torch.float64,
        seq_len=full.seq_len,
        seed=seed,
        progress=NoProgress(),
        declared=full.declared,
        batch_size=full.batch_size,
    )
    try:
        with session.open():
            if not bool(session(session.draw("input")).isnan().any()):
                return full, ""
            reason = "the output is nan in it"
    except (RuntimeError, TypeError) as error:  # what torch raises, by device
        reason = _first_line(error)
    dtypes = _distinct(torch.float32 if dtype == torch.float64 else dtype for dtype in full.dtypes)
    return replace(full, dtypes=dtypes), f"float64 cannot be used here ({reason}), so float32 is; "


def _ask(probe: Probe, session: Session) -> Finding:
    """What the probe finds. A module that raises cannot be judged, and that is a finding, too."""
    try:
        with session.open():
            return probe(session)
    except RAISED as error:
        return Finding(verdict="inconclusive", worst=None, message=f"the module raised: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


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
    subject = f"{row.mode}, {row.dtype}, T={row.seq_len}"
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


def _not_proven(full: Trial, own: Trial | None, rows: Sequence[ProbeRow], seed: int) -> tuple[str, ...]:
    """What nothing above speaks of, told by what was run."""
    dtypes = ", ".join(dict.fromkeys(row.dtype for row in rows))
    kernels = ", ".join(subject.kernel for subject in full.subjects if subject.kernel)
    lengths = " and ".join(dict.fromkeys(str(row.seq_len) for row in rows))
    asked = {row.name for row in rows if row.verdict not in ("skipped", "inconclusive")}
    unasked = {
        "incremental": "generation with a cache",
        "padding": "padding",
        "documents": "packed documents",
    }
    missing = [words for name, words in unasked.items() if name not in asked]
    if has_noise(full.subjects[0].module):
        missing.append("what runs only while dropout or jitter is on")
    return (
        f"other weights and inputs than those drawn from seed {seed}",
        f"other lengths than T = {lengths}",
        f"larger batches than {max(BATCH_SIZE, full.batch_size)}",
        f"other dtypes than {dtypes}",
        f"other kernels than {kernels} (or compiled ones)" if kernels else "other kernels, or compiled ones",
        f"other devices than {full.subjects[0].device.type}",
        *([", ".join(missing)] if missing else []),
    )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _expect_room(experiment: Experiment, *, in_full: bool) -> None:
    """The model in its own dtype; in full also in float64, with what a recorded pass of the batch keeps."""
    need = forward_bytes(experiment)
    if in_full:
        size = experiment.input.model_copy(update={"batch_size": BATCH_SIZE})
        exact = experiment.model_copy(update={"dtype": "float64", "kernel": "eager", "input": size})
        need = BYTES[experiment.dtype] * total(experiment.model) + forward_bytes(exact) + activations(exact)
    require(need, experiment.device, f"causality of {experiment.name}")
