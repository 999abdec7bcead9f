"""``gradflow`` with [gradflow.train] as a user has it: killed, resumed, shortened, run in processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND

TRAIN = """
[input]
seq_len = 8

[model]
d_model = 8
vocab_size = 64

[model.attention]
n_heads = 2

[gradflow]
seeds = 1

[gradflow.train]
text = "markov"
steps = 4
lr = [1e-3, 1e-2]
seeds = 2

[[gradflow.expect]]
metric = "train.held_out_loss"
placement = "pre"
lr = 1e-2
max = 9.0

[[gradflow.expect]]
metric = "train.held_out_loss"
placement = "post"
mode = "ci"
max = 1e9
"""


@pytest.fixture
def train(here: Path) -> Path:
    file = here / "train.toml"
    file.write_text(TRAIN, encoding="utf-8")
    return file


def partial(here: Path) -> list[str]:
    return sorted(path.name for path in here.glob("runs/.partial/*/*.json"))


def test_the_screen_the_csv_and_the_record_tell_of_training(tfblock, train, here):
    outcome = tfblock("gradflow", "train.toml", "--csv", "all.csv")
    assert outcome.code == 0
    screen = outcome.out.decode()
    assert "text markov: 200,000 characters, 64 different ones" in screen
    assert screen.count("2 layers, lr 0.001, warmup 0") >= 2  # a curve and a check
    assert "train,4,,model,held_out_loss," in (here / "all.csv").read_text(encoding="utf-8")
    (folder,) = [path for path in (here / "runs").iterdir() if not path.name.startswith(".")]
    record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert len(record["data"]["training"]["trials"]) == 8
    assert [path.name for path in (here / "runs").iterdir()] == [folder.name]  # nothing unfinished is left


def test_quick_trains_with_one_rate_and_one_seed(tfblock, train):
    outcome = tfblock("gradflow", "train.toml", "--quick", "--json", "--no-save")
    record = json.loads(outcome.out)
    assert {(trial["lr"], trial["seed"]) for trial in record["data"]["training"]["trials"]} == {(1e-3, 0)}
    assert record["experiment"]["gradflow"]["expect"] == []  # one is about the other rate, one needs two seeds
    assert "--quick: lr 0.001 and one seed alone are asked for; expectations left out: 2" in outcome.err
    assert outcome.code == 0
    assert tfblock("gradflow", "train.toml", "--quick", "--no-save", "--strict", "--quiet").code == 1  # a warning


def test_quick_says_when_there_is_nothing_to_shorten(tfblock):
    outcome = tfblock("gradflow", "small.toml", "--seeds", "1", "--quick", "--json", "--no-save")
    assert "--quick: nothing is trained, so nothing is shorter" in outcome.err


def test_what_is_not_saved_leaves_nothing(tfblock, train, here):
    assert tfblock("gradflow", "train.toml", "--quick", "--no-save", "--quiet").code == 0
    assert not (here / "runs").exists()


def test_a_killed_call_is_resumed(process, train, here, environment):
    slow = ("gradflow", "train.toml", "--quiet", "--set", "gradflow.train.steps=60")
    killed = subprocess.Popen([sys.executable, *COMMAND[1:], *slow], env=environment)
    deadline = time.monotonic() + 90
    while len(partial(here)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    kept = partial(here)
    assert 2 <= len(kept) < 8

    resumed = process(*slow, "--json")
    assert resumed.code == 0, resumed.err
    assert partial(here) == []
    whole = process(*slow, "--json", "--runs-dir", "other")
    first, second = (json.loads(outcome.out) for outcome in (resumed, whole))
    for record in (first, second):
        del record["run"], record["provenance"]
    assert first == second


def test_a_result_that_cannot_be_saved_keeps_its_training(tfblock, train, here, monkeypatch):
    from tfblock_cli.errors import NotSaved
    from tfblock_cli.store import write

    def full(*_, **__):
        raise NotSaved("the disk is full")

    monkeypatch.setattr(write, "save", full)
    assert tfblock("gradflow", "train.toml", "--quiet").code == 3
    assert len(partial(here)) == 8
    monkeypatch.undo()


@pytest.mark.parametrize("jobs", ["0", "-1", "two"])
def test_jobs_is_a_count(tfblock, train, jobs):
    outcome = tfblock("gradflow", "train.toml", "--jobs", jobs)
    assert outcome.code == 2
    assert "--jobs" in outcome.err


@pytest.mark.parametrize(
    ("text", "message"),
    [("missing.txt", "cannot be read: No such file"), ("train.toml", "different characters; --vocab must be at least")],
)
def test_a_text_that_cannot_be_learned_is_told_in_one_line(tfblock, train, here, text, message):
    outcome = tfblock("gradflow", "train.toml", "--set", f"gradflow.train.text={text}", "--vocab", "9")
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert not (here / "runs").exists()


def test_a_text_of_ones_own_is_found_again_from_anywhere(tfblock, train, here, monkeypatch):
    (here / "mine.txt").write_text("to be or not to be, that is the question\n" * 300, encoding="utf-8")
    mine = ("--set", "gradflow.train.text=mine.txt", "--quick", "--json")
    first = json.loads(tfblock("gradflow", "train.toml", *mine).out)
    assert first["data"]["training"]["text"] == str(here / "mine.txt")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    again = tfblock("gradflow", f"../runs/{first['run']['id']}/experiment.toml", "--json", "--no-save")
    assert json.loads(again.out)["data"] == first["data"]


def test_a_text_of_the_second_experiment_is_asked_for_before_the_first_one_runs(tfblock, train, here):
    (here / "second.toml").write_text(TRAIN.replace('"markov"', '"nofile.txt"'), encoding="utf-8")
    outcome = tfblock("gradflow", "train.toml", "second.toml")
    assert outcome.code == 2
    assert "nofile.txt" in outcome.err
    assert not (here / "runs").exists()


def test_what_cannot_answer_is_told_before_it_trains_and_saved(tfblock, train, here, monkeypatch):
    from tfblock_cli.probes.gradflow.training import trial

    monkeypatch.setattr(trial, "run", lambda *_, **__: pytest.fail("it trained"))
    outcome = tfblock("gradflow", "train.toml", "--dropout", "0.1", "--csv", "all.csv")
    assert outcome.code == 3
    screen = outcome.out.decode()
    assert "nothing was trained, since the comparison cannot answer: dropout" in screen
    assert "not judged: dropout; nothing was trained" in " ".join(screen.split())
    (folder,) = (here / "runs").iterdir()  # and nothing unfinished
    record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (record["verdict"], record["data"]["training"]) == ("inconclusive", None)
    assert ",train," not in (here / "all.csv").read_text(encoding="utf-8")
