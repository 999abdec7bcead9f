"""The options that only causality has, as one types them."""

import sys

import pytest

from tfblock_cli.probes.causality import self_test as module
from tfblock_cli.probes.causality.zoo.parts import Attention, Net, Specimen, leak


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_drawn(tfblock, here, suffix):
    pytest.importorskip("matplotlib")
    outcome = tfblock("causality", "small.toml", "--no-save", "--plot", f"seen.{suffix}")
    assert outcome.code == 0
    assert f"wrote seen.{suffix}" in outcome.err
    start = (here / f"seen.{suffix}").read_bytes()[:100]
    assert b"PNG" in start or b"<?xml" in start


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("small.toml", "--plot", "seen.pdf"), "must end in .png or .svg"),
        (("small.toml", "--plot", "nowhere/seen.png"), "there is no folder nowhere"),
        (("small.toml", "small.toml", "--plot", "seen.png"), "draws one experiment"),
        (("--self-test", "--plot", "seen.png"), "draws one experiment"),
        (("small.toml", "--self-test"), "asks no experiment"),
        (("small.toml", "--declare", "windw=3"), "expected one of auto, causal"),
        (("small.toml", "--budget", "0"), "from 10 to"),
        (("small.toml", "--weights", "large"), "'rescaled'"),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(tfblock, here, arguments, complaint):
    pytest.importorskip("matplotlib")
    outcome = tfblock("causality", *arguments)
    assert outcome.code == 2
    assert complaint in outcome.err
    assert not (here / "runs").exists()


def test_without_matplotlib_the_extra_is_named(tfblock, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("tfblock_cli.cli.files.find_spec", lambda name: None)
    outcome = tfblock("causality", "small.toml", "--plot", "seen.png")
    assert outcome.code == 2
    assert "tfblock[plot]" in outcome.err


@pytest.mark.parametrize(
    ("pattern", "declare", "code"),
    [
        ("bidirectional", "auto", 1),
        ("bidirectional", "bidirectional", 0),
        ("causal", "window=2", 1),
    ],
)
def test_a_declaration_decides(tfblock, pattern, declare, code):
    asked = ("causality", "small.toml", "--no-save", "--quiet", "--pattern", pattern, "--declare", declare)
    assert tfblock(*asked).code == code


def test_a_self_test_that_holds_and_one_that_does_not(tfblock, monkeypatch):
    """The whole zoo is asked in tests/probes/causality/test_zoo.py."""
    leaky = Specimen(name="no mask", make=lambda: Net(Attention(lambda h, q, k: k == k)), wanted=leak("suffix_cuts"))
    monkeypatch.setattr(module, "ZOO", {"masks": (leaky,)})
    assert tfblock("causality", "--self-test", "--no-save").code == 0
    sound = Specimen(name="sound", make=lambda: Net(Attention()), wanted=leak("suffix_cuts"))
    monkeypatch.setattr(module, "ZOO", {"masks": (leaky, sound)})
    outcome = tfblock("causality", "--self-test", "--no-save")
    assert outcome.code == 3
    assert b"1 of 2 broken models caught" in outcome.out
