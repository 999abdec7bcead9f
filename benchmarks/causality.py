"""What the causality check costs beside the bare forwards and vjps that it is made of.

T=256, d=128, L=2, float64, B=1: two draws of every cut, the map, truncation and incremental decoding. The demand is
at most 1.15 times. Bare and probe take turns in one process, and the ratio is of medians, so that a busy machine
slows both. Peak memory is taken of a short and of a long list of cuts.

    python benchmarks/causality.py [rounds] [T]
"""

import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor

from tfblock_cli.probes.causality.cuts import every
from tfblock_cli.probes.causality.gradient_map import gradient_map
from tfblock_cli.probes.causality.incremental import incremental, schedules
from tfblock_cli.probes.causality.session import EVAL, EVAL_GRAD, Mode, Session
from tfblock_cli.probes.causality.suffix_cuts import suffix_cuts
from tfblock_cli.probes.causality.truncation import truncation
from tfblock_cli.probes.subject import from_experiment
from tfblock_cli.results.progress import NoProgress
from tfblock_cli.spec.experiment import Experiment

DEMANDED = 1.15
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
T = int(sys.argv[2]) if len(sys.argv) > 2 else 256
Work = Callable[[Session], object]


def session(mode: Mode) -> Session:
    """A fresh meter on the one model."""
    return Session(subject=SUBJECT, mode=mode, dtype=torch.float64, seq_len=T, seed=0, progress=NoProgress())


def bare_cuts(asked: Session) -> None:
    """As many forwards as two draws of every cut."""
    x = asked.draw("input")
    for _ in range(1 + 2 * (T - 1)):
        SUBJECT.module(x)


def bare_map(asked: Session) -> None:
    """One forward, T vjps."""
    for parameter in SUBJECT.module.parameters():
        parameter.requires_grad_(False)
    leaves: list[Tensor] = []

    def leaf(module: object, args: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[0]

    handle = SUBJECT.module.get_submodule(SUBJECT.embedding).register_forward_hook(leaf)
    y = SUBJECT.module(asked.draw("input"))
    handle.remove()
    cotangent = torch.zeros_like(y)
    for i in range(T):
        cotangent[:, i] = 1.0
        torch.autograd.grad(y, leaves[0], cotangent, retain_graph=i < T - 1)
        cotangent[:, i] = 0.0


def bare_truncation(asked: Session) -> None:
    """One forward of each length."""
    x = asked.draw("input")
    for k in (T, *every(T)):
        SUBJECT.module(x[:, :k])


def bare_incremental(asked: Session) -> None:
    """One forward, and every schedule's chunks."""
    x = asked.draw("input")
    SUBJECT.module(x)
    for pieces in schedules(T).values():
        cache, start = SUBJECT.new_cache(1), 0
        for piece in pieces:
            SUBJECT.module(x[:, start : start + piece], cache=cache)
            start += piece


def seconds(work: Work, mode: Mode) -> float:
    """CPU seconds of one run in a fresh session."""
    asked = session(mode)
    with asked.open():
        start = time.process_time()
        work(asked)
        return time.process_time() - start


def peak(cuts: int) -> int:
    """Bytes that Python holds at most during so many cuts; torch's own are held by Python objects one at a time."""
    asked = session(EVAL)
    with asked.open():
        tracemalloc.start()
        suffix_cuts(asked, every(T)[:cuts], (1.0,))
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return held


EXPERIMENT = Experiment.model_validate(
    {"dtype": "float64", "input": {"seq_len": T}, "model": {"d_model": 128, "attention": {"n_heads": 4}}}
)
SUBJECT = from_experiment(EXPERIMENT)
PROBES: Mapping[str, tuple[Work, Work, Mode]] = {
    "suffix cuts, two draws": (lambda asked: suffix_cuts(asked, every(T)), bare_cuts, EVAL),
    "gradient map": (gradient_map, bare_map, EVAL_GRAD),
    "truncation": (lambda asked: truncation(asked, every(T)), bare_truncation, EVAL),
    "incremental": (incremental, bare_incremental, EVAL),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    totals = [0.0, 0.0]
    for name, (probe, bare, mode) in PROBES.items():
        seconds(bare, mode)  # the first run makes the tables
        pairs = [(seconds(probe, mode), seconds(bare, mode)) for _ in range(ROUNDS)]
        ours, theirs = (median(column) for column in zip(*pairs, strict=True))
        totals = [totals[0] + ours, totals[1] + theirs]
        print(f"{name:24} {ours:7.2f} s, bare {theirs:7.2f} s, ratio {ours / theirs:.3f}")
    ratio = totals[0] / totals[1]
    print(f"{'all':24} {totals[0]:7.2f} s, bare {totals[1]:7.2f} s, ratio {ratio:.3f}, demanded <= {DEMANDED}")
    few, many = peak(16), peak(T - 1)
    print(f"peak of 16 cuts {few:,} bytes, of {T - 1} cuts {many:,} bytes")
    sys.exit(int(ratio > DEMANDED or many > 2 * few))
