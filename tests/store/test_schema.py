import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.store.records import DATA, record
from tfblock_cli.store.record import dumps
from tfblock_cli.store.schema import result_schema

FILE = Path(__file__).parents[2] / "docs" / "result.schema.json"


@pytest.fixture(scope="module")
def validate() -> Callable[[Any], None]:
    validator = jsonschema.Draft202012Validator(result_schema())
    return validator.validate  # type: ignore[no-any-return]


def test_the_published_schema_is_the_one_of_the_code(golden: Callable[[Path, str], None]) -> None:
    golden(FILE, dumps(result_schema()))


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(result_schema())


@pytest.mark.parametrize("command", DATA)
def test_a_record_of_every_command_is_valid(command: str, validate: Callable[[Any], None]) -> None:
    validate(json.loads(dumps(record(command))))


def test_no_git_and_no_torch_are_valid(validate: Callable[[Any], None]) -> None:
    made = record()
    made["provenance"].update(git=None, torch=None, tfblock=None)
    validate(made)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key of the record, outermost first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in items for found in ((*at, key), *paths(inner, (*at, key)))]


def without(value: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


@pytest.mark.parametrize("command", DATA)
def test_every_key_is_demanded(command: str, validate: Callable[[Any], None]) -> None:
    made = json.loads(dumps(record(command)))
    free = {("data", "letters"), ("experiment",)}  # mappings without fixed keys
    keys = [path for path in paths(made) if not any(path[: len(f)] == f != path for f in free)]
    # An item of a list may be missing, and so may a reason where null can also mean that there is no number.
    keys = [path for path in keys if isinstance(path[-1], str) and not path[-1].endswith("_reason")]
    assert len(keys) > 40
    for path in keys:
        with pytest.raises(jsonschema.ValidationError):
            validate(without(made, path))


WRONG: list[tuple[str, tuple[Any, ...], Any]] = [
    ("params", ("schema",), "other"),
    ("params", ("schema_version",), 2),
    ("params", ("command",), "forward"),  # the data is that of params
    ("params", ("command",), "unknown"),
    ("params", ("verdict",), "ok"),
    ("params", ("checks",), {}),
    ("params", ("checks", 0, "op"), "~"),
    ("params", ("checks", 0, "passed"), 1),
    ("params", ("checks", 0, "limit"), [0.5]),
    ("params", ("checks", 0, "limit"), [0.5, 1.0, 2.0]),
    ("params", ("checks", 0, "value"), [1.5]),
    ("params", ("data", "total"), "6"),
    ("params", ("data", "total"), 6.5),
    ("params", ("data", "total"), True),
    ("params", ("data", "total"), None),
    ("params", ("data", "flops", "dense"), None),
    ("params", ("data", "components", 0, "tied_to"), 1),
    ("params", ("data", "components", 0, "share"), None),  # null without its reason
    ("params", ("data", "components", 0, "share_reason"), "nan"),  # a reason beside a number
    ("forward", ("data", "letters"), {"B": "one"}),
    ("forward", ("data", "stages", 1, "mean_reason"), "unknown"),
    ("forward", ("data", "head", "weights"), [1.0]),
    ("causality", ("data", "probes", 0, "verdict"), "pass"),
    ("gradflow", ("data", "rows", 0, "layer"), "0"),
    ("gradflow", ("data", "rows", 0, "value"), 1.0),  # still says inf beside it
    ("gradflow", ("data", "seeds"), [0.5]),
    ("gradflow", ("run", "started_at"), "2026-11-29 17:42:05"),
    ("gradflow", ("run", "exit_code"), "0"),
    ("gradflow", ("provenance", "experiment_sha256"), "3f9c"),
    ("gradflow", ("provenance", "git"), {"sha": "0"}),
]


@pytest.mark.parametrize(("command", "path", "value"), WRONG)
def test_a_wrong_record_is_refused(
    command: str, path: tuple[Any, ...], value: Any, validate: Callable[[Any], None]
) -> None:
    made = json.loads(dumps(record(command)))
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(made)
