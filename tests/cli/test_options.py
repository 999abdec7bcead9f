"""From the command line to the experiment: each flag sets its key, and a later source beats an earlier one."""

from typing import Any

import pytest

from tfblock_cli.cli.options import GRADFLOW, INPUT, MODEL, RUN, KeyOption
from tfblock_cli.loading import Loaded
from tfblock_cli.spec.experiment import Experiment

VALUES = {
    "model.d_model": ("32", 32),
    "model.n_layers": ("3", 3),
    "model.vocab_size": ("0", 0),
    "model.max_seq_len": ("99", 99),
    "model.attention.n_heads": ("4", 4),
    "model.attention.n_kv_heads": ("1", 1),
    "model.attention.d_head": ("6", 6),
    "model.attention.pattern": ("bidirectional", "bidirectional"),
    "model.ffn": ("geglu", "geglu"),
    "model.ffn.d_ff": ("24", 24),
    "model.norm": ("layernorm", "layernorm"),
    "model.norm_placement": ("olmo2", "reordered"),
    "model.position": ("learned", "learned"),
    "model.initialization": ("unit", "unit"),
    "model.dropout": ("0.5", 0.5),
    "input.batch_size": ("2", 2),
    "input.seq_len": ("7", 7),
    "seed": ("5", 5),
    "dtype": ("float64", "float64"),
    "device": ("meta", "meta"),
    "kernel": ("eager", "eager"),
    "threads": ("2", 2),
    "gradflow.placements": ("post, peri", ("post", "sandwich")),
    "gradflow.depths": ("1,2", (1, 2)),
    "gradflow.seeds": ("2", 2),
    "gradflow.baseline": ("post", "post"),
    "gradflow.loss": ("random_projection", "random_projection"),
}


@pytest.fixture
def loaded(tfblock, monkeypatch):
    """What a command line makes of the experiment, without measuring it."""

    def call(*arguments: str) -> Loaded[Experiment]:
        seen: list[Any] = []
        for name in ("params", "forward", "causality", "gradflow"):
            monkeypatch.setattr(f"tfblock_cli.cli.{name}.answer", lambda *given, **view: seen.append(given))
        outcome = tfblock(*arguments)
        assert outcome.code == 0, outcome.err
        experiments = next(given for given in seen[0] if isinstance(given, list))
        found: Loaded[Experiment] = experiments[0]
        return found

    return call


def at(loaded: Loaded[Experiment], key: str) -> Any:
    value: Any = loaded.experiment
    for name in key.split("."):
        value = getattr(value, name)
    return tuple(map(kind, value)) if isinstance(value, tuple) else kind(value)


def kind(value: Any) -> Any:
    return getattr(value, "kind", value)


@pytest.mark.parametrize(
    "option",
    [option for option in (*MODEL, *INPUT, *RUN, *GRADFLOW) if "/" not in option.flags[0]],
    ids=lambda option: option.flags[0],
)
def test_every_spelling_of_every_flag_sets_its_key(loaded, option: KeyOption):
    text, value = VALUES[option.key]
    for flag in option.flags:
        assert at(loaded("gradflow", "small.toml", flag, text), option.key) == value
    assert at(loaded("gradflow", "small.toml"), option.key) != value


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        ("--final-norm", "model.final_norm", True),
        ("--no-final-norm", "model.final_norm", False),
        ("--bias", "model.bias", True),
        ("--no-bias", "model.bias", False),
        ("--tie", "model.tie_embeddings", True),
        ("--no-tie", "model.tie_embeddings", False),
    ],
)
def test_switches(loaded, flag, key, value):
    assert at(loaded("params", "small.toml", flag), key) is value


def test_bias_sets_them_all_whatever_the_file_says(loaded, here):
    text = (here / "small.toml").read_text().replace("n_heads = 2", "n_heads = 2\nbias = true\nout_bias = true")
    (here / "small.toml").write_text(text.replace("d_ff = 16", "d_ff = 16\nbias = true"))
    biases = ("model.attention.bias", "model.attention.out_bias", "model.ffn.bias", "model.head_bias", "model.bias")
    off, on = loaded("params", "small.toml", "--no-bias"), loaded("params", "small.toml", "--bias")
    assert [at(off, key) for key in biases] == [False] * 5
    assert [at(on, key) for key in biases] == [True] * 5


def test_precedence(loaded):
    assert at(loaded("params", "small.toml"), "seed") == 3  # the file beats the default
    assert at(loaded("params", "small.toml", "--seed", "4"), "seed") == 4
    assert at(loaded("params", "small.toml", "--set", "seed=5", "--seed", "4"), "seed") == 5
    assert at(loaded("params", "small.toml", "--set", "seed=5", "--set", "seed=6"), "seed") == 6


def test_a_kind_and_its_keys_in_any_order(loaded):
    for arguments in (["--ffn", "swiglu", "--d-ff", "24"], ["--d-ff", "24", "--ffn", "swiglu"]):
        found = loaded("params", "small.toml", *arguments)
        assert (at(found, "model.ffn"), at(found, "model.ffn.d_ff")) == ("swiglu", 24)


def test_a_preset_lies_below_the_file(loaded, here):
    assert at(loaded("forward", "small.toml"), "kernel") == "eager"
    (here / "small.toml").write_text('kernel = "sdpa"\n' + (here / "small.toml").read_text())
    assert at(loaded("forward", "small.toml"), "kernel") == "sdpa"
    assert at(loaded("forward", "small.toml", "--kernel", "eager"), "kernel") == "eager"


def test_a_wrong_item_of_a_list_is_told_with_its_flag(tfblock):
    outcome = tfblock("gradflow", "small.toml", "--placements", "pre,pots", "--depths", "6,x")
    assert outcome.code == 2
    assert "--placements" in outcome.err
    assert "'post'" in outcome.err
    assert "--depths" in outcome.err
