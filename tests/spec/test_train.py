"""[gradflow.train]: its defaults, and every fault between it, its expectations and the model."""

import pytest
from pydantic import ValidationError

from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.train import AdamW, TrainSettings


def asked(train=None, *, expect=(), model=None, **gradflow):
    table = {"model": {"d_model": 8, "attention": {"n_heads": 2}} | (model or {}), "gradflow": gradflow}
    if train is not None:
        table["gradflow"]["train"] = train
    if expect:
        table["gradflow"]["expect"] = list(expect)
    return Experiment.model_validate(table)


def faults(*args, **keys):
    with pytest.raises(ValidationError) as told:
        asked(*args, **keys)
    return [
        (line["ctx"].get("keys", line["loc"]), line["msg"]) for line in told.value.errors() if line["type"] == "fault"
    ]


VERDICT = {"metric": "train.verdict", "placement": "pre", "equals": "LEARNS"}


def test_a_file_without_the_table_trains_nothing_and_one_with_an_empty_one_does():
    assert asked().gradflow.train.steps == 0
    assert (
        asked({}).gradflow.train
        == TrainSettings()
        == TrainSettings(
            lr=(3e-4,), warmup=(0,), steps=200, batch_size=8, seeds=2, text="python_docs", optimizer=AdamW(), margin=0.3
        )
    )


def test_the_resolved_form_reads_back_equal():
    whole = asked({"optimizer": "sgd", "lr": [1e-3, 0.1]}, expect=[VERDICT, VERDICT | {"lr": 0.1, "warmup": 0}])
    assert Experiment.model_validate(whole.model_dump()) == whole
    assert whole.gradflow.expect[0].equals == ("LEARNS",)
    none = asked()
    assert Experiment.model_validate(none.model_dump()) == none


@pytest.mark.parametrize(
    ("train", "model", "keys", "message"),
    [
        ({"lr": []}, {}, "gradflow.train.lr", "lr is empty"),
        ({"warmup": []}, {}, "gradflow.train.warmup", "warmup is empty"),
        ({"lr": [0.1, 0.1]}, {}, "gradflow.train.lr", "a number stands twice in 0.1, 0.1"),
        ({"lr": [1, 1.0]}, {}, "gradflow.train.lr", "a number stands twice in 1, 1.0"),
        ({"warmup": [3, 3]}, {}, "gradflow.train.warmup", "a number stands twice in 3, 3"),
        ({"warmup": [201]}, {}, "gradflow.train.warmup", "a warmup of 201 steps never ends within steps = 200"),
        ({"warmup": [3], "steps": 2}, {}, "gradflow.train.warmup", "never ends within steps = 2"),
        ({}, {"vocab_size": 0}, "gradflow.train", "cannot be predicted without a vocabulary"),
    ],
)
def test_settings_that_cannot_be_run(train, model, keys, message):
    ((where, said),) = faults(train, model=model)
    assert where[0] == keys
    assert message in said


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        (VERDICT | {"equals": []}, "needs equals"),
        (VERDICT | {"min": 1.0}, "leave min out"),
        (VERDICT | {"over": "post", "max": 1.0}, "leave over, max out"),
        (VERDICT | {"mode": "ci"}, "leave mode out"),
        (VERDICT | {"lr": 0.5}, "lr = 0.5 is not among 0.0003"),
        (VERDICT | {"warmup": 7}, "warmup = 7 is not among 0"),
        ({"metric": "train.cosine", "placement": "pre"}, "needs min or max"),
        ({"metric": "train.cosine", "placement": "pre", "max": 1.0, "equals": "LEARNS"}, "a verdict equals something"),
        ({"metric": "rms.last", "placement": "pre", "max": 1.0, "lr": 3e-4}, "rms.last is of none"),
        ({"metric": "rms.last", "placement": "pre", "max": 1.0, "warmup": 0}, "rms.last is of none"),
    ],
)
def test_expectations_that_cannot_be_judged(expect, message):
    assert message in " ".join(said for _, said in faults({}, expect=[expect]))


def test_an_expectation_of_training_needs_training():
    for train in (None, {"steps": 0}):
        ((where, said),) = faults(train, expect=[VERDICT])
        assert where[0] == "gradflow.expect.0.metric"
        assert said == "train.verdict is not measured without a table [gradflow.train]"


def test_intervals_need_two_seeds_of_their_own_stage():
    of_training = {"metric": "train.cosine", "placement": "pre", "mode": "ci", "max": 1.0}
    at_start = {"metric": "rms.last", "placement": "pre", "mode": "ci", "max": 1.0}
    assert asked({"seeds": 2}, expect=[of_training], seeds=1)
    assert asked({"seeds": 1}, expect=[at_start])
    assert "needs two seeds" in faults({"seeds": 1}, expect=[of_training])[0][1]
    assert "needs two seeds" in faults({}, expect=[at_start], seeds=1)[0][1]


def test_all_faults_are_told_at_once():
    assert len(faults({"lr": [], "warmup": [300]}, expect=[VERDICT | {"warmup": 7}], model={"vocab_size": 0})) == 4


@pytest.mark.parametrize(
    "train",
    [
        {"lr": [0.0]},
        {"lr": [-1.0]},
        {"warmup": [-1]},
        {"steps": -1},
        {"margin": 0.0},
        {"text": ""},
        {"batch_size": 0},
        {"optimizer": {"kind": "adamw", "beta2": 1.0}},
        {"optimizer": "adam"},
        {"rate": 1},
    ],
)
def test_values_out_of_range(train):
    with pytest.raises(ValidationError):
        asked(train)
