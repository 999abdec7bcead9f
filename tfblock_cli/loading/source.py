"""EXPERIMENT: what the user named, read as a plain table."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.loading.shipped import shipped

LARGEST_FILE = 1_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """A table, what to call the place that it was read from, and the name of its experiment."""

    table: dict[str, Any]
    label: str
    name: str


def read(source: str | Path) -> Source:
    """The table of a TOML file, a shipped experiment or a run folder.

    Raises:
        BadInput: There is no such thing, or it is no TOML.
    """
    asked = str(source)
    try:
        path = _find(asked)
        label = asked if path.stem == asked else str(path)
        text = _text(path, label)
    except OSError as error:
        raise BadInput(Problem(asked, f"cannot be read: {error.strerror}")) from None
    return Source(_parse(text, label), label, _name(path))


def _find(source: str) -> Path:
    """The file that is meant. A shipped name goes before a folder of that name, which ``./name`` still reaches."""
    path = Path(source)
    if path.name == "config.json" and path.is_file():
        raise BadInput(Problem(source, f"a Hugging Face config.json cannot be read yet; {readable()}"))
    if path.is_file():
        return path
    if source in shipped():
        return shipped()[source]
    if source and path.is_dir():
        if (path / "experiment.toml").is_file():
            return path / "experiment.toml"
        if (path / "config.json").is_file():
            raise BadInput(Problem(source, f"a Hugging Face checkpoint cannot be read yet; {readable()}"))
        raise BadInput(Problem(source, f"is a folder without experiment.toml; {readable()}"))
    if source and path.exists():  # a pipe
        return path
    raise BadInput(Problem(source or "''", f"there is no such file; {_similar(path) or readable()}"))


def readable() -> str:
    """What can be given."""
    return f"give a TOML file, a run folder or one of {', '.join(shipped())}"


def _similar(path: Path) -> str:
    """The shipped experiment or the file in the same folder that has almost this name."""
    from difflib import get_close_matches

    beside = sorted(path.parent.glob("*.toml"))
    names = {name: name for name in shipped()} | {other.name: str(other) for other in beside}
    close = get_close_matches(path.name, names, 1) or get_close_matches(path.stem, names, 1)
    return f"did you mean {names[close[0]]!r}?" if close else ""


def _text(path: Path, label: str) -> str:
    """Its text; a byte-order mark, which some editors write, is no part of it."""
    with path.open("rb") as file:
        raw = file.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE:
        raise BadInput(Problem(label, f"is larger than {LARGEST_FILE:,} bytes, so it is no experiment file"))
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadInput(Problem(label, "is UTF-16 text; save it as UTF-8"))
    if b"\0" in raw:
        raise BadInput(Problem(label, "is a binary file, not TOML"))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(Problem(f"{label}: line {line}", "is not UTF-8 text; save it as UTF-8")) from None


def _parse(text: str, label: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(_syntax(error, text, label)) from None
    except ValueError:  # Python reads no decimal number of more than 4300 digits
        line = next((n for n, line in enumerate(text.splitlines(), 1) if re.search(r"[0-9_]{4300}", line)), 1)
        rule = "a number is too long: TOML has whole numbers of 64 bits"
        raise BadInput(Problem(f"{label}: line {line}", rule)) from None
    except RecursionError:
        raise BadInput(Problem(label, "not TOML: a nesting is too deep")) from None
    if not table:
        raise BadInput(Problem(label, "is empty: it needs at least a [model] table"))
    return table


def _syntax(error: tomllib.TOMLDecodeError, text: str, label: str) -> Problem:
    """The parser's complaint with the place in front, and with the name of a key that stands twice."""
    rule, _, place = str(error).removesuffix(")").rpartition(" (at ")
    lines = text.splitlines() or [""]
    found = re.fullmatch(r"line (\d+), column (\d+)", place)
    line, column = map(int, found.groups()) if found else (len(lines), len(lines[-1]) + 1)
    if rule.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate")):
        key = lines[min(line, len(lines)) - 1].partition("=")[0].strip()
        rule = f"{key} stands twice; a key or a table may be given once"
    else:
        rule = f"not TOML: {rule[:1].lower()}{rule[1:]}"
    return Problem(f"{label}: line {line}, column {column}", rule)


def _name(path: Path) -> str:
    """The file's stem, as text that every file can hold: the bytes of a name need not be UTF-8."""
    return path.stem.encode("utf-8", "replace").decode()[:100]
