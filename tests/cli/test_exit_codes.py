"""One test per exit code, through a process where the process matters."""

import errno
import os
import signal
import subprocess
from dataclasses import replace

import pytest

from tests.cli.conftest import COMMAND
from tfblock_cli import api
from tfblock_cli.cli import exit_codes
from tfblock_cli.cli.exit_codes import ExitCode
from tfblock_cli.results.result import Check
from tfblock_cli.store import write


def checked(passed: bool | None, real=api.params):
    """params, with one check of the wanted outcome."""
    check = Check(name="c", subject="s", passed=passed, value=1, op="==", limit=2, message="m")
    return lambda experiment, **options: replace(real(experiment, **options), checks=(check,))


def test_0_a_count_has_nothing_to_check(process):
    outcome = process("params", "small.toml")
    assert outcome.code == 0
    assert b"NO VERDICT" in outcome.out


def test_0_warnings_do_not_fail(process):
    assert process("params", "small.toml", "--d", "16", "--no-save").code == 0


def test_1_warnings_fail_if_strict(process):
    assert process("params", "small.toml", "--d", "16", "--no-save", "--strict").code == 1
    assert process("params", "small.toml", "--no-save", "--strict").code == 0


def test_1_a_check_failed(tfblock, monkeypatch):
    monkeypatch.setattr(api, "params", checked(False))
    assert tfblock("params", "small.toml").code == 1


def test_1_a_model_without_a_mask_sees_the_future(process, here):
    outcome = process("causality", "small.toml", "--set", "model.attention.pattern=bidirectional")
    assert outcome.code == 1, outcome.err
    assert b"FAIL" in outcome.out
    assert len(list((here / "runs").iterdir())) == 1  # a failure is saved like any other result
    assert process("causality", "small.toml").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["params", "--d", "128", "--heads", "3"], ["--d 128", "--heads 3", "divisible"]),
        (["params", "nowhere.toml"], ["nowhere.toml"]),
        (["params", "gpt3"], ["gpt3", "did you mean 'gpt2'"]),
        (["params", "--hedas", "3"], ["--hedas", "--heads"]),
        (["parms"], ["parms", "params"]),
        (["params", "--d", "many", "--heads", "1.5", "--norm", "rms"], ["--d many", "--heads 1.5", "'rmsnorm'"]),
        (["params"], ["no experiment", "gpt2"]),
        (["forward", "small.toml", "--head", "first"], ["--head first", "0.3"]),
        (["params", "small.toml", "--write-experiment", "small.toml"], ["small.toml", "--force"]),
        (["params", "gpt2", "small.toml", "--write-experiment", "new.toml"], ["--write-experiment"]),
    ],
)
def test_2_bad_input_is_told_on_stderr_and_nothing_is_saved(tfblock, here, arguments, words):
    before = sorted(here.iterdir())
    outcome = tfblock(*arguments)
    assert outcome.code == 2
    assert outcome.out == b""
    assert "Traceback" not in outcome.err
    for line in outcome.err.splitlines():
        assert line.startswith("error: ")
    for word in words:
        assert word in outcome.err
    assert sorted(here.iterdir()) == before


def test_2_every_fault_of_every_experiment_at_once(tfblock, here):
    (here / "bad.toml").write_text("[model]\nd_model = 0\nn_layer = 2\n[model.attention]\nn_heads = 2\n")
    outcome = tfblock("params", "bad.toml", "nowhere.toml", "small.toml", "--seq", "0")
    assert outcome.code == 2
    for word in ("d_model", "n_layers", "nowhere.toml", "--seq"):
        assert word in outcome.err
    assert not (here / "runs").exists()


def test_3_inconclusive(tfblock, monkeypatch, here):
    monkeypatch.setattr(api, "params", checked(None))
    assert tfblock("params", "small.toml").code == 3
    assert len(list((here / "runs").iterdir())) == 1


def test_3_a_result_that_cannot_be_saved_is_shown_all_the_same(tfblock, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(write, "_write", full)  # what cannot be known before
    outcome = tfblock("params", "small.toml")
    assert outcome.code == 3
    assert b"NO VERDICT" in outcome.out
    assert outcome.err == "error: the result was not saved in runs: No space left on device\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("division\nby zero"), SystemExit("division by zero")])
def test_3_an_unexpected_exception_is_one_line(tfblock, monkeypatch, error):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(api, "params", broken)
    outcome = tfblock("params", "small.toml")
    assert (outcome.code, outcome.out) == (3, b"")
    assert outcome.err.count("\n") == 1
    assert f"{type(error).__name__}: division by zero" in outcome.err
    assert "Traceback" in tfblock("params", "small.toml", "--debug").err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_3_out_of_memory_says_what_helps(tfblock, monkeypatch, error):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(api, "params", broken)
    outcome = tfblock("params", "small.toml")
    assert outcome.code == 3
    assert "error: out of memory; a smaller model" in outcome.err


def test_3_a_full_disk_behind_stdout(environment):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "params", "small.toml"], env=environment, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 3
    assert done.stderr.startswith(b"error: stdout could not be written")
    assert b"Traceback" not in done.stderr


def test_130_interrupted(environment, here):
    os.mkfifo(here / "pipe.toml")  # reading it blocks, so that the signal meets a process in the middle of its work
    running = subprocess.Popen(
        [*COMMAND, "params", "pipe.toml"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background job ignores it
    )
    with open(here / "pipe.toml", "wb"):  # returns once the process has opened the other end
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == b""
    assert err == b"interrupted\n"
    assert not (here / "runs").exists()


def test_130_nothing_of_the_run_is_saved(tfblock, monkeypatch, here):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "params", interrupted)
    assert tfblock("params", "small.toml").code == 130
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("outcomes", "code"), [([None, None], 0), ([None, False], 1), ([False, "?", None], 3), (["?", None], 3)]
)
def test_several_experiments_end_with_the_worst_code(tfblock, monkeypatch, here, outcomes, code):
    real, left = api.params, list(outcomes)

    def one_after_the_other(experiment, **options):
        outcome = left.pop(0)
        passed = {None: True, False: False, "?": None}[outcome]
        return checked(passed, real)(experiment, **options)

    monkeypatch.setattr(api, "params", one_after_the_other)
    assert tfblock("params", *["small.toml"] * len(outcomes)).code == code
    assert len(list((here / "runs").iterdir())) == len(outcomes)


@pytest.mark.parametrize(
    ("verdict", "warned", "strict", "code"),
    [
        ("pass", False, True, ExitCode.OK),
        ("pass", True, False, ExitCode.OK),
        ("pass", True, True, ExitCode.CHECK_FAILED),
        ("none", True, True, ExitCode.CHECK_FAILED),
        ("fail", False, False, ExitCode.CHECK_FAILED),
        ("inconclusive", True, True, ExitCode.NO_ANSWER),
    ],
)
def test_of_verdict(verdict, warned, strict, code):
    assert exit_codes.of(verdict, has_warnings=warned, strict=strict) == code
