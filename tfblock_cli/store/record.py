"""The record of a run: everything in ``result.json``, as plain data in the order of its keys."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tfblock_cli.results.result import Json, Result, to_json

SCHEMA = "tfblock.result"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a run went. Beside ``provenance`` the only part that may differ when the run is repeated.

    Attributes:
        id: The name of its folder.
        started_at: With a time zone; written in UTC, to the second.
        duration_s: Seconds, reading the experiment included.
        argv: The command line.
        exit_code: What the process ends with.
    """

    id: str
    started_at: datetime
    duration_s: float
    argv: tuple[str, ...]
    exit_code: int


def make(result: Result[Any], *, run: Run, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """``result.json`` as plain data: what was found first, then how it came about."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "command": result.command,
        "verdict": result.verdict,
        "checks": to_json(result.checks),
        "warnings": to_json(result.warnings),
        "data": to_json(result.data),
        "experiment": to_json(result.experiment),
        "run": {
            "id": run.id,
            "started_at": run.started_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "duration_s": run.duration_s,
            "argv": list(run.argv),
            "exit_code": run.exit_code,
        },
        "provenance": to_json(provenance),
    }


def with_id(record: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """The same record under another run id, every key where it was."""
    return {**record, "run": {**record["run"], "id": run_id}}


def dumps(value: Json) -> str:
    """The text of a record, or of a list of records: what ``--json`` prints and ``result.json`` holds.

    Raises:
        ValueError: A number is nan or inf, for which JSON has no word.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # The bytes of a command line that are not UTF-8 reach Python as lone surrogates. Written with a backslash
    # they are JSON's own escape, so that they read back equal.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
