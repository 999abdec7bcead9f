"""The part of gradflow's screen that tells how the training runs went."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tfblock_cli.report.terminal.charts import LogPlot, in_pairs, log_plot
from tfblock_cli.report.terminal.format import count, number, plural
from tfblock_cli.report.terminal.parts import (
    BAD,
    DOUBT,
    GOOD,
    MUTED,
    Column,
    add_row,
    marked_lines,
    section,
    table,
)
from tfblock_cli.results.gradflow import GradflowData
from tfblock_cli.results.metrics import TRAINED
from tfblock_cli.results.training import Training, Trial

_STYLES = {"LEARNS": GOOD, "SLOW": DOUBT}
_HEIGHT = 10


def parts(data: GradflowData) -> Iterator[RenderableType]:
    """The protocol, one row per placement and condition, and the loss curves; nothing where nothing was trained."""
    training = data.training
    if training is None:
        return
    yield section("trained", f"{count(training.steps)} steps, {plural(len(_seeds(training)), 'seed')}")
    yield Text(_protocol(training), MUTED)
    yield _table(training)
    names = ("train.held_out_loss", "train.cosine", "train.update_ratio")
    yield Text()
    yield marked_lines((Text(name, MUTED), Text(TRAINED[name].words, MUTED)) for name in names)
    yield section("training loss", f"mean over {plural(len(_seeds(training)), 'seed')}, against the step")
    yield in_pairs(partial(_plots, data, training))


def _protocol(training: Training) -> str:
    text = (
        f"text {training.text}: {count(training.characters)} characters, {training.symbols} different ones; entropy "
        f"{training.unigram_entropy:.3f} nats, {training.bigram_entropy:.3f} when the character before is known"
    )
    learns = training.unigram_loss - training.margin
    return (
        f"{text}; {training.optimizer}, {training.batch_size} x {training.seq_len} characters a step; LEARNS: a loss "
        f"below {learns:.3f} on {count(training.held_out_characters)} characters that were held out"
    )


def _seeds(training: Training) -> set[int]:
    return {trial.seed for trial in training.trials}


def _table(training: Training) -> Table:
    result = table(
        [
            Column("depth", "right"),
            Column("lr", "right"),
            Column("warmup", "right"),
            Column("placement"),
            Column("verdict"),
            Column("held_out_loss"),
            Column("cosine", "right"),
            Column("update_ratio", "right"),
        ]
    )
    for condition in training.conditions:
        trials = [trial for trial in training.trials if trial.condition == condition]
        by_placement = [(kind, list(group)) for kind, group in groupby(trials, lambda trial: trial.placement)]
        for kind, group in by_placement:
            add_row(
                result,
                str(condition.depth),
                f"{condition.lr:g}",
                str(condition.warmup),
                kind,
                _verdicts(group),
                _spread([trial.held_out_loss for trial in group]),
                number(_mean([trial.cosine for trial in group])),
                number(_mean([trial.update_ratio for trial in group])),
                end_section=kind == by_placement[-1][0],
            )
    return result


def _verdicts(trials: Sequence[Trial]) -> Text:
    """One word, or each with how many seeds it has."""
    counts = Counter(trial.verdict or "no end" for trial in trials)
    words = list(counts) if len(counts) == 1 else [f"{word} {n}" for word, n in counts.items()]
    styled = [Text(word, _STYLES.get(word.split(" ")[0], BAD)) for word in words]
    return Text(", ").join(styled)


def _spread(values: Sequence[float]) -> str:
    """The mean, and from the smallest to the largest seed."""
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return ", ".join(f"{value:.3f}" for value in values)
    return f"{_mean(values):.3f} ({min(values):.3f}..{max(values):.3f})"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan


def _plots(data: GradflowData, training: Training, width: int) -> list[LogPlot]:
    return [
        log_plot(
            {
                fact.placement: [*map(_mean, data.losses(fact.placement, condition).values())]
                for fact in data.placements
            },
            width=width,
            height=_HEIGHT,
            title=condition.words,
            x_label="step",
            x_last=training.steps,
            decades=0.3,
        )
        for condition in training.conditions
    ]
