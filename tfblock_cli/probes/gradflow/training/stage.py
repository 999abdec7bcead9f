"""train: every run of [gradflow.train], and what all of them say together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import isfinite, nan
from typing import NamedTuple

from tfblock_cli.account.memory import backward_bytes, forward_bytes
from tfblock_cli.account.weights import total
from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.probes.gradflow.statistics import Values
from tfblock_cli.probes.gradflow.training import text, trial
from tfblock_cli.probes.gradflow.training.cells import Executors, Finished, Here, Plain, processes, run_cells
from tfblock_cli.probes.room import require
from tfblock_cli.provenance import version
from tfblock_cli.results.gradflow import Row
from tfblock_cli.results.progress import Progress
from tfblock_cli.results.result import Check
from tfblock_cli.results.training import Condition, Training, Trial
from tfblock_cli.spec.experiment import BYTES, Experiment, InputSpec

Variants = Mapping[tuple[str, int], Experiment]
"""The experiment of every placement and depth."""


class Key(NamedTuple):
    """What tells one run from another."""

    placement: str
    condition: Condition
    seed: int

    @property
    def name(self) -> str:
        """Also that of its file."""
        depth, lr, warmup = self.condition
        return f"{self.placement}-depth{depth}-lr{lr!r}-warmup{warmup}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Trained:
    """Every run, by its key."""

    text: text.Text
    found: Mapping[Key, Plain]

    def runs(self, placement: str, condition: Condition) -> dict[int, Plain]:
        """Seed by seed."""
        return {key.seed: run for key, run in self.found.items() if key[:2] == (placement, condition)}

    def values(self, placement: str, condition: Condition, metric: str) -> Values:
        """One metric, seed by seed; nan where a run has none."""
        return {seed: numbers(run)[metric] for seed, run in self.runs(placement, condition).items()}

    def is_finite(self, placement: str, condition: Condition) -> bool:
        """Whether no run's loss was nan or inf; a run whose training loss was has nan on the held-out text."""
        runs = self.runs(placement, condition).values()
        return all(isfinite(loss) for run in runs for _, loss, _ in run.get("held_out", ()))

    def verdicts(self, placement: str, condition: Condition) -> dict[int, str]:
        """The verdict, seed by seed; "" where a run did not come to an end."""
        return {seed: run.get("verdict", "") for seed, run in self.runs(placement, condition).items()}

    def error(self, placement: str, condition: Condition) -> str:
        """Why some run did not come to an end; "" if all did."""
        errors = (run["error"] for run in self.runs(placement, condition).values())
        return next(filter(None, errors), "")

    def rows(self) -> Iterator[Row]:
        """The curves, long format."""
        for key, run in self.found.items():
            row = partial(_row, key)
            for step, loss in run.get("loss", ()):
                yield row(step, "model", None, "loss", loss)
            for step, loss, cosine in run.get("held_out", ()):
                yield row(step, "model", None, "held_out_loss", loss)
                yield row(step, "residual", key.condition.depth - 1, "cosine", cosine)
            for step, group, layer, ratio in run.get("updates", ()):
                yield row(step, group, layer, "update_ratio", ratio)

    def checks(self) -> Iterator[Check]:
        """One for every run that did not come to an end: nothing can be said of it."""
        for key, run in self.found.items():
            if run["error"]:
                yield Check(
                    name="train.finished",
                    subject=f"{key.placement}, {key.condition.words}, seed {key.seed}",
                    passed=None,
                    value=run["error"],
                    op="==",
                    limit="",
                    message=f"the run did not come to an end: {run['error']}",
                )

    def cost(self, what: str) -> int:
        """How many ``forwards`` or ``vjps`` all runs took."""
        return sum(run.get(what, 0) for run in self.found.values())


def expect_text(experiment: Experiment) -> text.Text:
    """The text of [gradflow.train].

    Raises:
        BadInput: With every fault: it cannot be had, or not be learned by the model.
    """
    settings, T, V = experiment.gradflow.train, experiment.input.seq_len, experiment.model.vocab_size
    learned = text.read(settings.text)
    where, wrong = "gradflow.train.text", []
    if learned.symbols > V:
        message = f"the text has {learned.symbols} different characters; --vocab must be at least that, not {V}"
        wrong.append(Problem(where, message))
    if min(len(learned.held_out), len(learned.training)) <= T:
        message = (
            f"the text has {learned.characters:,} characters, of which {len(learned.held_out):,} are held out: too few "
            f"for sequences of {T}"
        )
        wrong.append(Problem(where, message))
    elif settings.margin >= (known := learned.unigram_loss(T)):
        message = f"nothing can learn: whoever knows frequencies alone is at {known:.3f} nats, the margin above 0"
        wrong.append(Problem(f"gradflow.train.margin = {settings.margin:g}", message))
    if not all(block.attention.pattern.is_causal for block in experiment.model.blocks()):
        message = "a pattern that is not causal sees the character that it is to predict; leave [gradflow.train] out"
        wrong.append(Problem("model.attention.pattern", message))
    if wrong:
        raise BadInput(*wrong)
    return learned


def expect_memory(variants: Variants, jobs: int) -> None:
    """Raise BadInput unless there is memory for so many runs at once of any placement and depth."""
    for variant in variants.values():
        helps = "a smaller gradflow.train.batch_size, a shorter sequence (--seq), a smaller model, fewer --jobs"
        what = f"training, {jobs} at once," if jobs > 1 else "training"
        require(jobs * _bytes(variant), variant.device, what, helps)


def train(
    experiment: Experiment,
    variants: Variants,
    learned: text.Text,
    *,
    progress: Progress,
    finished: Finished,
    jobs: int,
    executors: Executors | None,
) -> Trained:
    """Run what [gradflow.train] asks for, except what ``finished`` has already.

    Args:
        experiment: With its steps.
        variants: Of every placement and depth.
        learned: What ``expect_text`` gave.
        progress: Counts steps.
        finished: The runs of an earlier call; what is run is put into it.
        jobs: How many runs at once: in this process if it is one, else in processes of their own.
        executors: What runs them; ``concurrent.futures`` in both cases unless given.
    """
    settings = experiment.gradflow.train
    seeds = range(experiment.seed, experiment.seed + settings.seeds)
    keys = {
        key.name: key
        for (kind, depth), lr, warmup, seed in product(variants, settings.lr, settings.warmup, seeds)
        for key in (Key(kind, Condition(depth, lr, warmup), seed),)
    }
    tasks = {name: _task(variants[key.placement, key.condition.depth], key, learned) for name, key in keys.items()}
    progress.start("training", len(tasks) * settings.steps)
    here = jobs == 1 and executors is None
    found = run_cells(
        tasks,
        partial(trial.run, tick=progress.advance) if here else trial.run,
        executors=executors or (processes if jobs > 1 else lambda _: Here()),
        jobs=jobs,
        finished=finished,
        made_with={"tfblock": version("tfblock"), "torch": version("torch"), "text_sha256": learned.sha256},
        done=lambda name, known: None if here and not known else progress.advance(settings.steps),
    )
    progress.stop()
    return Trained(learned, {keys[name]: run for name, run in found.items()})


def summary(experiment: Experiment, trained: Trained) -> Training:
    """The text, the protocol and every run."""
    settings, learned = experiment.gradflow.train, trained.text
    return Training(
        text=settings.text,
        text_sha256=learned.sha256,
        characters=learned.characters,
        symbols=learned.symbols,
        unigram_entropy=learned.unigram_entropy,
        unigram_loss=learned.unigram_loss(experiment.input.seq_len),
        bigram_entropy=learned.bigram_entropy,
        held_out_characters=learned.judged(experiment.input.seq_len)[:, 1:].numel(),
        optimizer=settings.optimizer.kind,
        steps=settings.steps,
        batch_size=settings.batch_size,
        seq_len=experiment.input.seq_len,
        margin=settings.margin,
        trials=tuple(_trial(key, run) for key, run in trained.found.items()),
    )


def _trial(key: Key, run: Plain) -> Trial:
    found = numbers(run)
    return Trial(
        placement=key.placement,
        **key.condition._asdict(),
        seed=key.seed,
        verdict=run.get("verdict", ""),
        held_out_loss=found["train.held_out_loss"],
        cosine=found["train.cosine"],
        update_ratio=found["train.update_ratio"],
        error=run["error"],
    )


def numbers(run: Plain) -> dict[str, float]:
    """The metrics of a run that are numbers; nan of one that did not come to an end."""
    if run["error"]:
        return dict.fromkeys(("train.held_out_loss", "train.cosine", "train.update_ratio"), nan)
    _, loss, cosine = run["held_out"][-1]
    return {"train.held_out_loss": loss, "train.cosine": cosine, "train.update_ratio": run["update_ratio"]}


def _task(variant: Experiment, key: Key, learned: text.Text) -> Plain:
    return {
        "experiment": variant.model_copy(update={"seed": key.seed}).model_dump(mode="json"),
        "lr": key.condition.lr,
        "warmup": key.condition.warmup,
        "text_sha256": learned.sha256,
    }


def _bytes(variant: Experiment) -> int:
    """An upper bound of what one run has in use: Adam's two tensors per weight, and one for the size of a step."""
    settings = variant.gradflow.train
    batch, judged = (
        variant.model_copy(update={"input": InputSpec(batch_size=size, seq_len=variant.input.seq_len)})
        for size in (settings.batch_size, text.SEQUENCES)
    )
    more = 3 * BYTES[variant.dtype] * total(variant.model)
    return more + max(backward_bytes(batch), forward_bytes(judged) + more)


def _row(key: Key, step: int, group: str, layer: int | None, metric: str, value: float) -> Row:
    return Row(
        placement=key.placement,
        seed=key.seed,
        **key.condition._asdict(),
        stage="train",
        step=step,
        layer=layer,
        group=group,
        metric=metric,
        value=value,
    )
