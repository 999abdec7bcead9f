import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from pydantic import TypeAdapter

from tests.strategies import experiment_tables
from tfblock_cli.loading import load, resolved_toml, shipped
from tfblock_cli.spec.target import AnyExperiment

FILE = Path(__file__).parents[2] / "docs" / "experiment.schema.json"
SCHEMA = TypeAdapter(AnyExperiment).json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_published_schema_is_the_one_of_the_code(golden: Callable[[Path, str], None]) -> None:
    golden(FILE, json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n")


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_experiment_is_valid_as_written_and_resolved(name: str) -> None:
    VALIDATOR.validate(tomllib.loads(shipped()[name].read_text(encoding="utf-8")))
    VALIDATOR.validate(tomllib.loads(resolved_toml(load(name).experiment)))


@settings(max_examples=50)
@given(experiment_tables())
def test_whatever_loads_is_valid(table: dict[str, Any]) -> None:
    VALIDATOR.validate(table)


MODEL: dict[str, Any] = {"d_model": 8, "attention": {"n_heads": 2}}

TARGET: dict[str, Any] = {"factory": "mine:model", "vocab_size": 8}

WRONG: list[dict[str, Any]] = [
    {},
    {"model": {}},
    {"model": {"d_model": 8}},
    {"model": {"attention": {"n_heads": 2}}},
    {"model": MODEL, "modle": {}},
    {"model": MODEL, "dtype": "float31"},
    {"model": MODEL, "seed": -1},
    {"model": MODEL, "device": "gpu"},
    {"model": MODEL, "input": {"seq_len": "16"}},
    {"model": MODEL | {"d_model": 0}},
    {"model": MODEL | {"d_model": 8.5}},
    {"model": MODEL | {"d_model": True}},
    {"model": MODEL | {"dropout": 1.5}},
    {"model": MODEL | {"norm": "rms"}},
    {"model": MODEL | {"norm": {"kind": "rmsnorm", "bias": True}}},
    {"model": MODEL | {"norm": {"kind": "layernorm", "eps": 0}}},
    {"model": MODEL | {"ffn": {"kind": "swiglu", "activation": "relu"}}},
    {"model": MODEL | {"layers": [{"norm": "rmsnorm"}]}},
    {"model": MODEL | {"final_norm": "yes"}},
    {"model": MODEL, "gradflow": {"loss": "sum"}},
    {"model": MODEL, "gradflow": {"placements": "pre"}},
    {"model": MODEL, "gradflow": {"expect": [{"placement": "pre", "min": 1}]}},
    {"target": {}},
    {"target": {"vocab_size": 8}},
    {"target": TARGET, "model": MODEL},
    {"target": TARGET, "gradflow": {"placements": ["pre"]}},
    {"target": TARGET | {"vocab_size": -1}},
    {"target": TARGET | {"kwargs": [1]}},
    {"target": TARGET | {"output_key": 1.5}},
]


def test_the_base_of_the_wrong_ones_is_valid() -> None:
    VALIDATOR.validate({"model": MODEL})
    VALIDATOR.validate({"target": TARGET})
    VALIDATOR.validate({"target": TARGET | {"kwargs": {"width": 1}, "output_key": 0}, "causality": {}})


@pytest.mark.parametrize("table", WRONG, ids=str)
def test_a_wrong_experiment_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(table)
