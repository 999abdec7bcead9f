"""What the causality check costs beside the bare forwards and vjps that it is made of, and what it says when shipped.

``cost``: T=256, d=128, L=2, float64, B=1: two draws of every cut, the map, truncation and incremental decoding. The
demand is at most 1.15 times. Bare and probe take turns in one process, and the ratio is of medians, so that a busy
machine slows both. Peak memory is taken of a short and of a long list of cuts.

``shipped``: every shipped experiment in float64 and bfloat16, as the command checks it: every cut at its small length.

    python benchmarks/causality.py cost [--rounds 5] [--seq 256]
    python benchmarks/causality.py shipped [--only NAME]
"""

import argparse
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor

from tfblock_cli.loading import load, shipped
from tfblock_cli.probes.causality import run
from tfblock_cli.probes.causality.cuts import every
from tfblock_cli.probes.causality.gradient_map import gradient_map
from tfblock_cli.probes.causality.incremental import incremental
from tfblock_cli.probes.causality.pieces import schedules
from tfblock_cli.probes.causality.session import EVAL, EVAL_GRAD, Mode, Session
from tfblock_cli.probes.causality.suffix_cuts import suffix_cuts
from tfblock_cli.probes.causality.truncation import truncation
from tfblock_cli.probes.subject import Subject, from_experiment
from tfblock_cli.results.progress import NoProgress
from tfblock_cli.spec.experiment import Experiment

DEMANDED = 1.15
Work = Callable[[Session], object]


def model(seq_len: int) -> Subject:
    """The one that is asked."""
    attention = {"n_heads": 4}
    table = {"dtype": "float64", "input": {"seq_len": seq_len}, "model": {"d_model": 128, "attention": attention}}
    return from_experiment(Experiment.model_validate(table))


def bare_cuts(asked: Session) -> None:
    """As many forwards as two draws of every cut."""
    x = asked.draw("input")
    for _ in range(1 + 2 * (asked.seq_len - 1)):
        asked.subject.module(x)


def bare_map(asked: Session) -> None:
    """One forward, T vjps."""
    module, T = asked.subject.module, asked.seq_len
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    leaves: list[Tensor] = []

    def leaf(module: object, args: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[0]

    handle = module.get_submodule(asked.subject.embedding).register_forward_hook(leaf)
    y = module(asked.draw("input"))
    handle.remove()
    cotangent = torch.zeros_like(y)
    for i in range(T):
        cotangent[:, i] = 1.0
        torch.autograd.grad(y, leaves[0], cotangent, retain_graph=i < T - 1)
        cotangent[:, i] = 0.0


def bare_truncation(asked: Session) -> None:
    """One forward of each length."""
    x = asked.draw("input")
    for k in (asked.seq_len, *every(asked.seq_len)):
        asked.subject.module(x[:, :k])


def bare_incremental(asked: Session) -> None:
    """One forward, and every schedule's chunks."""
    x = asked.draw("input")
    asked.subject.module(x)
    for pieces in schedules(asked.seq_len).values():
        cache, start = asked.subject.new_cache(1), 0
        for piece in pieces:
            asked.subject.module(x[:, start : start + piece], cache=cache)
            start += piece


def session(subject: Subject, seq_len: int, mode: Mode) -> Session:
    """A fresh meter on the model."""
    return Session(subject=subject, mode=mode, dtype=torch.float64, seq_len=seq_len, seed=0, progress=NoProgress())


def seconds(work: Work, asked: Session) -> float:
    """CPU seconds of one run."""
    with asked.open():
        start = time.process_time()
        work(asked)
        return time.process_time() - start


def peak(asked: Session, cuts: int) -> int:
    """Bytes that Python holds at most during so many cuts; torch's own are held by Python objects one at a time."""
    with asked.open():
        tracemalloc.start()
        suffix_cuts(asked, every(asked.seq_len)[:cuts], (1.0,))
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return held


PROBES: Mapping[str, tuple[Work, Work, Mode]] = {
    "suffix cuts, two draws": (lambda asked: suffix_cuts(asked, every(asked.seq_len)), bare_cuts, EVAL),
    "gradient map": (gradient_map, bare_map, EVAL_GRAD),
    "truncation": (lambda asked: truncation(asked, every(asked.seq_len)), bare_truncation, EVAL),
    "incremental": (incremental, bare_incremental, EVAL),
}


def cost(rounds: int, seq_len: int) -> bool:
    """Whether the whole costs no more than is demanded, and memory does not grow with the number of cuts."""
    subject = model(seq_len)
    totals = [0.0, 0.0]
    for name, (probe, bare, mode) in PROBES.items():
        seconds(bare, session(subject, seq_len, mode))  # the first run makes the tables
        pairs = [tuple(seconds(work, session(subject, seq_len, mode)) for work in (probe, bare)) for _ in range(rounds)]
        ours, theirs = (median(column) for column in zip(*pairs, strict=True))
        totals = [totals[0] + ours, totals[1] + theirs]
        print(f"{name:24} {ours:7.2f} s, bare {theirs:7.2f} s, ratio {ours / theirs:.3f}")
    ratio = totals[0] / totals[1]
    print(
        f"{'OK' if ratio <= DEMANDED else 'MISS':4} all {totals[0]:.2f} s, bare {totals[1]:.2f} s, ratio {ratio:.3f}, "
        f"demanded <= {DEMANDED}: medians of {rounds} rounds"
    )
    few, many = (peak(session(subject, seq_len, EVAL), cuts) for cuts in (16, seq_len - 1))
    flat = many <= 2 * few
    print(f"{'OK' if flat else 'MISS':4} peak of 16 cuts {few:,} bytes, of {seq_len - 1} cuts {many:,} bytes")
    return ratio <= DEMANDED and flat


def sweep(only: str) -> bool:
    """Whether every shipped experiment is clean, in float64 and in bfloat16."""
    sound = True
    for name in [only] if only else shipped():
        start = time.process_time()
        data = run(load(name, sets=['causality.dtypes=["float64", "bfloat16"]', "gradflow={}"]).experiment).data
        verdicts = Counter(row.verdict for row in data.probes)
        sound &= set(verdicts) <= {"clean", "skipped"}
        narrow = [row for row in data.probes if row.dtype == "bfloat16" and row.limit > 1e-3]
        used = max(((row.worst or 0) / row.limit for row in narrow), default=0.0)
        print(
            f"{'OK' if set(verdicts) <= {'clean', 'skipped'} else 'MISS':4} {name}: "
            f"{', '.join(f'{n} {verdict}' for verdict, n in verdicts.items())}; of what rounding may do in bfloat16 "
            f"{used:.0%} at most; {time.process_time() - start:.0f} CPU s"
        )
        for row in data.probes:
            if row.verdict == "skipped":
                print(f"     skipped {row.name}, {row.mode}, {row.dtype}, T={row.seq_len}: {row.message}")
    return sound


def main() -> int:
    """0 where the demands are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    costs = commands.add_parser("cost", help="of the probes, beside bare forwards and vjps")
    costs.add_argument("--rounds", type=int, default=5, help="of which the median counts (%(default)s)")
    costs.add_argument("--seq", type=int, default=256, help="T (%(default)s)")
    ships = commands.add_parser("shipped", help="every shipped experiment in float64 and bfloat16")
    ships.add_argument("--only", default="", metavar="NAME", help="one of them")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    met = cost(chosen.rounds, chosen.seq) if chosen.command == "cost" else sweep(chosen.only)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
