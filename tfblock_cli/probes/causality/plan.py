"""Plan: which probes run in which modes and dtypes, in which order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.probes.causality import cuts
from tfblock_cli.probes.causality.batch_independence import batch_independence
from tfblock_cli.probes.causality.declared import CAUSAL, Declared
from tfblock_cli.probes.causality.documents import documents
from tfblock_cli.probes.causality.gradient_map import gradient_map
from tfblock_cli.probes.causality.head_groups import head_groups
from tfblock_cli.probes.causality.incremental import incremental
from tfblock_cli.probes.causality.lengths import affordable
from tfblock_cli.probes.causality.mask_readout import mask_readout
from tfblock_cli.probes.causality.padding import padding
from tfblock_cli.probes.causality.preflight import preflight
from tfblock_cli.probes.causality.rope_shift import rope_shift
from tfblock_cli.probes.causality.session import EVAL, EVAL_GRAD, TRAIN, Mode, Session
from tfblock_cli.probes.causality.suffix_cuts import TWO_SCALES, suffix_cuts
from tfblock_cli.probes.causality.truncation import truncation
from tfblock_cli.probes.causality.verdict import Finding
from tfblock_cli.probes.subject import Subject
from tfblock_cli.spec.position import RoPE

Probe = Callable[[Session], Finding]
EVERYWHERE: tuple[Probe, ...] = (preflight, batch_independence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A model at a length.

    Attributes:
        subjects: The one in question, and others that must give the same results, such as its other kernel.
        seq_len: T.
        declared: Which outputs may see which inputs.
        dtypes: To compute in; the first one gets every probe.
        batch_size: B: so many sequences at a time, or more where a probe needs them.
    """

    subjects: Sequence[Subject]
    seq_len: int
    declared: Declared = CAUSAL
    dtypes: tuple[torch.dtype, ...] = (torch.float64,)
    batch_size: int = 1


class Step(NamedTuple):
    """Some probes of one subject in one mode and dtype."""

    trial: Trial
    subject: Subject
    mode: Mode
    dtype: torch.dtype
    probes: tuple[Probe, ...]


def in_full(trial: Trial) -> Iterator[Step]:
    """All probes and every cut, twice, for the subject in question.

    The other modes get one draw of every cut, of two samples: they have to show that a mode does not take another,
    leaking way through the model.
    """
    subject, *others = trial.subjects
    exact, *dtypes = trial.dtypes
    if subject.vocab_size == 1:
        yield Step(trial, subject, EVAL, exact, (nothing_to_cut,))
        return
    if trial.seq_len == 1:
        yield Step(trial, subject, EVAL, exact, (*EVERYWHERE, nothing_to_cut))
        return
    every = cuts.every(trial.seq_len)
    briefly = partial(suffix_cuts, cuts=every, scales=TWO_SCALES[:1], batch_size=2)
    yield Step(trial, subject, EVAL, exact, (*EVERYWHERE, partial(suffix_cuts, cuts=every)))
    yield Step(trial, subject, EVAL_GRAD, exact, (gradient_map,))
    yield Step(trial, subject, EVAL, exact, (partial(truncation, cuts=every), incremental, *_own(trial, subject)))
    yield from _foreign_padding(trial, subject, exact)
    yield Step(trial, subject, EVAL_GRAD, exact, (briefly,))
    yield Step(trial, subject, TRAIN, exact, (*EVERYWHERE, briefly))
    for other in others:
        yield Step(trial, other, EVAL, exact, (*EVERYWHERE, briefly, incremental, *_own(trial, other)))
        yield from _foreign_padding(trial, other, exact)
        yield Step(trial, other, EVAL_GRAD, exact, (briefly,))
        yield Step(trial, other, TRAIN, exact, (*EVERYWHERE, briefly))
    # with a foreign module a tolerance for other shapes in any dtype but the most exact one is a guess
    pieces = (partial(truncation, cuts=every), incremental) if isinstance(subject.module, Decoder) else ()
    for dtype in dtypes:
        yield Step(trial, subject, EVAL, dtype, (preflight, briefly, *pieces))


def on_a_ladder(trial: Trial, budget: int) -> Iterator[Step]:
    """As many cuts as a budget of forward passes allows, in every dtype: most to suffix cuts, the rest to truncation.

    Naming a leak's pair and stage comes on top.
    """
    left = max(budget - 8, 2)  # four passes of the preflight, one of each probe without a cut, in 16 bits two more
    shorter = affordable(trial.seq_len, max(left // 4, 1))
    some = affordable(trial.seq_len, left - len(shorter))
    for dtype in trial.dtypes:
        probes = (
            preflight,
            partial(suffix_cuts, cuts=some, scales=TWO_SCALES[:1]),
            partial(truncation, cuts=shorter),
        )
        yield Step(trial, trial.subjects[0], EVAL, dtype, probes)


def _own(trial: Trial, subject: Subject) -> Iterator[Probe]:
    """What only our own decoder can be asked, and what only a declaration of documents makes a question."""
    if any(pattern.kind == "documents" for pattern in trial.declared.layers):
        yield documents
    if isinstance(subject.module, Decoder):
        yield from (mask_readout, head_groups, padding)
        if isinstance(subject.module.spec.position, RoPE):
            yield rope_shift


def _foreign_padding(trial: Trial, subject: Subject, dtype: torch.dtype) -> Iterator[Step]:
    """Of a module that is not ours: where it can be told about padding, or is known to be one that cannot.

    In float32 where it casts to that anyway: float64's smallest number, with which transformers masks, is -inf in a
    softmax in float32, and a row of the padding that sees nothing is nan.
    """
    if not isinstance(subject.module, Decoder) and (subject.takes_padding or subject.untold):
        yield Step(trial, subject, EVAL, dtype if subject.narrowest == torch.float64 else torch.float32, (padding,))


def nothing_to_cut(session: Session) -> Finding:
    """One token has no future, and one word no other: nothing can leak, and nothing is shown."""
    if session.subject.vocab_size == 1:
        why = "a vocabulary of one word leaves nothing to replace, so nothing is proven: use at least 2 (--vocab 2)"
    else:
        why = "a single token has no future, so nothing can leak and nothing is proven: use at least 2 (--seq 2)"
    return Finding(verdict="inconclusive", worst=None, message=why)


def name_of(probe: Probe) -> str:
    """As reports have it."""
    function = probe.func if isinstance(probe, partial) else probe
    return "suffix_cuts" if function is nothing_to_cut else function.__name__
