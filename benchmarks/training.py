"""What training costs beside a bare loop, and the claims about warmup on real text.

    python benchmarks/training.py cost [--rounds 5] [--steps 200]
    python benchmarks/training.py claims [--jobs 2] [--seeds 3]

cost: CPU seconds of one run of [gradflow.train] over those of the loop alone (batch, forward, backward, step) on the
same model, taking turns; the ratio is of medians, and at most 1.1 is demanded.
claims: 12 layers, d 64, the help topics of Python. Post-norm without warmup at unit-gain initialization does not learn
within 200 steps, pre-norm does; at gpt2 initialization both do; with 500 steps of warmup in 1000 post-norm
learns, at 3e-4.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
import torch.nn.functional as F

import tfblock_cli as tfblock
from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes.gradflow.training import text, trial
from tfblock_cli.results.training import Training

DEMANDED = 1.1
WEAK = ["model.initialization.kind=gpt2", "model.initialization.embedding_std=0.02"]
Claim = tuple[str, list[str], dict[str, tuple[str, ...]]]
FAILS = ("COLLAPSED", "STUCK", "SLOW", "DIVERGED")
CLAIMS: tuple[Claim, ...] = (
    ("unit, no warmup, 200 steps, 3e-4", ["gradflow.train.lr=[3e-4]"], {"pre": ("LEARNS",), "post": FAILS}),
    ("unit, no warmup, 200 steps, 1e-3", ["gradflow.train.lr=[1e-3]"], {"pre": ("LEARNS",), "post": FAILS}),
    ("gpt2, no warmup, 400 steps, 3e-4", [*WEAK, "gradflow.train.lr=[3e-4]", "gradflow.train.steps=400"],
     {"pre": ("LEARNS",), "post": ("LEARNS",)}),
    ("unit, 500 steps of warmup, 1000 steps, 3e-4",
     ["gradflow.train.lr=[3e-4]", "gradflow.train.steps=1000", "gradflow.train.warmup=[500]"],
     {"pre": ("LEARNS",), "post": ("LEARNS",)}),
)  # fmt: skip
PLAIN = [
    "model.vocab_size=256",
    "gradflow.expect=[]",
    "gradflow.seeds=1",
    "gradflow.train.text=python_docs",
    "gradflow.train.steps=200",
    "gradflow.train.warmup=[0]",
]


def cpu(run: Callable[[], object]) -> float:
    """CPU seconds."""
    start = time.process_time()
    run()
    return time.process_time() - start


def cost(rounds: int, steps: int) -> None:
    """Print the ratio."""
    asked = tfblock.load("warmup", set=[*PLAIN, f"gradflow.train.steps={steps}"])
    settings, T = asked.gradflow.train, asked.input.seq_len
    sha256 = text.read(settings.text).sha256  # the text is read once
    task = {"experiment": asked.model_dump(mode="json"), "lr": 3e-4, "warmup": 0, "text_sha256": sha256}

    def bare() -> None:
        source, decoder, random = text.read(settings.text), tfblock.build(asked), generator(0, "gradflow.train")
        optimizer = torch.optim.AdamW(decoder.parameters(), 3e-4, betas=(0.9, 0.95), weight_decay=0, fused=True)
        for _ in range(steps):
            windows_BT = source.batch(settings.batch_size, T, random)
            optimizer.zero_grad()
            loss = F.cross_entropy(decoder(windows_BT[:, :-1]).flatten(0, 1), windows_BT[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def whole_run() -> None:
        if error := trial.run(task).get("error"):
            raise SystemExit(f"the run failed: {error}")

    bare()
    taken = [(cpu(whole_run), cpu(bare)) for _ in range(rounds)]
    whole, loop = (median(times) for times in zip(*taken, strict=True))
    ratio = whole / loop
    mark = "ok  " if ratio <= DEMANDED else "MISS"
    print(
        f"{mark} {steps} steps: {whole:.2f} s, bare loop {loop:.2f} s, ratio {ratio:.3f}, at most {DEMANDED} demanded"
    )


def claims(jobs: int, seeds: int) -> None:
    """Print every claim beside what is found."""
    for words, sets, expected in CLAIMS:
        asked = tfblock.load("warmup", set=[*PLAIN, f"gradflow.train.seeds={seeds}", *sets])
        training = tfblock.gradflow(asked, jobs=jobs).data.training
        assert training is not None
        print(f"{words}; unigram entropy {training.unigram_entropy:.3f}, bigram {training.bigram_entropy:.3f}")
        for line in _judged(training, expected):
            print(f"  {line}", flush=True)


def _judged(training: Training, expected: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for placement, verdicts in expected.items():
        trials = [trial for trial in training.trials if trial.placement == placement]
        mark = "ok  " if all(trial.verdict in verdicts for trial in trials) else "MISS"
        found = ", ".join(f"{trial.held_out_loss:.3f} {trial.verdict} cos {trial.cosine:.2f}" for trial in trials)
        yield f"{mark} {placement}: {found}; expected {' or '.join(verdicts)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_cost = commands.add_parser("cost")
    of_cost.add_argument("--rounds", type=int, default=5)
    of_cost.add_argument("--steps", type=int, default=200)
    of_claims = commands.add_parser("claims")
    of_claims.add_argument("--jobs", type=int, default=2)
    of_claims.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if given.command == "cost":
        cost(given.rounds, given.steps)
    else:
        claims(given.jobs, given.seeds)
