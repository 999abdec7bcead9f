"""[gradflow.train] as a whole: every run is there, what is expected of it decides, and a killed call goes on."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest

from tests.probes.models import experiment
from tfblock_cli.errors import BadInput
from tfblock_cli.probes import gradflow
from tfblock_cli.probes.gradflow import compare
from tfblock_cli.probes.gradflow.training import stage, text, trial
from tfblock_cli.results.gradflow import GradflowData
from tfblock_cli.results.result import Result, to_json
from tfblock_cli.results.training import Condition, Trial

STEPS = 4


def asked(*, train=None, model=None, keys=None, **settings):
    model = {"n_layers": 2, "vocab_size": 64, "initialization": "unit"} | (model or {})
    train = {"text": "markov", "steps": STEPS, "batch_size": 2, "seeds": 2, "lr": [0.01, 0.1]} | (train or {})
    return experiment(model, gradflow={"seeds": 1, "train": train} | settings, **(keys or {}))


def expects(*expectations, **more):
    return asked(expect=list(expectations), **more)


def trials(result: Result[GradflowData]) -> tuple[Trial, ...]:
    assert result.data.training is not None
    return result.data.training.trials


LEARNS = {"metric": "train.verdict", "placement": "pre", "equals": "LEARNS"}


def test_every_run_is_there_once():
    data = gradflow.run(asked(depths=[1, 2], train={"warmup": [0, 2]})).data
    assert data.training is not None
    trials = data.training.trials
    names = {(t.placement, t.depth, t.lr, t.warmup, t.seed) for t in trials}
    assert len(trials) == len(names) == 2 * 2 * 2 * 2 * 2
    assert {t.seed for t in trials} == {0, 1}
    assert (data.training.steps, data.training.batch_size, data.training.seq_len) == (STEPS, 2, 5)
    assert data.training.held_out_characters == 64 * 5
    # one placement, depth and seed at initialization: two forwards, one vjp; a run: its steps and five looks
    assert (data.forwards, data.vjps) == (2 * 4 + 32 * (STEPS + 5), 4 + 32 * STEPS)


def test_a_run_is_that_of_its_own_model():
    """The stage hands on what the run alone would do: placement, depth, seed, rate and warmup are its own."""
    asked_for = asked(depths=[1, 2], train={"warmup": [0, 2]})
    result = gradflow.run(asked_for)
    data = result.data
    alone = experiment(
        {"n_layers": 1, "vocab_size": 64, "initialization": "unit", "norm_placement": "post"},
        seed=1,
        gradflow={"train": {"text": "markov", "steps": STEPS, "batch_size": 2}},
    )
    sha256 = text.read("markov").sha256
    task = {"experiment": alone.model_dump(mode="json"), "lr": 0.1, "warmup": 2, "text_sha256": sha256}
    found = trial.run(task)
    (mine,) = [t for t in trials(result) if (t.placement, t.depth, t.lr, t.warmup, t.seed) == ("post", 1, 0.1, 2, 1)]
    assert mine.held_out_loss == found["held_out"][-1][1]
    assert mine.cosine == found["held_out"][-1][2]
    assert (mine.verdict, mine.update_ratio) == (found["verdict"], found["update_ratio"])
    rows = [
        r
        for r in data.rows
        if r.stage == "train" and (r.placement, r.depth, r.lr, r.warmup, r.seed) == ("post", 1, 0.1, 2, 1)
    ]
    assert [[r.step, r.value] for r in rows if r.metric == "loss"] == found["loss"]
    assert [[r.step, r.value] for r in rows if r.metric == "held_out_loss"] == [one[:2] for one in found["held_out"]]
    ratios = [[r.step, r.group, r.layer, r.value] for r in rows if r.metric == "update_ratio"]
    assert ratios == found["updates"]


def test_rows_of_the_stages_do_not_mix():
    data = gradflow.run(asked()).data
    init = [row for row in data.rows if row.stage == "init"]
    assert {(row.lr, row.warmup, row.step) for row in init} == {(None, None, 0)}
    assert init == list(gradflow.run(asked(train={"steps": 0})).data.rows)
    assert {row.stage for row in data.rows} == {"init", "train"}
    assert {row.metric for row in data.rows if row.stage == "train"} == {
        "loss",
        "held_out_loss",
        "cosine",
        "update_ratio",
    }


def test_without_the_table_nothing_is_trained():
    data = gradflow.run(experiment()).data
    assert data.training is None
    assert {row.stage for row in data.rows} == {"init"}


def test_the_numbers_are_the_same_for_any_number_of_jobs_and_any_executor():
    one = gradflow.run(asked())
    assert asdict(gradflow.run(asked(), jobs=2)) == asdict(one)
    assert asdict(gradflow.run(asked(), jobs=1, executors=ThreadPoolExecutor)) == asdict(one)


class Killed(Exception):  # noqa: N818
    """Stands for the end of the process."""


class Mortal(dict[str, Any]):
    """Keeps so many runs; the process dies as the next one is to be kept."""

    def __init__(self, lives):
        super().__init__()
        self.lives = lives

    def __setitem__(self, name, found):
        if len(self) == self.lives:
            raise Killed
        super().__setitem__(name, json.loads(json.dumps(found)))  # as a file keeps it


@pytest.mark.parametrize("lives", [0, 1, 5, 7])
def test_killed_and_resumed_equals_uninterrupted(lives, monkeypatch):
    whole = gradflow.run(asked())
    kept = Mortal(lives)
    with pytest.raises(Killed):
        gradflow.run(asked(), finished=kept)
    kept.lives = 8
    runs = []
    true = trial.run

    def counted(*args, **options):
        runs.append(args)
        return true(*args, **options)

    monkeypatch.setattr(trial, "run", counted)
    resumed = gradflow.run(asked(), finished=kept)
    assert len(runs) == 8 - lives
    assert json.dumps(to_json(resumed)) == json.dumps(to_json(whole))


def test_runs_on_another_text_are_not_taken_over(tmp_path):
    file = tmp_path / "mine.txt"
    finished: dict[str, dict[str, object]] = {}
    losses = []
    for word in ("abcd", "efgh"):
        file.write_text(word * 6000, encoding="utf-8")
        result = gradflow.run(asked(train={"text": str(file)}), finished=finished)
        losses.append([t.held_out_loss for t in trials(result)])
        file.write_text("x", encoding="utf-8")
    assert losses[0] == losses[1]  # ranks are the same
    file.write_text("abcdabce" * 3000, encoding="utf-8")
    third = gradflow.run(asked(train={"text": str(file)}), finished=finished)
    assert [t.held_out_loss for t in trials(third)] != losses[0]


@pytest.mark.parametrize(
    ("expect", "passed"),
    [
        ({"metric": "train.verdict", "placement": "pre", "equals": "DIVERGED", "lr": 100.0}, [True]),
        ({"metric": "train.verdict", "placement": "pre", "equals": ["DIVERGED", "SLOW"]}, [False, True]),
        ({"metric": "train.verdict", "placement": "pre", "equals": ["DIVERGED", "SLOW", "STUCK"]}, [True, True]),
        ({"metric": "train.verdict", "placement": "pre", "equals": "LEARNS"}, [False, False]),
        ({"metric": "train.held_out_loss", "placement": "pre", "max": 5.0, "lr": 0.01}, [True]),
        ({"metric": "train.held_out_loss", "placement": "pre", "max": 1.0, "lr": 0.01}, [False]),
        (
            {"metric": "train.held_out_loss", "placement": "pre", "mode": "ci", "min": 1.0, "max": 9.0, "lr": 0.01},
            [True],
        ),
        ({"metric": "train.cosine", "placement": "post", "over": "pre", "min": 0.0, "lr": 0.01}, [True]),
        ({"metric": "train.update_ratio", "placement": "post", "min": 1e-9, "lr": 0.01}, [True]),
    ],
)
def test_expectations_of_training(expect, passed):
    result = gradflow.run(expects(expect, train={"lr": [0.01, 100.0]}))
    checks = [check for check in result.checks if check.name == expect["metric"]]
    assert [check.passed for check in checks] == passed
    assert all("lr" in check.subject and "warmup 0" in check.subject for check in checks)
    assert result.verdict == ("pass" if all(passed) else "fail")


BOUNDS = {"min": -1e9, "max": 1e9}


@pytest.mark.parametrize("mode", ["all", "ci"])
def test_what_training_cannot_define_was_not_measured(mode):
    expect = {"metric": "train.cosine", "placement": "pre", "mode": mode, "lr": 0.01, **BOUNDS}
    result = gradflow.run(expects(expect, keys={"input": {"batch_size": 1, "seq_len": 1}}))
    assert result.verdict == "inconclusive"
    check = result.checks[-1]
    why = "a sequence of one token has no two tokens to compare"
    assert (check.passed, check.message) == (None, f"not measured: nan with every seed, since {why}")


@pytest.mark.parametrize("mode", ["all", "ci"])
@pytest.mark.parametrize("metric", ["train.held_out_loss", "train.cosine"])
def test_nan_of_a_run_that_has_blown_up_is_outside(metric, mode):
    expect = {"metric": metric, "placement": "none", "mode": mode, **BOUNDS}
    train = {"lr": [1e30], "optimizer": {"kind": "sgd"}}
    result = gradflow.run(expects(expect, train=train, placements=["none", "pre"], keys={"dtype": "float32"}))
    assert {t.verdict for t in trials(result) if t.placement == "none"} == {"DIVERGED"}
    assert result.verdict == "fail"
    assert result.checks[-1].value != result.checks[-1].value


def test_an_expectation_is_judged_for_every_condition_that_it_does_not_name():
    settings = {"depths": [1, 2], "train": {"warmup": [0, 2], "seeds": 1}}

    def subjects(**which):
        return len([c for c in gradflow.run(expects(LEARNS | which, **settings)).checks if c.name == "train.verdict"])

    assert subjects() == 8
    assert subjects(lr=0.1) == 4
    assert subjects(lr=0.1, warmup=2) == 2
    assert subjects(lr=0.1, warmup=2, depth=1) == 1


def test_a_verdict_must_be_that_of_every_seed(monkeypatch):
    true = trial.run

    def odd(task, *args, **options):
        found = true(task, *args, **options)
        return found | {"verdict": "LEARNS"} if task["experiment"]["seed"] == 0 else found

    monkeypatch.setattr(trial, "run", odd)
    result = gradflow.run(expects(LEARNS, train={"lr": [0.01]}))
    (check,) = [check for check in result.checks if check.name == "train.verdict"]
    assert check.passed is False
    assert "1 of 2 seeds as expected; seed 1: " in check.message


def test_a_run_without_an_end_makes_the_answer_inconclusive(monkeypatch):
    true = trial.run

    def broken(task, *args, **options):
        if task["experiment"]["seed"] == 1 and task["lr"] == 0.1:
            return {"error": "RuntimeError: no luck"}
        return true(task, *args, **options)

    monkeypatch.setattr(trial, "run", broken)
    everything = LEARNS | {"equals": ["LEARNS", "SLOW", "STUCK", "COLLAPSED", "DIVERGED"]}
    result = gradflow.run(expects(everything, {"metric": "train.cosine", "placement": "post", "min": -2.0}))
    assert result.verdict == "inconclusive"
    lost = [check for check in result.checks if check.name == "train.finished"]
    assert [check.subject for check in lost] == [
        f"{kind}, 2 layers, lr 0.1, warmup 0, seed 1" for kind in ("pre", "post")
    ]
    assert all("RuntimeError: no luck" in check.message for check in lost)
    judged = {(check.name, check.subject): check.passed for check in result.checks if check.name.startswith("train.")}
    assert judged["train.verdict", "pre, 2 layers, lr 0.01, warmup 0"] is True
    assert judged["train.verdict", "pre, 2 layers, lr 0.1, warmup 0"] is None
    assert judged["train.cosine", "post, 2 layers, lr 0.1, warmup 0"] is None
    numbers = [t for t in trials(result) if t.error]
    assert [(t.verdict, t.held_out_loss != t.held_out_loss) for t in numbers] == [("", True)] * 2


REFUSED: dict[str, dict[str, Any]] = {
    "dropout": {"model": {"dropout": 0.1}},  # known from the file
    "cloned_layers": {"model": {"initialization": {"kind": "unit", "clone_layers": True}}},  # seen at initialization
    "no_final_norm": {"model": {"final_norm": False}},
    "eps_floor": {"model": {"norm": {"kind": "layernorm", "eps": 100.0}}, "placements": ["pre", "sandwich"]},
    "non_finite_gradients": {
        "model": {"initialization": {"kind": "normal", "std": 1e4}},
        "placements": ["none", "pre"],
        "keys": {"dtype": "float32"},
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_guard_speaks_before_anything_is_trained(monkeypatch, name):
    monkeypatch.setattr(trial, "run", lambda *_, **__: pytest.fail("it trained"))
    expectations = [
        LEARNS | {"equals": ["LEARNS", "DIVERGED"]},
        {"metric": "train.held_out_loss", "placement": "pre", "max": 9.0, "mode": "ci"},
        {"metric": "train.cosine", "placement": "pre", "over": "pre", "min": 0.0, "lr": 0.1},
    ]
    result = gradflow.run(expects(*expectations, **REFUSED[name]))
    assert result.verdict == "inconclusive"
    judged = [check for check in result.checks if check.name.startswith("train.")]
    assert [check.name for check in judged] == [
        *["train.verdict"] * 2,
        *["train.held_out_loss"] * 2,
        "train.cosine",
    ]  # one per learning rate, as if they had been judged
    assert {(check.passed, check.value) for check in judged} == {(None, None)}
    assert all(check.message == f"not judged: {name}; nothing was trained" for check in judged)
    assert f"nothing was trained, since the comparison cannot answer: {name}" in result.warnings
    assert result.data.training is None
    assert {row.stage for row in result.data.rows} == {"init"}
    (guard,) = [check for check in result.checks if check.name == f"guard.{name}"]
    assert guard.passed is None
    assert to_json(result)


@pytest.mark.parametrize("name", ["dropout", "no_final_norm"])
def test_an_allowed_guard_lets_it_train(name):
    result = gradflow.run(expects(LEARNS, allow=[name], **REFUSED[name]))
    assert len(trials(result)) == 8
    assert all(check.passed is not None for check in result.checks)
    assert not any("nothing was trained" in warning for warning in result.warnings)


def test_a_guard_without_training_says_nothing_of_it():
    result = gradflow.run(asked(model={"dropout": 0.1}, train={"steps": 0}))
    assert result.verdict == "inconclusive"
    assert not any("trained" in warning for warning in result.warnings)


def test_a_text_that_does_not_fit_is_refused_before_anything_is_trained(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("abc", encoding="utf-8")
    with pytest.raises(BadInput) as told:
        gradflow.run(asked(train={"text": str(short)}, model={"vocab_size": 2}))
    first, second = map(str, told.value.problems)
    assert "3 different characters; --vocab must be at least that, not 2" in first
    assert "too few for sequences of 5" in second
    with pytest.raises(BadInput, match="nothing can learn: whoever knows frequencies alone is at 3"):
        gradflow.run(asked(train={"margin": 5.0}))
    with pytest.raises(BadInput, match="is not causal sees the character"):
        gradflow.run(asked(model={"attention": {"n_heads": 2, "pattern": "bidirectional"}}))


def test_memory_is_asked_for_before_anything_runs(monkeypatch):
    monkeypatch.setattr(compare, "measure_all", lambda *_: pytest.fail("it ran"))

    def needed(jobs):
        class Asked(Exception):  # noqa: N818
            pass

        def require(n, device, what, helps):
            assert "gradflow.train.batch_size" in helps
            raise Asked(n)

        monkeypatch.setattr(stage, "require", require)
        with pytest.raises(Asked) as told:
            gradflow.run(asked(), jobs=jobs)
        return told.value.args[0]

    assert needed(2) == 2 * needed(1)
    assert needed(1) > 0


def test_progress_counts_every_step_whatever_runs_it():
    class Heard:
        def __init__(self):
            self.totals, self.done = {}, {}

        def start(self, description, total):
            self.name = description
            self.totals[description], self.done[description] = total, 0

        def advance(self, n=1):
            self.done[self.name] += n

        def stop(self):
            pass

    finished: dict[str, dict[str, object]] = {}
    for executors in (None, ThreadPoolExecutor, None):  # the last one finds everything finished
        heard = Heard()
        gradflow.run(asked(), progress=heard, executors=executors, finished=finished if executors is None else {})
        assert heard.totals["training"] == heard.done["training"] == 8 * STEPS


def test_the_names_of_runs_differ_wherever_the_runs_do():
    key = stage.Key("pre", Condition(12, 3e-4, 100), 0)
    assert key.name == "pre-depth12-lr0.0003-warmup100-seed0"
    others = [
        stage.Key("post", key.condition, 0),
        stage.Key("pre", key.condition, 1),
        *(
            key._replace(condition=key.condition._replace(**change))
            for change in ({"depth": 1}, {"lr": 0.00030000001}, {"warmup": 10})
        ),
    ]
    assert len({key.name, *(other.name for other in others)}) == 6
