"""What cannot be written is told before anything runs: exit code 2, one line, nothing left behind."""

import os
from pathlib import Path

import pytest

from tests.cli.test_commands import ASKED

SELF_TEST = ("causality", "--self-test")
COMMANDS = [*((command, "small.toml") for command in ASKED), SELF_TEST]


@pytest.fixture
def nothing_runs(monkeypatch):
    for command in ASKED:
        monkeypatch.setattr(f"tfblock_cli.cli.{command}.answer", lambda *_, **__: pytest.fail("it ran"))


def tree(here: Path) -> list[Path]:
    return sorted(here.rglob("*"))


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("taken", "taken is not a folder"),
        ("taken/below/it", "taken is not a folder"),
        ("dangling", "dangling is not a folder"),
        ("dangling/below", "dangling is not a folder"),
        ("locked", "locked is not writable"),
        ("locked/not/yet", "locked is not writable"),
    ],
)
def test_a_runs_dir_that_cannot_be_written_is_told_before_anything_runs(
    tfblock, here, monkeypatch, command, folder, message
):
    (here / "taken").write_text("a file in the way", encoding="utf-8")
    (here / "dangling").symlink_to("nowhere")
    (here / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not (mode & os.W_OK and str(path).endswith("locked")))
    before = tree(here)
    outcome = tfblock(*command, "--runs-dir", folder)
    assert (outcome.code, outcome.out) == (2, b"")
    assert outcome.err == f"error: --runs-dir {folder}: {message}\n"
    assert tree(here) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_without_a_stand_in(tfblock, here):
    (here / "locked").mkdir(mode=0o500)
    outcome = tfblock("params", "small.toml", "--runs-dir", "locked/not/yet")
    assert (outcome.code, outcome.err) == (2, "error: --runs-dir locked/not/yet: locked is not writable\n")


@pytest.mark.parametrize("folder", ["new", "new/and/deeper", "linked", "."])
def test_a_runs_dir_that_can_be_made_is_no_trouble(tfblock, here, folder):
    (here / "real").mkdir()
    (here / "linked").symlink_to("real")
    assert tfblock("params", "small.toml", "--runs-dir", folder).code == 0
    assert len(list((here / folder).glob("*-params-*"))) == 1


def test_what_keeps_nothing_and_what_only_explains_need_no_runs_dir(tfblock, here):
    (here / "runs").write_text("a file in the way", encoding="utf-8")
    assert tfblock("params", "small.toml", "--no-save").code == 0
    assert tfblock("gradflow", "--explain", "rms.last").code == 0
    assert tfblock("params", "small.toml").err == "error: --runs-dir runs: runs is not a folder\n"


def test_a_bad_runs_dir_is_told_beside_a_bad_experiment(tfblock, here):
    (here / "taken").write_text("a file in the way", encoding="utf-8")
    outcome = tfblock("params", "small.toml", "--seq", "0", "--runs-dir", "taken")
    assert outcome.code == 2
    assert ["--seq" in line or "--runs-dir" in line for line in outcome.err.splitlines()] == [True, True]


def test_a_bad_runs_dir_stops_the_writing_of_an_experiment(tfblock, here):
    (here / "taken").write_text("a file in the way", encoding="utf-8")
    assert tfblock("params", "gpt2", "--runs-dir", "taken", "--write-experiment", "new.toml").code == 2
    assert not (here / "new.toml").exists()


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--csv", "x", "--junit-xml", "x"), "--csv x and --junit-xml x: are the same file"),
        (("--csv", "x", "--junit-xml", "sub/../x"), "--csv x and --junit-xml sub/../x: are the same file"),
        (("--csv", "link/x", "--junit-xml", "sub/x"), "--csv link/x and --junit-xml sub/x: are the same file"),
        (("--csv", "x.png", "--plot", "./x.png"), "--csv x.png and --plot x.png: are the same file"),
        (("--junit-xml", "x.png", "--plot", "x.png"), "--junit-xml x.png and --plot x.png: are the same file"),
        (("--csv", "small.toml"), "EXPERIMENT small.toml and --csv small.toml: are the same file"),
        (("--csv", "x", "--runs-dir", "x"), "--csv x and --runs-dir x: x cannot be both"),
        (("--junit-xml", "x", "--runs-dir", "sub/../x/y"), "--junit-xml x and --runs-dir sub/../x/y: x cannot be both"),
    ],
)
def test_no_file_is_written_over_another_one_that_was_named(tfblock, here, arguments, complaint):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    (here / "sub").mkdir()
    (here / "link").symlink_to("sub")
    before = tree(here)
    outcome = tfblock("gradflow", "small.toml", *arguments)
    assert (outcome.code, outcome.err) == (2, f"error: {complaint}\n")
    assert tree(here) == before


def test_three_options_for_one_file_are_all_named(tfblock):
    pytest.importorskip("matplotlib")
    outcome = tfblock("gradflow", "small.toml", *("--csv", "x.png", "--junit-xml", "x.png", "--plot", "x.png"))
    assert outcome.code == 2
    assert [line.count("--csv") for line in outcome.err.splitlines()] == [1, 1]
    assert "--junit-xml" in outcome.err
    assert "--plot" in outcome.err


def test_other_commands_write_over_nothing_that_was_named_either(tfblock):
    pytest.importorskip("matplotlib")
    both = "x.png cannot be both"
    outcome = tfblock("causality", "small.toml", "--plot", "x.png", "--runs-dir", "x.png")
    assert (outcome.code, outcome.err) == (2, f"error: --plot x.png and --runs-dir x.png: {both}\n")
    outcome = tfblock("params", "small.toml", "--write-experiment", "x.png", "--runs-dir", "x.png")
    assert (outcome.code, outcome.err) == (2, f"error: --write-experiment x.png and --runs-dir x.png: {both}\n")


def test_files_in_different_places_are_written(tfblock, here):
    (here / "sub").mkdir()
    asked = ("gradflow", "small.toml", "--seeds", "1", "--csv", "x", "--junit-xml", "sub/x", "--runs-dir", "xx")
    assert tfblock(*asked).code == 0
    assert (here / "x").read_text(encoding="utf-8").startswith("experiment,")
    assert "<testsuites>" in (here / "sub" / "x").read_text(encoding="utf-8")
