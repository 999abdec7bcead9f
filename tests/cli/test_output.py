"""stdout is the report or exactly result.json; everything else is on stderr; what is saved can be run again."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, EXPERIMENT
from tfblock_cli.loading import load


def only_folder(here: Path) -> Path:
    (folder,) = (here / "runs").iterdir()
    return folder


def without_run(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("run", "provenance")}


def test_the_report_is_on_stdout_and_the_notes_are_on_stderr(tfblock, here):
    outcome = tfblock("params", "small.toml")
    folder = only_folder(here)
    assert outcome.err == f"saved runs/{folder.name}\n"
    assert outcome.out == (folder / "report.txt").read_bytes()
    assert sorted(file.name for file in folder.iterdir()) == ["experiment.toml", "report.txt", "result.json"]


def test_json_is_the_saved_file_byte_for_byte(process, here):
    outcome = process("params", "small.toml", "--d", "16", "--json", "--strict")
    saved = (only_folder(here) / "result.json").read_bytes()
    assert outcome.out == saved
    record = json.loads(saved)
    assert record["run"]["exit_code"] == outcome.code == 1
    assert record["run"]["argv"] == ["tfblock", "params", "small.toml", "--d", "16", "--json", "--strict"]
    assert record["run"]["id"] == only_folder(here).name
    assert record["provenance"]["source"] == "small.toml"
    assert record["warnings"]
    assert [line for line in outcome.err.splitlines() if line.startswith("warning: ")] == [
        f"warning: {warning}" for warning in record["warnings"]
    ]


def test_a_taken_name_is_in_the_json_too(tfblock, here, monkeypatch):
    monkeypatch.setattr("tfblock_cli.store.write.run_id", lambda *_: "taken")
    tfblock("params", "small.toml")
    outcome = tfblock("params", "small.toml", "--json")
    assert outcome.out == (here / "runs" / "taken-2" / "result.json").read_bytes()
    assert json.loads(outcome.out)["run"]["id"] == "taken-2"


def test_two_runs_differ_in_run_and_provenance_only(process, here):
    texts = []
    for number in (1, 2):
        process("params", "small.toml", "--runs-dir", f"runs{number}")
        (folder,) = (here / f"runs{number}").iterdir()
        record = json.loads((folder / "result.json").read_bytes())
        texts.append((json.dumps(without_run(record)), (folder / "report.txt").read_bytes()))
        assert record["run"]["argv"][-1] == f"runs{number}"  # what may differ does
    assert texts[0] == texts[1]


@pytest.mark.parametrize("arguments", [["--d", "16", "--heads", "4"], ["--set", "model.norm.eps=1e-3", "--no-bias"]])
def test_the_saved_experiment_repeats_the_run(tfblock, here, arguments):
    first = json.loads(tfblock("params", "small.toml", *arguments, "--json").out)
    folder = only_folder(here)
    for again in (folder / "experiment.toml", folder):
        second = json.loads(tfblock("params", str(again), "--json", "--no-save").out)
        # The warning spoke of the file's own values; the saved file has the changed ones.
        assert without_run(second) | {"warnings": []} == without_run(first) | {"warnings": []}
        assert second["provenance"]["experiment_sha256"] == first["provenance"]["experiment_sha256"]


def test_quiet(tfblock, here):
    outcome = tfblock("params", "small.toml", "--quiet", "--d", "16")
    assert (outcome.code, outcome.out, outcome.err) == (0, b"", "")
    assert (only_folder(here) / "result.json").is_file()
    assert json.loads(tfblock("params", "small.toml", "-q", "--json", "--no-save").out)["command"] == "params"
    assert tfblock("params", "nowhere.toml", "--quiet").err.startswith("error: ")


def test_no_save(tfblock, here):
    outcome = tfblock("params", "small.toml", "--no-save")
    assert (outcome.code, outcome.err) == (0, "")
    assert b"params small" in outcome.out
    assert not (here / "runs").exists()


def test_runs_dir_from_the_environment_and_the_flag_beats_it(tfblock, here, monkeypatch):
    monkeypatch.setenv("TFBLOCK_RUNS_DIR", str(here / "a"))
    tfblock("params", "small.toml")
    tfblock("params", "small.toml", "--runs-dir", "b")
    assert len(list((here / "a").iterdir())) == len(list((here / "b").iterdir())) == 1


def test_several_experiments(tfblock, here):
    outcome = tfblock("params", "small.toml", "gpt2", "--seq", "8", "--json")
    records = json.loads(outcome.out)
    assert [record["experiment"]["name"] for record in records] == ["small", "gpt2"]
    assert [record["experiment"]["input"]["seq_len"] for record in records] == [8, 8]
    saved = [json.loads((folder / "result.json").read_bytes()) for folder in (here / "runs").iterdir()]
    assert sorted(saved, key=str) == sorted(records, key=str)
    report = tfblock("params", "small.toml", "gpt2", "--no-save").out
    assert report.index(b"params small") < report.index(b"params gpt2")


def test_colour_only_where_it_is_wanted(tfblock, monkeypatch):
    assert b"\x1b" not in tfblock("params", "small.toml", "--no-save").out
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = tfblock("params", "small.toml", "--no-save").out
    assert b"\x1b[3" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b[3" not in tfblock("params", "small.toml", "--no-save").out
    assert b"\x1b" not in tfblock("params", "small.toml", "--no-save", "--json").out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["params", "small.toml"], 0),
        (["params", "small.toml", "--json"], 0),
        (["params", "small.toml", "--d", "16", "--strict"], 1),
        (["params", "gpt2", "small.toml"], 0),
        (["params", "--help"], 0),
        (["--version"], 0),
        (["params", "nowhere.toml"], 2),
    ],
)
@pytest.mark.parametrize("how", ["reader gone", "closed"])
def test_a_closed_stdout_changes_no_exit_code(environment, here, arguments, code, how):
    reader, writer = os.pipe()
    os.close(reader)  # before the process starts, so that its first write fails
    shell = ["sh", "-c", 'exec "$@" >&-', "sh"] if how == "closed" else []
    with open(writer, "wb") as stdout:
        done = subprocess.run(
            [*shell, *COMMAND, *arguments], env=environment, stdout=stdout, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == code
    for word in (b"Traceback", b"BrokenPipe", b"Exception ignored"):
        assert word not in done.stderr
    if code != 2 and arguments[0] == "params" and "--help" not in arguments:
        assert done.stderr.startswith((b"saved runs/", b"warning: "))
        assert (here / "runs").is_dir()


def test_write_experiment_round_trip(tfblock, here):
    asked = ("--d", "32", "--heads", "4", "--ffn", "geglu", "--set", "model.norm.eps=1e-4")
    outcome = tfblock("params", *asked, "--write-experiment", "new.toml", "--no-save", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err == "wrote new.toml\n"
    text = (here / "new.toml").read_text(encoding="utf-8")
    assert "n_kv_heads" not in text  # what was asked, not what follows from it
    again = tfblock("params", "new.toml", "--no-save", "--json")
    first, second = json.loads(outcome.out), json.loads(again.out)
    assert second["data"] == first["data"]
    assert second["experiment"] == first["experiment"] | {"name": "new"}


def test_write_experiment_of_a_changed_file(tfblock, here):
    assert tfblock("params", "small.toml", "--layers", "5", "--write-experiment", "five.toml").code == 0
    before, after = load(here / "small.toml"), load(here / "five.toml")
    assert after.experiment.model == load(here / "small.toml", sets=["model.n_layers=5"]).experiment.model
    assert after.experiment.model != before.experiment.model


def test_write_experiment_replaces_only_if_forced(tfblock, here):
    assert tfblock("params", "gpt2", "--write-experiment", "small.toml").code == 2
    assert (here / "small.toml").read_text() == EXPERIMENT
    assert tfblock("params", "gpt2", "--write-experiment", "small.toml", "--force").code == 0
    assert load(here / "small.toml").experiment.model == load("gpt2").experiment.model


def test_write_experiment_that_cannot_be_written_leaves_nothing(tfblock, here):
    outcome = tfblock("params", "gpt2", "--write-experiment", "no/such/folder.toml")
    where = "--write-experiment no/such/folder.toml"
    assert (outcome.code, outcome.err) == (2, f"error: {where}: there is no folder no/such\n")
    assert sorted(path.name for path in here.iterdir()) == ["small.toml"]
    outcome = tfblock("params", "gpt2", "--write-experiment", ".", "--force")
    assert (outcome.code, outcome.err) == (2, "error: --write-experiment .: is a folder, not a file\n")
