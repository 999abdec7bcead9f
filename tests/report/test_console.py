import io

import pytest
from rich.text import Text

from tfblock_cli.report.terminal.console import make_consoles


class Stream(io.TextIOWrapper):
    """A text stream that may say it is a terminal."""

    def __init__(self, *, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode(self.encoding)


@pytest.fixture
def streams(monkeypatch):
    def install(*, terminal: bool, encoding: str = "utf-8") -> tuple[Stream, Stream]:
        out, err = (Stream(terminal=terminal, encoding=encoding) for _ in range(2))
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        return out, err

    return install


@pytest.mark.parametrize(("columns", "width"), [(None, 120), ("90", 90), ("0", 120), ("many", 120), ("7", 60)])
def test_off_a_terminal_the_width_is_columns_or_120(monkeypatch, streams, columns, width):
    streams(terminal=False)
    monkeypatch.delenv("COLUMNS")
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert [console.width for console in make_consoles(quiet=False)] == [width, width]


def test_a_terminal_gives_its_own_width(monkeypatch, streams):
    streams(terminal=True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "77")  # what a terminal reports, for a test without one
    assert make_consoles(quiet=False)[0].width == 77


def test_each_console_writes_to_its_own_stream_and_quiet_silences_the_first(streams):
    out, err = streams(terminal=False)
    for console, text in zip(make_consoles(quiet=False), ("report", "trouble"), strict=True):
        console.print(text)
    assert (out.text(), err.text()) == ("report\n", "trouble\n")
    out, err = streams(terminal=False)
    for console, text in zip(make_consoles(quiet=True), ("report", "trouble"), strict=True):
        console.print(text)
    assert (out.text(), err.text()) == ("", "trouble\n")


def test_brackets_numbers_and_colons_stay_as_they_are(monkeypatch, streams):
    out, _ = streams(terminal=True)
    monkeypatch.setenv("TERM", "xterm-256color")
    make_consoles(quiet=False)[0].print("x [batch, seq] 3.14 :smile:")
    assert out.text() == "x [batch, seq] 3.14 :smile:\n"


def test_a_letter_that_the_encoding_lacks_is_no_crash(streams):
    out, _ = streams(terminal=False, encoding="ascii")
    make_consoles(quiet=False)[0].print("naïve")
    assert out.text() == "na?ve\n"


def test_a_long_word_goes_on_in_the_next_line(streams):
    out, _ = streams(terminal=False)
    make_consoles(quiet=False)[0].print(Text("x" * 250))
    assert out.text().split("\n") == ["x" * 120, "x" * 120, "x" * 10, ""]


@pytest.mark.parametrize(("no_color", "coloured"), [(None, True), ("1", False)])
def test_no_color_is_respected(monkeypatch, streams, no_color, coloured):
    out, _ = streams(terminal=True)
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    make_consoles(quiet=False)[0].print(Text("PASS", "green"))
    assert ("\x1b[32m" in out.text()) is coloured
