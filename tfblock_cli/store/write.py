"""Write a run's folder, whole or not at all."""

import contextlib
import errno
import os
import re
import shutil
import time
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tfblock_cli.errors import NotSaved
from tfblock_cli.store.record import dumps, with_id

TEMPORARY = ".tmp-tfblock-"
"""How the name of a folder begins that is being written. It says tfblock since we remove what bears it."""

_DAY_S = 24 * 60 * 60
_MAX_NAME = 40  # 4 bytes a character at most: with time, command and hash well within the usual 255
_NO_PICTURES: Mapping[str, bytes] = MappingProxyType({})


def run_id(started_at: datetime, command: str, name: str, experiment_sha256: str) -> str:
    """``20261129T174205Z-gradflow-name-3f9c1a2b``: sorts by time, and equal experiments end alike.

    What cannot stand in a file name on every system becomes ``_``, so that no name leads out of the folder.
    """
    safe = re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", name)).lstrip(".")[:_MAX_NAME]
    return f"{started_at.astimezone(UTC):%Y%m%dT%H%M%SZ}-{command}-{safe or 'unnamed'}-{experiment_sha256[:8]}"


def save(
    record: Mapping[str, Any],
    *,
    runs_dir: Path,
    experiment_toml: str,
    report: str,
    pictures: Mapping[str, bytes] = _NO_PICTURES,
) -> Path:
    """Write the run's folder into ``runs_dir`` (made if there is none) and return its path.

    The folder is written under a hidden name and then renamed, so that a killed run leaves nothing that reads
    as a result. It bears the record's run id; a taken one gets ``-2``, ``-3``, ..., in ``result.json`` too.
    Whoever also prints the record prints ``with_id(record, path.name)``.

    Args:
        record: From ``tfblock_cli.store.record.make``.
        runs_dir: Where the runs are kept.
        experiment_toml: The resolved experiment.
        report: The screen, without colour and times.
        pictures: The bytes of each picture by its file name.

    Raises:
        NotSaved: The folder could not be written; nothing of it is left.
    """
    files = {"experiment.toml": _utf8(experiment_toml), "report.txt": _utf8(report), **pictures}
    try:
        if runs_dir.exists() and not runs_dir.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is not a folder")
        runs_dir.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(runs_dir)
        return _write(runs_dir, record, files)
    except OSError as error:
        raise NotSaved(f"the result was not saved in {runs_dir}: {error.strerror or error}") from error


def _write(runs_dir: Path, record: Mapping[str, Any], files: Mapping[str, bytes]) -> Path:
    temporary = runs_dir / f"{TEMPORARY}{os.urandom(8).hex()}"
    number = 1
    try:
        temporary.mkdir()
        for name, content in files.items():
            _write_through(temporary / name, content)
        while True:
            folder = runs_dir / f"{record['run']['id']}{f'-{number}' if number > 1 else ''}"
            _write_through(temporary / "result.json", _utf8(dumps(with_id(record, folder.name))))
            try:
                # To look first whether the name is free would be a race; a folder cannot be renamed onto one
                # that holds something.
                temporary.rename(folder)
            except OSError:
                if not os.path.lexists(folder):
                    raise
                number += 1
            else:
                return folder
    except BaseException:  # Ctrl-C too must leave nothing behind
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _utf8(text: str) -> bytes:
    """UTF-8, in which an undecodable byte of a file name (a lone surrogate) is written as an escape."""
    return text.encode("utf-8", "backslashreplace")


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # or a power cut after the rename leaves a folder of empty files


def _remove_leftovers(runs_dir: Path) -> None:
    """Remove what killed runs left. A younger one may be another process that is writing right now."""
    for path in runs_dir.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            if path.lstat().st_mtime < time.time() - _DAY_S:
                shutil.rmtree(path)
