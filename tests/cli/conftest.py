"""Two ways to run a command line: as a process of its own, and quickly, in this one."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tfblock_cli.__main__ import run

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tfblock_cli"]

EXPERIMENT = """\
# What does it cost?
seed = 3

[input]
batch_size = 1
seq_len = 4

[model]
d_model = 8
n_layers = 1
vocab_size = 16
max_seq_len = 8

[model.attention]
n_heads = 2

[model.ffn]
kind = "mlp"
d_ff = 16
"""
"""Small, with a written-out d_ff: ``--d`` leaves it standing, which is a warning."""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: bytes
    err: str


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, so that no test writes into runs/ of the checkout."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(EXPERIMENT, encoding="utf-8")
    return tmp_path


@pytest.fixture
def environment(here: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def tfblock(here: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    """In this process, through the error boundary."""

    def call(*arguments: str) -> Outcome:
        capsysbinary.readouterr()
        code = run(list(arguments))
        out, err = capsysbinary.readouterr()
        return Outcome(code, out, err.decode())

    return call


@pytest.fixture
def process(here: Path, environment: dict[str, str]) -> Callable[..., Outcome]:
    """As a process of its own."""

    def call(*arguments: str) -> Outcome:
        done = subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, check=False, timeout=100)
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    return call
