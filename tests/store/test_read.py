import json
from pathlib import Path
from typing import Any

import pytest

from tests.store.records import record
from tfblock_cli.errors import BadInput
from tfblock_cli.store.read import read
from tfblock_cli.store.record import SCHEMA_VERSION


def written(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "result.json"
    file.write_text(json.dumps({**record(), **changes}))
    return file


def test_the_current_version_is_read(tmp_path: Path) -> None:
    assert read(written(tmp_path)) == record()


def test_a_key_that_was_added_later_is_kept(tmp_path: Path) -> None:
    assert read(written(tmp_path, added=1))["added"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "upgrade tfblock"),
        ({"schema_version": 0}, "0 is not a version"),
        ({"schema_version": True}, "True is not a version"),
        ({"schema_version": "1"}, "'1' is not a version"),
        ({"schema_version": None}, "None is not a version"),
        ({"schema": "something.else"}, "not a result of tfblock"),
    ],
)
def test_what_is_not_a_known_result_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = written(tmp_path, **changes)
    with pytest.raises(BadInput, match=message) as caught:
        read(file)
    (problem,) = caught.value.problems
    assert problem.where == str(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b'{"schema": "tfblock.res', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "not a result of tfblock"),
        (b"{}", "not a result of tfblock"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        read(tmp_path)


def test_a_folder_without_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"result\.json: cannot be read: No such file"):
        read(tmp_path)
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / "missing")
