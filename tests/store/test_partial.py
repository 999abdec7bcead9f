"""Training runs that outlive a killed process."""

import os

import pytest

from tfblock_cli.store.partial import Partial

SHA = "a" * 64


def test_what_is_kept_is_found_again_by_another_process(tmp_path):
    kept = {"loss": [[1, 0.1 + 0.2], [2, float("nan")]], "error": "", "made_with": {"torch": "2.13.0"}}
    Partial(tmp_path, SHA)["pre-depth2"] = kept
    assert repr(Partial(tmp_path, SHA).get("pre-depth2")) == repr(kept)
    assert [path.name for path in (tmp_path / ".partial" / SHA).iterdir()] == ["pre-depth2.json"]


def test_another_experiment_finds_nothing(tmp_path):
    Partial(tmp_path, SHA)["pre"] = {"error": ""}
    assert Partial(tmp_path, "b" * 64).get("pre") is None
    assert Partial(tmp_path, SHA).get("post") is None


@pytest.mark.parametrize("content", [b"", b'{"loss": [[1, 0.', b"[1, 2]", b"\xff\xfe", b"null"])
def test_a_file_that_is_not_whole_is_no_result(tmp_path, content):
    partial = Partial(tmp_path, SHA)
    partial["pre"] = {"error": ""}
    (partial.folder / "pre.json").write_bytes(content)
    assert partial.get("pre") is None
    partial["pre"] = {"error": "x"}
    assert partial.get("pre") == {"error": "x"}


def test_a_process_that_dies_while_it_writes_leaves_nothing_that_reads_as_a_result(tmp_path, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    partial = Partial(tmp_path, SHA)
    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        partial["pre"] = {"error": ""}
    assert partial.get("pre") is None
    assert list(partial.folder.iterdir()) == []


def test_a_disk_that_takes_nothing_costs_no_result(tmp_path):
    file = tmp_path / "runs"
    file.write_text("a file where a folder should be", encoding="utf-8")
    partial = Partial(file, SHA)
    partial["pre"] = {"error": ""}
    assert partial.get("pre") is None
    partial.remove()


def test_removing_leaves_those_of_other_experiments(tmp_path):
    mine, other = Partial(tmp_path, SHA), Partial(tmp_path, "b" * 64)
    mine["pre"] = other["pre"] = {"error": ""}
    mine.remove()
    assert mine.get("pre") is None
    assert other.get("pre") == {"error": ""}
    other.remove()
    assert list(tmp_path.iterdir()) == []
    other.remove()
