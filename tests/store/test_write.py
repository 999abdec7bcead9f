import errno
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.store.records import STARTED_AT, record
from tfblock_cli.errors import BadInput, NotSaved
from tfblock_cli.store.read import read
from tfblock_cli.store.record import dumps, with_id
from tfblock_cli.store.write import TEMPORARY, run_id, save

SHA = "3f9c1a2b" * 8
ROOT = Path(__file__).parents[2]


def store(runs_dir: Path, **changes: Any) -> Path:
    return save(record(**changes), runs_dir=runs_dir, experiment_toml='name = "größe"\n', report="a table\n")


def python(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT)


def test_run_id_has_time_command_name_and_hash() -> None:
    assert run_id(STARTED_AT, "gradflow", "pre_vs_post", SHA) == "20261129T174205Z-gradflow-pre_vs_post-3f9c1a2b"
    local = STARTED_AT.astimezone(timezone(timedelta(hours=9)))
    assert run_id(local, "params", "a", SHA) == run_id(STARTED_AT, "params", "a", SHA)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("größe", "größe"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("..\\up", "_up"),
        (".hidden", "hidden"),
        ("a b:c*\n\0", "a_b_c___"),
        ("\udce9", "_"),
        ("..", "unnamed"),
        ("", "unnamed"),
        ("x" * 300, "x" * 40),
    ],
)
def test_any_name_becomes_a_safe_file_name(tmp_path: Path, name: str, safe: str) -> None:
    made = run_id(STARTED_AT, "params", name, SHA)
    assert made == f"20261129T174205Z-params-{safe}-3f9c1a2b"
    assert store(tmp_path, run_id=made).parent == tmp_path


def test_the_widest_name_fits_a_file_name() -> None:
    assert len(run_id(STARTED_AT, "causality", "𝒳" * 300, SHA).encode()) <= 255 - len("-999")


def test_a_saved_run_reads_back_with_the_bytes_of_dumps(tmp_path: Path) -> None:
    runs_dir = tmp_path / "not" / "yet"
    folder = save(record(), runs_dir=runs_dir, experiment_toml="x = 1\n", report="é\n", pictures={"g.png": b"\x89"})
    assert folder == runs_dir / "run"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "result.json": dumps(record()).encode(),
        "experiment.toml": b"x = 1\n",
        "report.txt": "é\n".encode(),
        "g.png": b"\x89",
    }
    assert read(folder) == read(folder / "result.json") == record()
    assert os.listdir(runs_dir) == ["run"]


def test_a_taken_name_gets_a_number_and_is_not_overwritten(tmp_path: Path) -> None:
    first = store(tmp_path, argv=("first",))
    before = (first / "result.json").read_bytes()
    (tmp_path / "run-2").write_text("a file of someone else")
    third = store(tmp_path, argv=("third",))
    assert third.name == "run-3"
    assert (first / "result.json").read_bytes() == before
    assert (tmp_path / "run-2").read_text() == "a file of someone else"
    assert read(third) == with_id(record(argv=("third",)), "run-3")


def test_processes_that_save_the_same_run_at_once_lose_nothing(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tests.store.records import record
from tfblock_cli.store.write import save
runs_dir, start, me = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
while not start.exists():
    pass
for turn in range(5):
    save(record(argv=(me, str(turn))), runs_dir=runs_dir, experiment_toml="", report="")
"""
    start, runs_dir = tmp_path / "start", tmp_path / "runs"
    savers = [python(code, str(runs_dir), str(start), str(me)) for me in range(4)]
    time.sleep(0.5)  # most of them wait at the line now; those that do not only make the race easier
    start.touch()
    assert [saver.wait(60) for saver in savers] == [0] * 4

    names = {"run", *(f"run-{number}" for number in range(2, 21))}
    assert set(os.listdir(runs_dir)) == names
    records = {name: read(runs_dir / name) for name in names}
    assert all(kept["run"]["id"] == name for name, kept in records.items())
    saved = {tuple(kept["run"]["argv"]) for kept in records.values()}
    assert saved == {(str(me), str(turn)) for me in range(4) for turn in range(5)}


def test_a_killed_run_leaves_nothing_that_reads_as_a_result(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from tests.store.records import record
from tfblock_cli.store.write import save
Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
save(record(), runs_dir=Path(sys.argv[1]), experiment_toml="", report="")
"""
    assert python(code, str(tmp_path)).wait(60) == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(TEMPORARY)
    assert (left / "result.json").exists()  # killed between the last write and the rename
    for path in (left, left / "result.json"):
        with pytest.raises(BadInput, match="interrupted"):
            read(path)

    store(tmp_path)
    assert left.exists()  # it may belong to a run that is still writing
    yesterday = time.time() - 25 * 60 * 60
    os.utime(left, (yesterday, yesterday))
    others = tmp_path / ".tmp-of-someone-else"
    others.mkdir()
    os.utime(others, (yesterday, yesterday))
    store(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [others.name, "run", "run-2"]


@pytest.mark.parametrize("interrupted_at", [1, 2, 3])
def test_ctrl_c_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted_at: int) -> None:
    writes = 0

    def interrupt(_: int) -> None:
        nonlocal writes
        writes += 1
        if writes == interrupted_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_told_in_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotSaved) as caught:
        store(tmp_path)
    assert str(caught.value) == f"the result was not saved in {tmp_path}: No space left on device"
    assert os.listdir(tmp_path) == []


def test_a_rename_that_fails_for_another_reason_is_not_tried_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "rename", denied)
    with pytest.raises(NotSaved, match="Permission denied"):
        store(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, below: str) -> None:
    file = tmp_path / "runs"
    file.write_text("mine")
    with pytest.raises(NotSaved, match=r"not a folder|Not a directory"):
        store(file / below)
    assert file.read_text() == "mine"
