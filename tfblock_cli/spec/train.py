"""[gradflow.train]: how every placement is trained on next-character prediction."""

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import Field
from pydantic_core import PydanticCustomError

from tfblock_cli.spec.base import Axis, Count, Items, Kind, Spec, Table, fault, items, listed, table_of

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Steps = Annotated[int, Field(ge=0, le=10_000_000)]
Trained = Literal["train.verdict", "train.held_out_loss", "train.cosine", "train.update_ratio"]
"""The metrics of a training run; docs/gradflow.md explains them."""
TEXTS = ("python_docs", "markov")
"""The texts that are no file."""
Outcome = Literal["LEARNS", "SLOW", "STUCK", "COLLAPSED", "DIVERGED"]


class AdamW(Kind):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101)."""

    kind: Literal["adamw"] = "adamw"
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class SGD(Kind):
    """Stochastic gradient descent with momentum."""

    kind: Literal["sgd"] = "sgd"
    momentum: Fraction = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


Optimizer = Annotated[AdamW | SGD, Axis("adamw")]


class TrainSettings(Spec):
    """[gradflow.train]: every placement, depth, learning rate, warmup and seed is a training run of its own.

    Attributes:
        lr: Learning rates, constant behind the warmup.
        warmup: Numbers of steps over which the rate grows linearly from 0.
        steps: Of the optimizer; 0 trains nothing, which is what a file without this table does.
        batch_size: Sequences per step, each of input.seq_len characters.
        seeds: How many seeds, counted up from the experiment's seed.
        text: "python_docs" (the help topics that Python carries), "markov" (a source of known entropy, the same on
            every machine) or the path of a UTF-8 text file.
        optimizer: adamw or sgd.
        margin: By how many nats the held-out loss must lie below that of whoever knows frequencies alone, for LEARNS.
    """

    lr: Items[Positive] = (3e-4,)
    warmup: Items[Steps] = (0,)
    steps: Steps = 200
    batch_size: Count = 8
    seeds: Count = 2
    text: Annotated[str, Field(min_length=1)] = "python_docs"
    optimizer: Optimizer = AdamW()
    margin: Positive = 0.3


def train_faults(gradflow: Table, model: Table) -> Iterator[PydanticCustomError]:
    """Rules between [gradflow.train], its expectations and [model], on tables whose single keys may be wrong."""
    train = table_of(gradflow.get("train"))
    steps = train.get("steps", 200) if "train" in gradflow else 0
    yield from _expect_faults(gradflow, train, trains=steps != 0)
    if not steps:
        return
    for key in ("lr", "warmup"):
        values = [value for value in items(train.get(key)) if isinstance(value, int | float)]
        if key in train and train[key] in ([], ()):
            yield fault(f"{key} is empty: name at least one", f"gradflow.train.{key}")
        if len(set(values)) < len(values):
            yield fault(
                f"a number stands twice in {listed(values)}; runs are told apart by it", f"gradflow.train.{key}"
            )
    for warmup in items(train.get("warmup")):
        if type(warmup) is int and type(steps) is int and warmup > steps > 0:
            message = f"a warmup of {warmup} steps never ends within steps = {steps}"
            yield fault(message, "gradflow.train.warmup", "gradflow.train.steps")
    if model.get("vocab_size", 256) == 0:
        yield fault("characters cannot be predicted without a vocabulary", "gradflow.train", "model.vocab_size")


def _expect_faults(gradflow: Table, train: Table, *, trains: bool) -> Iterator[PydanticCustomError]:
    """What an expectation says of training must be there to be measured."""
    for number, expect in enumerate(map(table_of, items(gradflow.get("expect")))):
        where = f"gradflow.expect.{number}"
        metric = expect.get("metric")
        if metric in get_args(Trained) and not trains:
            yield fault(f"{metric} is not measured without a table [gradflow.train]", f"{where}.metric")
        for key in ("lr", "warmup"):
            wanted = expect.get(key, "all")
            if wanted == "all":
                continue
            if metric not in get_args(Trained):
                yield fault(f"{key} says which training run is meant, and {metric} is of none", f"{where}.{key}")
            elif trains and wanted not in (values := items(train.get(key, TrainSettings.model_fields[key].default))):
                yield fault(
                    f"{key} = {wanted} is not among {listed(values)}", f"{where}.{key}", f"gradflow.train.{key}"
                )
        if metric in get_args(Trained) and expect.get("mode") == "ci" and train.get("seeds", 2) == 1:
            yield fault("mode = 'ci' needs two seeds: one has no interval", f"{where}.mode", "gradflow.train.seeds")
