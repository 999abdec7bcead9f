"""The commands that README.md and docs/ show, run again, and what they print held against what is shown.

In a document, a fenced block of language

- ``console`` is a session: ``$ tfblock ...`` and what it prints, stdout before stderr, 100 columns wide. ``[...]`` on
  a line of its own stands for any number of lines that are left out. ``$ echo $?`` shows the exit code, which is 0
  where it is not shown.
- ``python`` is run; ``print(...)  # 590464`` shows what it prints.
- ``toml`` whose first line is ``# name.toml: ...`` is a file beside them.
- ``bash`` or ``yaml`` shows commands without output; each ``tfblock ...`` in it must end with 0.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from unittest.mock import patch

from tfblock_cli.__main__ import run

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
WIDTH = 100
LEFT_OUT = "[...]"
TOLERANCE = 0.02
NOISE = 1e-12
"""Below it a number is rounding, which may differ from machine to machine."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TOKEN = re.compile(r"x(?=\d)|[^\W\d]\w*|\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|─+|\S")
_MASKS = (
    (re.compile(r"\d{8}T\d{6}Z(-\S+-)[0-9a-f]{8}\b"), r"TIME\1HASH"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r'(?<="duration_s": )\d[\d.]*|\b\d+(\.\d+)? m?s\b'), "DURATION"),
)
_COMMAND = re.compile(r"^(?:- run: |\.venv/bin/)?(tfblock .*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block, its language, and the document that it stands in."""

    document: Path
    language: str
    text: str


@dataclass(frozen=True)
class Shown:
    """A command of a session as it is shown."""

    command: str
    output: tuple[str, ...]
    code: int


@dataclass(frozen=True)
class Printed:
    """What a command line left behind."""

    code: int
    lines: tuple[str, ...]


def blocks(document: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a document, in any of the languages."""
    found = _FENCE.findall(document.read_text(encoding="utf-8"))
    return [Block(document, language, text) for language, text in found if language in languages]


def session(text: str) -> Iterator[Shown]:
    """The commands of a ``console`` block."""
    first, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not first.strip(), f"a session begins with a command, not with {first!r}"
    for index, part in enumerate(parts):
        command, *output = part.rstrip().splitlines()
        if command == "echo $?":
            assert index, "echo $? follows a command"
            continue
        after = parts[index + 1].split() if index + 1 < len(parts) else []
        yield Shown(command, tuple(output), int(after[2]) if after[:2] == ["echo", "$?"] else 0)


def commands(text: str) -> Iterator[str]:
    """The command lines of a ``bash`` or ``yaml`` block."""
    for line in text.splitlines():
        found = _COMMAND.match(line.strip())
        if found:
            yield found[1]


def files(document: Path) -> dict[str, str]:
    """The files that a document shows, by name."""
    named = ((re.match(r"# ([\w.-]+\.toml): ", block.text), block.text) for block in blocks(document, "toml"))
    return {found[1]: text for found, text in named if found}


@cache
def printed(command: str, folder: Path) -> Printed:
    """What ``tfblock ...`` prints in a folder; a command that is shown twice is run once."""
    program, *arguments = shlex.split(command, comments=True)
    assert program == "tfblock", f"not a command of ours: {command}"
    out, err = (TextIOWrapper(BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"COLUMNS": str(WIDTH)}))
        stack.enter_context(patch.object(sys, "argv", ["tfblock", *arguments]))
        stack.enter_context(chdir(folder))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        code = run(arguments)
    lines: list[str] = []
    for stream in (out, err):
        stream.flush()
        assert isinstance(stream.buffer, BytesIO)
        lines += stream.buffer.getvalue().decode("utf-8").rstrip().splitlines()
    return Printed(code, tuple(lines))


def agree(shown: str, seen: str) -> bool:
    """Whether two lines say the same: words and counts exactly, other numbers to 2 %, times and hashes not at all."""
    mine, theirs = _tokens(shown), _tokens(seen)
    return len(mine) == len(theirs) and all(map(_same, mine, theirs))


def difference(shown: tuple[str, ...], seen: tuple[str, ...]) -> str:
    """ "" where what is shown is what was seen but for the lines that are left out; else what is not there."""
    parts = _parts(shown)
    place = 0
    for number, part in enumerate(parts):
        starts = [*range(place, len(seen) - len(part) + 1)]
        if number == 0:
            starts = [start for start in starts if start == 0]
        if number == len(parts) - 1:
            starts = [start for start in starts if start + len(part) == len(seen)]
        found = next((start for start in starts if all(map(agree, part, seen[start:]))), None)
        if found is None:
            return "\n".join(("this is shown:", *part, "and this was seen:", *seen[place:]))
        place = found + len(part)
    return ""


def _parts(shown: tuple[str, ...]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for line in shown:
        if line == LEFT_OUT:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _tokens(line: str) -> list[str]:
    for mask, word in _MASKS:
        line = mask.sub(word, line)
    return ["─" if token.startswith("─") else token for token in _TOKEN.findall(line)]


def _same(shown: str, seen: str) -> bool:
    if shown == seen:
        return True
    if not all(token[0].isdigit() and re.search(r"[.e]", token) for token in (shown, seen)):
        return False  # words, and counts
    mine, theirs = (float(token.replace(",", "")) for token in (shown, seen))
    return max(mine, theirs) < NOISE or abs(mine - theirs) <= TOLERANCE * abs(theirs)
