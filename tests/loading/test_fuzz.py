"""Whatever is done to a sound table, it loads or the user is told why not: there is no third way."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.strategies import experiment_tables
from tfblock_cli.errors import BadInput
from tfblock_cli.loading import load, to_toml
from tfblock_cli.loading.keys import dotted, every_key

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 20),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.sampled_from(["pre", "rmsnorm", "none", "auto", "::0", "1::2", "layernorm", "swiglu"]),
    st.dates(),
    st.times(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["kind", "eps", "d_ff", "at", "bias", "metric", "x", ""]), inner, max_size=2)
    ),
    max_leaves=4,
)
FOREIGN_WORDS = ("Input should", "validation error", "pydantic", "Spec", "tagged", "discriminator", "literal[", "ctx")


def tables(value: Any) -> list[Any]:
    """Every table and array inside, the outermost first."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict | list) and value else []
    return [*own, *(found for item in items for found in tables(item))]


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A sound table with one to three keys removed, added or given another value."""
    table: dict[str, Any] = copy.deepcopy(draw(experiment_tables()))
    for _ in range(draw(st.integers(1, 3))):
        inside = tables(table)
        if not inside:
            break
        node = draw(st.sampled_from(inside))
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        match draw(st.sampled_from(["remove", "add", "change", "change"])):
            case "remove":
                del node[draw(st.sampled_from(keys))]
            case "add" if isinstance(node, dict):
                node[draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=4))] = draw(VALUES)
            case "add":
                node.append(draw(VALUES))
            case _:
                node[draw(st.sampled_from(keys))] = draw(VALUES)
    return table


def loads_or_tells(**asked: Any) -> None:
    try:
        loaded = load(**asked)
    except BadInput as bad:
        event("refused")
        told(bad)
        return
    event("loaded")
    model = loaded.experiment.model
    assert len(model.blocks()) == model.n_layers
    assert all(weight.count > 0 for weight in model.weights())


def told(bad: BadInput) -> None:
    """In lines of words that the user knows."""
    assert bad.problems
    for problem in bad.problems:
        line = str(problem)
        assert problem.message
        assert line.isprintable()
        assert not any(word in line for word in FOREIGN_WORDS), line


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "x.toml"


@settings(max_examples=80)
@given(table=mutated())
def test_a_mutated_file(file: Path, table: dict[str, Any]) -> None:
    file.write_text(to_toml(table), encoding="utf-8")
    loads_or_tells(source=file)


PARTS = [
    "model",
    "attention",
    "norm",
    "ffn",
    "layers",
    "gradflow",
    "expect",
    "kind",
    "eps",
    "0",
    "1",
    "x",
    "seed",
    "",
    "-1",
]
KEYS = st.sampled_from([dotted(path) for path in every_key()]) | st.lists(
    st.sampled_from(PARTS), min_size=1, max_size=4
).map(".".join)
TEXTS = st.one_of(
    st.text(max_size=8),
    VALUES.map(lambda value: to_toml({"value": value}).removeprefix("value = ")),
    st.sampled_from(
        ["[{at=[0]}]", "['pre', 'none']", "{kind='layernorm'}", "[{metric='loss', placement='pre', min=1}]"]
    ),
)


@settings(max_examples=80)
@given(sets=st.lists(st.tuples(KEYS, TEXTS).map("=".join), min_size=1, max_size=3))
def test_random_sets(sets: list[str]) -> None:
    loads_or_tells(source="tiny_transformer", sets=sets)


@settings(max_examples=50)
@given(raw=st.binary(max_size=40) | st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(str.encode))
def test_random_bytes(file: Path, raw: bytes) -> None:
    file.write_bytes(raw)
    loads_or_tells(source=file)


@settings(max_examples=50)
@given(st.text(max_size=20))
def test_random_sources(source: str) -> None:
    loads_or_tells(source=source)
