"""tfblock causality on somebody else's model, from the command line and from a file."""

import json
import sys
import tomllib

import pytest

SOURCE = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, leak=False):
        super().__init__()
        self.leak, self.embed = leak, nn.Embedding(20, 4)
    def forward(self, ids):
        print("inside")
        x = self.embed(ids)
        past = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return {"y": past + x.mean(1, keepdim=True) if self.leak else past}

def vectors():
    print("made")
    return nn.Linear(4, 4)

def raising():
    raise RuntimeError("no such disk")
"""
FILE = """\
# Is the colleague's net causal?
[input]
seq_len = 5

[target]
factory = "net:Net"
kwargs = { leak = false }
vocab_size = 20
output_key = "y"
"""
FLAGS = ("--target", "net:Net", "--vocab", "20", "--output-key", "y", "--seq", "5")


@pytest.fixture(autouse=True)
def net(here):
    (here / "net.py").write_text(SOURCE)
    (here / "theirs.toml").write_text(FILE)
    yield
    sys.modules.pop("net", None)


def test_named_on_the_command_line_it_runs_as_it_is(tfblock):
    outcome = tfblock("causality", *FLAGS, "--no-save", "--json")
    record = json.loads(outcome.out)  # what the model prints does not stand in it
    assert outcome.code == 0, outcome.err
    assert "inside" in outcome.err
    assert record["experiment"]["name"] == "Net"
    assert record["experiment"]["target"] == {
        "factory": "net:Net",
        "kwargs": {},
        "vocab_size": 20,
        "d_model": 0,
        "output_key": "y",
        "chunk": 0,
    }


def test_a_leak_is_found(tfblock):
    outcome = tfblock("causality", *FLAGS, "--set", "target.kwargs.leak=true", "--no-save", "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["data"]["leaks"][0]["shape"] == "full upper triangle"


def test_vectors(tfblock):
    outcome = tfblock("causality", "--target", "net:vectors", "--d", "4", "--seq", "3", "--no-save", "--json")
    assert outcome.code == 1  # nothing flows from the past: it looks at each position alone
    assert {probe["verdict"] for probe in json.loads(outcome.out)["data"]["probes"]} >= {"no-flow", "clean"}


def test_named_in_a_file_it_runs_with_trust_alone(tfblock, here):
    outcome = tfblock("causality", "theirs.toml")
    assert outcome.code == 2
    assert outcome.err == (
        "error: theirs.toml: target.factory: this names code to run; give --trust, or name it by --target\n"
    )
    assert "net" not in sys.modules
    assert not (here / "runs").exists()
    assert tfblock("causality", "theirs.toml", "--trust", "--no-save").code == 0
    assert tfblock("causality", "theirs.toml", "--target", "net:Net", "--no-save").code == 0


def test_the_saved_experiment_repeats_the_run(tfblock, here):
    assert tfblock("causality", *FLAGS).code == 0
    (folder,) = (here / "runs").iterdir()
    assert folder.name.split("-")[1:3] == ["causality", "Net"]
    saved = tomllib.loads((folder / "experiment.toml").read_text())
    assert saved["target"]["factory"] == "net:Net"
    assert tfblock("causality", str(folder), "--no-save").code == 2
    again = json.loads(tfblock("causality", str(folder), "--trust", "--no-save", "--json").out)
    first = json.loads((folder / "result.json").read_bytes())
    for record in (first, again):
        del record["run"], record["provenance"]
    assert json.dumps(first) == json.dumps(again)


@pytest.mark.parametrize("command", ["params", "forward"])
def test_what_needs_a_model_refuses_a_target(tfblock, command):
    outcome = tfblock(command, "theirs.toml")
    assert outcome.code == 2
    rule = "a [target] can be asked by tfblock causality and tfblock gradflow; everything else is about a [model]"
    assert outcome.err == f"error: theirs.toml: target: {rule}\n"


BOTH = "an experiment has a [model], which tfblock builds, or a [target], which somebody else has built; not both"
COMPLAINTS = {
    ("--target", "net:Net"): "--target net:Net: what does it take? vocab_size = V (--vocab V) for ids below V, "
    "d_model = D (--d D) for vectors of width D",
    (*FLAGS, "--d", "4"): "--vocab 20, --d 4: it takes either ids below vocab_size or vectors of width d_model, not "
    "both",
    (*FLAGS, "--heads", "2"): f"--heads 2, --target net:Net: {BOTH}",
    ("small.toml", *FLAGS): f"small.toml: model, --target net:Net: {BOTH}",
    (*FLAGS, "--dtype", "float64"): "--dtype float64: goes with a [model]; a [target] has no dtype",
    (*FLAGS, "--set", "target.kwarg.x=1"): "--set target.kwarg.x=1: unknown key; did you mean target.kwargs?",
    (*FLAGS, "--set", "target.vocab_size='x'"): "--set target.vocab_size='x': expected a whole number from 0 to "
    "2147483647, got the text 'x'",
    (*FLAGS, "--set", "target.kwargs.x=1979-05-27"): "--set target.kwargs.x=1979-05-27: 1979-05-27 cannot be passed "
    "on: only text, finite numbers, true, false, arrays, tables",
    (*FLAGS, "--set", "target.kwargs.x=[nan]"): "--set target.kwargs.x=[nan]: nan cannot be passed on: only text, "
    "finite numbers, true, false, arrays, tables",
    ("--target", "Net", "--vocab", "3"): "--target Net: 'Net' names no factory: write pkg.mod:factory, as in an "
    "import, or hf:PATH",
    ("--target", "hf:", "--vocab", "3"): "--target hf:: is empty: name a factory as pkg.mod:factory, or hf:PATH",
    ("--target", "hf:x", "--d", "3"): "--d 3: a Hugging Face model takes ids",
    ("--output-key", "y", "--vocab", "3"): "target.factory is missing: give --target",
    ("--target", "net:raising", "--d", "3"): "target net:raising: raising() raised RuntimeError: no such disk",
    (*FLAGS, "--device", "meta"): "device: there are no numbers on the device meta, and a leak is a matter of numbers",
}


@pytest.mark.parametrize("arguments", COMPLAINTS)
def test_a_complaint(tfblock, here, arguments):
    outcome = tfblock("causality", *arguments)
    assert (outcome.code, outcome.err) == (2, f"error: {COMPLAINTS[arguments]}\n")
    assert not (here / "runs").exists()


def test_debug_shows_where_their_code_failed(tfblock):
    assert "Traceback" not in tfblock("causality", "--target", "net:raising", "--d", "3").err
    shown = tfblock("causality", "--target", "net:raising", "--d", "3", "--debug")
    assert shown.code == 2
    assert "Traceback" in shown.err
    assert 'raise RuntimeError("no such disk")' in shown.err


def test_it_is_found_from_a_process_of_its_own(process):
    outcome = process("causality", *FLAGS, "--no-save", "--json")
    assert (outcome.code, json.loads(outcome.out)["verdict"]) == (0, "pass")


def test_gradflow_asks_one_as_well(tfblock, here):
    outcome = tfblock("gradflow", *FLAGS, "--seeds", "2", "--json", "--csv", "a.csv", "--junit-xml", "a.xml")
    record = json.loads(outcome.out)
    assert (outcome.code, record["verdict"]) == (0, "pass"), outcome.err
    assert "inside" in outcome.err
    assert record["experiment"]["gradflow"] == {"seeds": 2, "loss": "auto"}
    assert {row["group"] for row in record["data"]["rows"]} == {"model", "embed"}
    assert len((here / "a.csv").read_text().splitlines()) == 1 + len(record["data"]["rows"])
    assert "guard.non_finite_gradients" in (here / "a.xml").read_text()
    (folder,) = (here / "runs").iterdir()
    again = json.loads(tfblock("gradflow", str(folder), "--trust", "--no-save", "--json").out)
    assert again["data"] == record["data"]


def test_gradflow_of_a_file_needs_trust(tfblock, here):
    outcome = tfblock("gradflow", "theirs.toml")
    assert (outcome.code, "give --trust" in outcome.err) == (2, True)
    assert "net" not in sys.modules
    assert tfblock("gradflow", "theirs.toml", "--trust", "--no-save").code == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--placements", "pre"), "--placements pre: goes with a [model]; a [target] has no gradflow.placements"),
        (("--depths", "4"), "--depths 4: goes with a [model]; a [target] has no gradflow.depths"),
        (("--seeds", "0"), "--seeds 0: expected a whole number from 1 to 2147483647, got 0"),
        (("--device", "meta"), "device: there are no numbers on the device meta, and a gradient is one"),
        (("--plot", "no/a.png"), "--plot no/a.png: there is no folder no"),
    ],
)
def test_a_complaint_of_gradflow(tfblock, here, flags, message):
    outcome = tfblock("gradflow", *FLAGS, *flags)
    assert (outcome.code, outcome.err.splitlines()[-1]) == (2, f"error: {message}")
    assert not (here / "runs").exists()


def test_a_picture_of_what_has_no_layers_is_refused_before_it_runs(tfblock, here):
    pytest.importorskip("matplotlib")
    outcome = tfblock("gradflow", *FLAGS, "--plot", "a.png", "--csv", "a.csv")
    assert outcome.code == 2
    message = "no list of layers was found in it (nn.ModuleList or nn.Sequential of one class): none can be drawn"
    assert outcome.err == f"error: target net:Net: {message}\n"  # and Net has not said that it was inside
    assert not (here / "a.png").exists()
    assert not (here / "runs").exists()
    assert not (here / "a.csv").exists()


def test_a_picture_of_what_has_layers_is_drawn(tfblock, here):
    pytest.importorskip("matplotlib")
    stack = "import torch\ndef stack():\n    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))\n"
    (here / "net.py").write_text(stack)
    outcome = tfblock("gradflow", "--target", "net:stack", "--d", "4", "--no-save", "--plot", "a.png")
    assert outcome.code == 0, outcome.err
    assert (here / "a.png").is_file()
