"""A progress bar on stderr, for work that takes long enough to wonder."""

from threading import Lock, Timer
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

PATIENCE_S = 1.0


class TerminalProgress:
    """A bar that appears after ``PATIENCE_S`` seconds and leaves nothing behind.

    Silent where nobody watches: off a terminal, or on one that cannot redraw a line. As a context manager it
    cleans the screen however the work ends, by Ctrl-C too.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        # Not is_terminal: FORCE_COLOR makes Rich take a log file for a terminal.
        self._watched = console.file.isatty() and console.is_interactive and not console.quiet
        self._lock = Lock()
        self._timer: Timer | None = None
        self._bar: RichProgress | None = None
        self._description = ""
        self._total = 0
        self._done = 0

    def start(self, description: str, total: int) -> None:
        """Begin to count; a bar that is already there goes on as this one."""
        with self._lock:
            self._description, self._total, self._done = description, total, 0
            if self._bar is not None:
                self._bar.reset(self._bar.task_ids[0], description=description, total=total)
            elif self._watched and self._timer is None:
                self._timer = Timer(PATIENCE_S, self._show)
                self._timer.daemon = True
                self._timer.start()

    def advance(self, n: int = 1) -> None:
        """Count ``n`` more units."""
        with self._lock:
            self._done += n
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self._done)

    def stop(self) -> None:
        """Take the bar away."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def __enter__(self) -> "TerminalProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _show(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        with self._lock:
            if self._timer is None:  # stopped while this thread was waking up
                return
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
                redirect_stdout=False,  # stdout carries the report, or JSON
            )
            self._bar.add_task(self._description, total=self._total, completed=self._done)
            self._bar.start()
