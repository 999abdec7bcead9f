"""--help: every command has an example, every kind is named, and what it says comes from the spec."""

import re
from typing import Any

import pytest

from tfblock_cli.cli.app import COMMANDS, make_app
from tfblock_cli.cli.keys import choices, default, field
from tfblock_cli.cli.options import GRADFLOW, INPUT, MODEL, RUN, KeyOption
from tfblock_cli.loading import load, shipped
from tfblock_cli.spec.base import names
from tfblock_cli.spec.norm_placement import NormPlacement
from tfblock_cli.spec.settings import DEGENERATE

NAMES = [*COMMANDS]
OPTIONS = (*MODEL, *INPUT, *RUN, *GRADFLOW)


def words(text: bytes) -> str:
    """Help without its boxes and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text.decode()).split())


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_that_ends_with_an_example(tfblock, name):
    outcome = tfblock(name, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    assert re.search(rf"Example: tfblock {name} .*$", words(outcome.out))


@pytest.mark.parametrize(("name", "example"), COMMANDS.items(), ids=NAMES)
def test_the_examples_are_valid(tfblock, monkeypatch, name, example):
    """Up to the experiment: what is measured has tests of its own."""
    seen: list[Any] = []
    monkeypatch.setattr(f"tfblock_cli.cli.{name}.answer", lambda *arguments, **view: seen.append(arguments))
    outcome = tfblock(*example.split()[1:])
    assert (outcome.code, outcome.err) == (0, "")
    assert len(seen) == 1


@pytest.mark.parametrize("name", NAMES)
def test_help_lists_the_kinds_and_the_shipped_experiments(tfblock, name):
    text = words(tfblock(name, "--help").out)
    for option in (*MODEL, *INPUT, *RUN):
        for flag in option.flags[0].split("/"):
            assert flag in text
        for choice in choices(option.key):
            assert choice in text
    for experiment in shipped():
        assert experiment in text


def test_tfblock_alone_shows_help(tfblock):
    alone = tfblock()
    assert alone.code == 0
    assert alone.out.strip() == tfblock("--help").out.strip()
    for name in NAMES:
        assert name in words(alone.out)


def test_only_forward_defaults_to_the_eager_kernel(tfblock):
    for name in NAMES:
        kernel = re.search(r"sdpa, eager\. Default: (\w+)\.", words(tfblock(name, "--help").out))
        assert kernel
        assert kernel[1] == ("eager" if name == "forward" else "sdpa")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flags[0])
def test_every_option_sets_a_key_of_the_spec(option: KeyOption):
    for key in (option.key, *option.also):
        assert field(key) is not None


def test_a_key_that_the_spec_lacks_is_noticed():
    with pytest.raises(KeyError):
        field("model.attention.n_head")


def test_options_and_flags_are_distinct():
    flags = [flag for option in OPTIONS for flags in option.flags for flag in flags.split("/")]
    assert len(set(flags)) == len(flags)
    assert len({option.key for option in OPTIONS}) == len(OPTIONS)


def test_choices_are_read_from_the_unions():
    assert choices("model.norm_placement") == choices("gradflow.placements") == names(NormPlacement)
    assert choices("dtype") == ("float64", "float32", "bfloat16", "float16")
    assert not set(DEGENERATE) & set(choices("gradflow.loss"))
    assert choices("model.d_model") == choices("gradflow.depths") == ()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flags[0])
def test_the_default_that_help_names_is_the_one_that_a_model_gets(option: KeyOption):
    said = default(option.key)
    value: Any = load(None, flags=(), sets=("model.d_model=8", "model.attention.n_heads=2"), defaults={}).experiment
    for name in option.key.split("."):
        value = getattr(value, name)
    derived = {
        "model.d_model": ("", 8),
        "model.attention.n_heads": ("", 2),
        "model.attention.n_kv_heads": ("n_heads", 2),
        "model.attention.d_head": ("d_model / n_heads", 4),
        "model.ffn.d_ff": ("4 · d_model", 32),
        "gradflow.depths": ("model.n_layers", (2,)),
        "gradflow.baseline": ("the first of placements", "pre"),
    }
    if option.key in derived:
        assert (said, value) == derived[option.key]
    elif option.key == "gradflow.placements":
        assert said == ", ".join(placement.kind for placement in value)
    else:
        shown = getattr(
            value, "kind", {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        )
        assert said.split(" with ")[0] == str(shown)


def built(arguments: list[str]) -> list[str]:
    commands = make_app(arguments).registered_commands
    return [command.callback.__name__ for command in commands if command.callback]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["param"], ["--version", "params"]], ids=" ".join)
def test_every_command_is_there(arguments):
    assert built(arguments) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_command_line_builds_the_command_that_it_names_alone(name):
    assert built([name, "forward", "--help"]) == [name]
