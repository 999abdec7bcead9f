import hashlib
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import experiment_tables, experiments
from tfblock_cli.loading import load, resolved_toml, sha256, shipped, to_toml
from tfblock_cli.spec.experiment import Experiment


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toml") / "x.toml"


@settings(max_examples=60)
@given(table=experiment_tables())
def test_written_and_resolved_read_back_equal(file: Path, table: dict[str, Any]) -> None:
    file.write_text(to_toml(table), encoding="utf-8")
    first = load(file)
    file.write_text(to_toml(first.written), encoding="utf-8")
    assert load(file).experiment == first.experiment
    file.write_text(resolved_toml(first.experiment), encoding="utf-8")
    second = load(file)
    assert second.experiment == first.experiment
    assert resolved_toml(second.experiment) == resolved_toml(first.experiment)
    assert sha256(second.experiment) == sha256(first.experiment)


@pytest.mark.parametrize("name", shipped())
def test_shipped_experiments_read_back_equal(name: str, tmp_path: Path) -> None:
    loaded = load(name)
    for text in (to_toml(loaded.written), resolved_toml(loaded.experiment)):
        (tmp_path / "y.toml").write_text(text, encoding="utf-8")
        assert load(tmp_path / "y.toml").experiment == loaded.experiment


@given(experiments())
def test_nothing_is_left_open_in_the_resolved_form(experiment: Experiment) -> None:
    def keys(table: Any) -> set[str]:
        if isinstance(table, dict):
            return set(table) | {key for inner in table.values() for key in keys(inner)}
        return {key for item in table for key in keys(item)} if isinstance(table, list) else set()

    written = keys(tomllib.loads(resolved_toml(experiment)))
    everything = keys(experiment.model_dump(mode="json"))
    assert everything - written <= {"min", "max"}  # the open sides of an interval


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1), st.text())
def test_numbers_and_text_are_exact(number: float, count: int, text: str) -> None:
    back = tomllib.loads(to_toml({"a": number, "b": count, "c": text, "d": {"e": [number]}}))
    assert back == {"a": number, "b": count, "c": text, "d": {"e": [number]}}
    assert math.copysign(1, back["a"]) == math.copysign(1, number)


def test_none_is_left_out() -> None:
    assert to_toml({"a": None, "b": {"c": None, "d": 1}, "e": [{"f": None, "g": 2}]}) == to_toml(
        {"b": {"d": 1}, "e": [{"g": 2}]}
    )


def test_the_fingerprint_is_of_the_canonical_json() -> None:
    experiment = load("tiny_transformer").experiment
    text = json.dumps(json.loads(experiment.model_dump_json()), sort_keys=True, separators=(",", ":"))
    assert sha256(experiment) == hashlib.sha256(text.encode()).hexdigest()


def test_the_fingerprint_sees_every_change_and_no_spelling(tmp_path: Path) -> None:
    base = load("tiny_transformer").experiment
    assert sha256(load("tiny_transformer", sets=["model.norm={kind='rmsnorm', eps=1e-6}"]).experiment) == sha256(base)
    others = [["seed=1"], ["model.norm.eps=1e-5"], ["name=other"], ["gradflow.seeds=4"], ["input.seq_len=9"]]
    assert len({sha256(base), *(sha256(load("tiny_transformer", sets=sets).experiment) for sets in others)}) == 6
