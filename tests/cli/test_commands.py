"""The three commands that run torch, end to end on a small model; what they find has tests of its own."""

import json
import os

import pytest

ASKED = {
    "params": ["--verify"],
    "forward": ["--head", "0.1"],
    "causality": [],
    "gradflow": ["--placements", "pre,post", "--depths", "1,2", "--seeds", "2", "--baseline", "post"],
}


@pytest.mark.parametrize("command", ASKED)
def test_a_run_end_to_end(tfblock, here, command):
    outcome = tfblock(command, "small.toml", *ASKED[command])
    assert outcome.code == 0, outcome.err
    assert outcome.out.decode().startswith(f"{command} small")
    (folder,) = (here / "runs").iterdir()
    assert folder.name.split("-")[1:3] == [command, "small"]
    again = tfblock(command, str(folder), *ASKED[command], "--json", "--no-save")
    first, second = (json.loads(text) for text in ((folder / "result.json").read_bytes(), again.out))
    for record in (first, second):
        del record["run"], record["provenance"]
    assert json.dumps(first) == json.dumps(second)


def test_forward_draws_the_head_that_was_asked_for(tfblock):
    record = json.loads(tfblock("forward", "small.toml", "--head", "0.1", "--no-save", "--json").out)
    head = record["data"]["head"]
    assert (head["layer"], head["head"]) == (0, 1)
    assert len(head["weights"]) == 4
    assert tfblock("forward", "small.toml", "--head", "1.0").code == 2
    assert tfblock("forward", "small.toml", "--head", "0.2").code == 2


def test_gradflow_compares_what_the_flags_name(tfblock):
    record = json.loads(tfblock("gradflow", "small.toml", *ASKED["gradflow"], "--no-save", "--json").out)
    rows = record["data"]["rows"]
    assert {row["placement"] for row in rows} == {"pre", "post"}
    assert {row["depth"] for row in rows} == {1, 2}
    assert {row["seed"] for row in rows} == {3, 4}
    assert record["data"]["baseline"] == "post"


def test_threads(tfblock, monkeypatch):
    import torch

    from tfblock_cli.probes import causality

    during, real, before = [], causality.run, torch.get_num_threads()

    def watched(*arguments, **options):
        during.append(torch.get_num_threads())
        return real(*arguments, **options)

    monkeypatch.setattr(causality, "run", watched)
    tfblock("causality", "small.toml", "--no-save", "--threads", "2")
    tfblock("causality", "small.toml", "--no-save")
    assert during == [2, 1]
    assert torch.get_num_threads() == before


def test_gradflow_writes_what_it_is_asked_for_and_explains_itself(tfblock, here):
    small = ("gradflow", "small.toml", "--seeds", "1", "--no-save")
    outcome = tfblock(*small, "--csv", "a.csv", "--junit-xml", "a.xml", "--all-layers")
    assert outcome.code == 0
    assert (here / "a.csv").read_text(encoding="utf-8").startswith("experiment,placement,seed")
    assert "<testsuites>" in (here / "a.xml").read_text(encoding="utf-8")
    assert b"gradient norms by layer and group" in outcome.out
    assert not list(here.glob(".a.*"))

    explained = tfblock("gradflow", "--explain", "slope.rms.last")
    assert (explained.code, explained.err) == (0, "")
    assert b"least-squares slope" in explained.out
    wrong = tfblock("gradflow", "--explain", "rms.lst")
    assert wrong.code == 2
    assert "did you mean rms.last?" in wrong.err

    assert tfblock(*small, "--plot", "a.gif").code == 2
    assert tfblock(*small, "small.toml", "--plot", "a.png").code == 2


@pytest.mark.parametrize("command", ["gradflow", "causality"])
@pytest.mark.parametrize("flag", ["--csv", "--junit-xml", "--plot"])
def test_a_file_that_cannot_be_written_is_told_before_anything_runs(tfblock, here, monkeypatch, command, flag):
    if command == "causality" and flag != "--plot":
        return
    if flag == "--plot":
        pytest.importorskip("matplotlib")
    (here / "a.png").mkdir()
    (here / "locked").mkdir()
    monkeypatch.setattr(f"tfblock_cli.cli.{command}.answer", lambda *_, **__: pytest.fail("it ran"))
    for file, message in (("no/a.png", "there is no folder no"), ("a.png", "is a folder, not a file")):
        outcome = tfblock(command, "small.toml", flag, file)
        assert (outcome.code, outcome.err) == (2, f"error: {flag} {file}: {message}\n")
    monkeypatch.setattr(os, "access", lambda path, *_, **__: not str(path).endswith("locked"))  # as for any but root
    outcome = tfblock(command, "small.toml", flag, "locked/a.png")
    assert (outcome.code, outcome.err) == (2, f"error: {flag} locked/a.png: locked is not writable\n")
