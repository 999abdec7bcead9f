"""Cells: independent pieces of work, run here or in processes, none of them twice."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Plain = dict[str, Any]
Executors = Callable[[int], AbstractContextManager[Executor]]
"""Makes an executor of so many workers; leaving it ends them."""
DIED = "its process died; too little memory is the usual reason"


class Finished(Protocol):
    """Cells that need not run again, by name: a dict, or one that outlives the process."""

    def get(self, name: str, /) -> Plain | None:
        """What the cell came to, if it is known."""

    def __setitem__(self, name: str, found: Plain, /) -> None:
        """Keep it."""


class Here(Executor):
    """Runs what is submitted at once and in this process."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Done when it returns."""
        future: Future[T] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def processes(workers: int) -> Iterator[Executor]:
    """Processes that share nothing with this one. Whatever ends the ``with`` early ends them too."""
    before = set(multiprocessing.active_children())
    pool = _Pool(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Even if the parent is killed: a worker that waits for work would wait for ever."""
    parent = multiprocessing.parent_process()

    def wait_for_its_end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_for_its_end, daemon=True).start()


class _Pool(ProcessPoolExecutor):
    """Its processes leave Ctrl-C to this one, which ends them: else each would print a traceback."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """A process that this starts has the signal blocked from its first moment on, as we have meanwhile."""
        if not hasattr(signal, "pthread_sigmask"):
            return super().submit(fn, *args, **kwargs)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def run_cells(
    cells: Mapping[str, Plain],
    work: Callable[[Plain], Plain],
    *,
    executors: Executors,
    jobs: int,
    finished: Finished,
    made_with: Plain,
    done: Callable[[str, bool], object],
) -> dict[str, Plain]:
    """What every cell comes to, in the order of ``cells``, whatever the number of jobs.

    A cell whose process dies has an ``error``; those beside it run again.

    Args:
        cells: By name, what ``work`` is given.
        work: A function that other processes can import; it raises nothing.
        executors: See there.
        jobs: How many cells run at once.
        finished: What is found in it is not run; what is run to its end is put into it.
        made_with: What a result depends on beside the cell; one that was made with something else is not used.
        done: Told the name of every cell that has its result, and whether it was known before.
    """
    found: dict[str, Plain] = {}

    def keep(name: str, result: Plain, *, known: bool = False) -> None:
        found[name] = result
        done(name, known)

    waiting: deque[str] = deque()
    for name in cells:
        before = finished.get(name)
        if before is not None and before.get("made_with") == made_with:
            keep(name, before, known=True)
        else:
            waiting.append(name)
    suspects: deque[str] = deque()
    while waiting or suspects:
        # a process that dies takes the whole executor along: which cell killed it shows when each runs alone
        alone = bool(suspects)
        batch = deque([suspects.popleft()]) if alone else waiting
        with executors(1 if alone else jobs) as executor:
            for name, result in _results(batch, cells, work, executor, 1 if alone else jobs):
                if result is not None:
                    if not result["error"]:
                        finished[name] = result | {"made_with": made_with}
                    keep(name, result)
                elif alone:
                    keep(name, {"error": DIED})
                else:
                    suspects.append(name)
    return {name: found[name] for name in cells}


def _results(
    waiting: deque[str], cells: Mapping[str, Plain], work: Callable[[Plain], Plain], executor: Executor, jobs: int
) -> Iterator[tuple[str, Plain | None]]:
    """Each cell as it is done; None for those that were running when the executor broke, which is the end."""
    running: dict[Future[Plain], str] = {}
    broken = False
    while running or (waiting and not broken):
        while waiting and len(running) < jobs and not broken:
            name = waiting.popleft()
            try:
                running[executor.submit(work, cells[name])] = name
            except BrokenExecutor:
                broken = True
                yield name, None
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in ended:
            name = running.pop(future)
            try:
                yield name, future.result()
            except BrokenExecutor:
                broken = True
                yield name, None
