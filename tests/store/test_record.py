import json
import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.store.records import DATA, STARTED_AT, check, record
from tfblock_cli.results.result import Result
from tfblock_cli.store.record import Run, dumps, make, with_id

KEYS = [
    "schema",
    "schema_version",
    "command",
    "verdict",
    "checks",
    "warnings",
    "data",
    "experiment",
    "run",
    "provenance",
]


@pytest.mark.parametrize("command", DATA)
def test_the_keys_stand_in_their_order(command: str) -> None:
    made = record(command)
    assert list(made) == KEYS
    assert list(made["run"]) == ["id", "started_at", "duration_s", "argv", "exit_code"]
    assert list(made["checks"][0]) == ["name", "subject", "passed", "value", "op", "limit", "message"]
    assert made["command"] == command


def test_the_verdict_is_that_of_the_checks() -> None:
    assert record("params", check(True), check(False))["verdict"] == "fail"
    assert record("params", check(True))["verdict"] == "pass"


@pytest.mark.parametrize("command", DATA)
def test_the_same_result_is_the_same_bytes(command: str) -> None:
    text = dumps(record(command))
    assert text == dumps(record(command))
    assert text != dumps(record(command, check(False)))
    assert dumps(json.loads(text)) == text
    assert text.startswith('{\n  "schema": "tfblock.result",\n')
    assert text.endswith("\n}\n")


def test_text_is_utf_8_not_escapes() -> None:
    assert '"name": "größe"' in dumps(record())


def test_a_command_line_that_is_not_utf_8_reads_back_equal() -> None:
    argv = ("tfblock", b"caf\xe9.toml".decode("utf-8", "surrogateescape"))
    text = dumps(record(argv=argv))
    assert json.loads(text.encode("utf-8"))["run"]["argv"] == list(argv)


def test_non_finite_numbers_never_reach_the_file() -> None:
    first, second, third = record("forward")["data"]["stages"]
    assert (second["mean"], second["mean_reason"], second["absmax_reason"]) == (None, "nan", "inf")
    assert not [key for stage in (first, third) for key in stage if key.endswith("_reason")]  # unknown is not nan
    assert "NaN" not in dumps(record("forward"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"value": math.nan})


def test_the_start_is_written_in_utc() -> None:
    run = Run(id="", started_at=STARTED_AT, duration_s=0.5, argv=(), exit_code=0)
    local = replace(run, started_at=STARTED_AT.astimezone(timezone(timedelta(hours=-5))))

    def started_at(run: Run) -> Any:
        result = Result(command="params", data=DATA["params"], experiment={})
        return make(result, run=run, provenance={})["run"]["started_at"]

    assert started_at(run) == started_at(local) == "2026-11-29T17:42:05Z"
    assert datetime.fromisoformat(started_at(run)) == STARTED_AT.replace(microsecond=0)


def test_another_run_id_changes_nothing_else() -> None:
    before = record(run_id="one")
    after = with_id(before, "two")
    assert (before["run"]["id"], after["run"]["id"]) == ("one", "two")
    assert dumps(after).replace('"id": "two"', '"id": "one"') == dumps(before)
