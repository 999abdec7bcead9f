"""Nothing that foreign code writes stands among the answer, however it writes."""

import json
import os
import subprocess
import sys
from threading import Thread

import pytest
import torch
from torch import nn

import tfblock_cli as tfblock
from tfblock_cli.probes.prints import prints_to_stderr

SOURCE = """\
import ctypes, os, subprocess, sys
import torch
from torch import nn

def say(word):
    print("print", word)
    os.write(1, b"descriptor " + word.encode() + b"\\n")
    subprocess.run([sys.executable, "-c", f"print('program {word}')"], check=True)
    if sys.__stdout__:
        sys.__stdout__.write(f"original {word}\\n")
    if sys.platform != "win32":
        ctypes.CDLL(None).printf(b"C %s\\n", word.encode())

say("imported")

class Net(nn.Linear):
    calls = 0
    def forward(self, x):
        if not Net.calls:
            say("called")
        Net.calls += 1
        return super().forward(x).cumsum(1)

def make():
    say("made")
    return Net(4, 4)
"""
WAYS = ("print", "descriptor", "program", "original", *(("C",) if sys.platform != "win32" else ()))


@pytest.fixture
def noisy(tmp_path):
    """A folder with a module ``noisy``, and the command line that asks about it there."""
    (tmp_path / "noisy.py").write_text(SOURCE)

    def ask(shell: str = "") -> subprocess.CompletedProcess[str]:
        flags = "causality --target noisy:make --d 4 --seq 2 --no-save --json"
        command = f'"{sys.executable}" -m tfblock_cli {flags} {shell}'
        return subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)

    return ask


def test_stdout_is_the_answer_however_a_target_writes(noisy):
    outcome = noisy()
    assert json.loads(outcome.stdout)["verdict"] == "pass"
    said = outcome.stderr.splitlines()
    for way in WAYS:
        assert [line for line in said if line.startswith(f"{way} ")] == [
            f"{way} {word}" for word in ("imported", "made", "called")
        ]


@pytest.mark.skipif(sys.platform == "win32", reason="a shell's words")
def test_with_a_closed_stderr_it_goes_nowhere(noisy):
    outcome = noisy("2>&-")
    assert json.loads(outcome.stdout)["verdict"] == "pass"
    assert outcome.stderr == ""


def state() -> tuple[object, ...]:
    return sys.stdout, os.fstat(1).st_ino, os.fstat(1).st_dev, len(os.listdir("/proc/self/fd"))


LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files as Linux has them")


@LINUX
def test_everything_is_as_it_was(capfd):
    before = state()
    os.write(1, b"one ")
    with prints_to_stderr():
        os.write(1, b"two ")
        print("three", end=" ")
        with prints_to_stderr():
            os.write(1, b"four ")
        os.write(1, b"five ")
    os.write(1, b"six ")

    def interrupted() -> None:
        with prints_to_stderr():
            os.write(1, b"seven ")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    os.write(1, b"eight")
    assert state() == before
    out, err = capfd.readouterr()
    assert out == "one six eight"
    assert sorted(err.split()) == sorted(["two", "three", "four", "five", "seven"])


@LINUX
def test_in_a_thread_and_without_a_stdout_only_prints_are_led_aside(capfd, monkeypatch):
    def run() -> None:
        with prints_to_stderr():
            os.write(1, b"stays ")
            print("goes ", end="")

    before = state()
    thread = Thread(target=run)
    thread.start()
    thread.join()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "__stdout__", None)
        run()
    with open(os.devnull, "w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "__stdout__", file)  # another descriptor
        run()
    assert state() == before
    assert capfd.readouterr() == ("stays stays stays ", "goes goes goes ")


class Printing(nn.Linear):
    def forward(self, x):
        print("inside")
        os.write(1, b"past it\n")
        return super().forward(x).cumsum(1)


@pytest.mark.parametrize("check", [tfblock.check_causality, tfblock.check_gradients])
def test_a_module_in_hand_prints_to_stderr_as_well(capfd, check):
    assert check(Printing(4, 4), torch.zeros(1, 2, 4)).verdict != "fail"
    out, err = capfd.readouterr()
    assert out == ""
    assert {"inside", "past it"} == set(err.splitlines())


def test_a_target_of_gradflow_does_so_too(capfd, tmp_path, monkeypatch):
    (tmp_path / "noisy.py").write_text(SOURCE.replace("subprocess.run", "(lambda *args, **options: None)"))
    monkeypatch.chdir(tmp_path)
    table = {"target": {"factory": "noisy:make", "d_model": 4}, "input": {"seq_len": 2}}
    assert tfblock.gradflow(tfblock.loading.target_experiment(table)).command == "gradflow"
    out, err = capfd.readouterr()
    assert out == ""
    assert {"print imported", "descriptor made", "descriptor called"} <= set(err.splitlines())
