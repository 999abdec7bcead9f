import io
import time

import pytest
from rich.console import Console

from tfblock_cli.report.terminal import progress as terminal_progress
from tfblock_cli.report.terminal.progress import TerminalProgress
from tfblock_cli.results.progress import NoProgress, Progress


class Screen(io.StringIO):
    def __init__(self, terminal: bool = True) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(terminal_progress, "PATIENCE_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")


def console_on(screen: Screen, *, quiet: bool = False) -> Console:
    return Console(file=screen, force_terminal=True, width=80, color_system=None, quiet=quiet)


def wait_for(text: str, screen: Screen) -> None:
    until = time.monotonic() + 20
    while text not in screen.getvalue():
        assert time.monotonic() < until, f"{text!r} never came: {screen.getvalue()!r}"
        time.sleep(0.01)


def test_both_speak_the_protocol():
    listeners: list[Progress] = [NoProgress(), TerminalProgress(console_on(Screen()))]
    for listener in listeners:
        listener.stop()
        listener.start("cuts", 3)
        listener.advance()
        listener.stop()
        listener.stop()


def test_slow_work_shows_a_bar_that_follows_and_leaves_a_clean_screen(impatient):
    screen = Screen()
    with TerminalProgress(console_on(screen)) as progress:
        progress.start("cuts [1, 2]", 9)
        wait_for("cuts [1, 2]", screen)
        progress.advance(4)
        wait_for("4/9", screen)
        progress.start("seeds", 5)
        wait_for("seeds", screen)
        wait_for("0/5", screen)
    # Transient: the cursor comes back, and the line is erased after the bar's last picture.
    assert "\x1b[?25h" in screen.getvalue()
    assert screen.getvalue().rfind("\x1b[2K") > screen.getvalue().rfind("seeds")


def test_an_interrupt_leaves_a_clean_screen_too(impatient):
    screen = Screen()

    def interrupted() -> None:
        with TerminalProgress(console_on(screen)) as progress:
            progress.start("cuts", 9)
            wait_for("cuts", screen)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen.getvalue().rfind("\x1b[2K") > screen.getvalue().rfind("cuts")


def test_quick_work_shows_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    with TerminalProgress(console_on(screen)) as progress:
        progress.start("cuts", 9)
        progress.advance(9)
    assert screen.getvalue() == ""


@pytest.mark.parametrize("quiet", [False, True])
def test_nobody_watches(impatient, quiet):
    # FORCE_COLOR has the same effect as force_terminal: Rich believes that the log file is a terminal.
    screen = Screen(terminal=quiet)
    with TerminalProgress(console_on(screen, quiet=quiet)) as progress:
        progress.start("cuts", 9)
        time.sleep(0.1)
        progress.advance()
    assert screen.getvalue() == ""
