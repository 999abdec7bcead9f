"""Cells: the same results in one process or many, none run twice, a death that costs one of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tfblock_cli.probes.gradflow.training.cells import DIED, Here, Plain, processes, run_cells

ROOT = Path(__file__).parents[4]
MADE_WITH = {"torch": "2"}


def work(task):
    """What a cell does here; module-level, so that another process finds it."""
    if task.get("dies") == "always" or (task.get("dies") and not Path(task["dies"]).exists()):
        if task["dies"] != "always":
            Path(task["dies"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if log := task.get("log"):
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{task['n']}\n")
    return {"value": task["n"] ** 2, "error": task.get("error", "")}


def run(cells, executors=lambda _: Here(), *, jobs=1, finished=None, done=lambda name, known: None, made_with=None):
    return run_cells(
        cells,
        work,
        executors=executors,
        jobs=jobs,
        finished={} if finished is None else finished,
        made_with=made_with or MADE_WITH,
        done=done,
    )


def cells(n, **more):
    return {f"cell{i}": {"n": i, **more} for i in range(n)}


def test_results_come_in_the_order_of_the_cells():
    found = run(cells(5))
    assert list(found) == list(cells(5))
    assert [result["value"] for result in found.values()] == [0, 1, 4, 9, 16]


@contextmanager
def threads(workers: int) -> Iterator[Executor]:
    with ThreadPoolExecutor(workers) as pool:
        yield pool


def test_any_executor_will_do_and_gives_the_same():
    assert run(cells(9), threads, jobs=3) == run(cells(9))


def test_no_more_cells_run_at_once_than_there_are_jobs():
    running, most = [0], [0]

    def count(task):
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.01)
        running[0] -= 1
        return {"error": ""}

    run_cells(cells(8), count, executors=threads, jobs=2, finished={}, made_with={}, done=lambda name, known: None)
    assert 1 <= most[0] <= 2


def test_what_is_finished_is_not_run_again(tmp_path):
    log = tmp_path / "log"
    finished: dict[str, Plain] = {}
    told = []
    run(cells(2, log=str(log)), finished=finished)
    found = run(cells(4, log=str(log)), finished=finished, done=lambda name, known: told.append((name, known)))
    assert log.read_text().split() == ["0", "1", "2", "3"]
    assert [result["value"] for result in found.values()] == [0, 1, 4, 9]
    assert told == [("cell0", True), ("cell1", True), ("cell2", False), ("cell3", False)]


def test_what_was_made_with_something_else_is_run_again(tmp_path):
    log = tmp_path / "log"
    finished: dict[str, Plain] = {}
    run(cells(1, log=str(log)), finished=finished)
    run(cells(1, log=str(log)), finished=finished, made_with={"torch": "3"})
    assert log.read_text().split() == ["0", "0"]


def test_a_cell_that_failed_is_tried_again_by_the_next_call():
    finished: dict[str, Plain] = {}
    found = run({"bad": {"n": 1, "error": "MemoryError"}, "good": {"n": 2}}, finished=finished)
    assert found["bad"]["error"] == "MemoryError"
    assert list(finished) == ["good"]


def test_a_process_that_dies_costs_its_own_cell_alone():
    asked = cells(3) | {"dead": {"n": 7, "dies": "always"}}
    finished: dict[str, Plain] = {}
    found = run(asked, processes, jobs=2, finished=finished)
    assert found["dead"] == {"error": DIED}
    assert [found[f"cell{i}"]["value"] for i in range(3)] == [0, 1, 4]
    assert list(found) == list(asked)
    assert set(finished) == set(asked) - {"dead"}


def test_a_cell_whose_process_died_once_runs_again_alone(tmp_path):
    found = run({"once": {"n": 5, "dies": str(tmp_path / "died")}} | cells(2), processes, jobs=2)
    assert [result["value"] for result in found.values()] == [25, 0, 1]


SCRIPT = """
import os, sys, time
from functools import partial
sys.path.insert(0, {root!r})
from tests.probes.gradflow.training.test_cells import sleep
from tfblock_cli.probes.gradflow.training.cells import processes, run_cells

if __name__ == "__main__":
    run_cells(
        {{f"cell{{i}}": {{"n": i, "pids": {pids!r}}} for i in range(4)}},
        sleep, executors=processes, jobs=2, finished={{}}, made_with={{}}, done=lambda name, known: None,
    )
"""


def sleep(task):
    (Path(task["pids"]) / str(os.getpid())).touch()
    time.sleep(60)
    return {"error": ""}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to look at")
def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path):
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    pids.mkdir()
    script.write_text(SCRIPT.format(root=str(ROOT), pids=str(pids)), encoding="utf-8")
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    await_workers(pids)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(is_alive(int(pid.name)) for pid in pids.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid.name for pid in pids.iterdir() if is_alive(int(pid.name))]


def is_alive(pid: int) -> bool:
    """Whether it runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_workers(pids: Path) -> None:
    deadline = time.monotonic() + 60
    while len(list(pids.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signals to block")
def test_ctrl_c_ends_the_processes_at_once_and_quietly(tmp_path):
    script = tmp_path / "script.py"
    pids = tmp_path / "pids"
    pids.mkdir()
    script.write_text(SCRIPT.format(root=str(ROOT), pids=str(pids)), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
    )
    await_workers(pids)
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - start < 20
    assert errors.count("Traceback") == 1  # the parent's own
    assert "KeyboardInterrupt" in errors
    for pid in pids.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.name), 0)
