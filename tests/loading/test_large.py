"""Whole numbers beyond 64 bits: each is refused where it stands, beside every other fault, in one short line."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loading.conftest import FILE
from tfblock_cli.cli.options import CAUSALITY, GRADFLOW, INPUT, MODEL, RUN, TARGET, KeyOption
from tfblock_cli.errors import BadInput
from tfblock_cli.loading import Large, load, load_any, whole_number
from tfblock_cli.loading.keys import dotted, every_key
from tfblock_cli.loading.large import without_large

BEYOND = 10**30
TOO_LONG = "9" * 5000  # Python itself refuses to read it as a number
KEYS = sorted({dotted(path) for path in every_key() if path[0] != "target"} - {"model.d_model", "name"})
NUMBERS = [option for option in (*MODEL, *INPUT, *RUN, *GRADFLOW) if option.is_number]


def complaints(load: Callable[[], object]) -> list[str]:
    with pytest.raises(BadInput) as caught:
        load()
    return [str(problem) for problem in caught.value.problems]


@given(st.one_of(st.integers(), st.integers(-(2**70), 2**70), st.sampled_from([2**63 - 1, 2**63, -(2**63)])))
def test_a_typed_number_is_read_as_it_is_or_known_to_be_large(number):
    read = whole_number(f" {number} ")
    assert isinstance(read, Large) == (not -(2**63) <= number < 2**63)
    assert read == without_large(number)
    assert str(read)[:10] == str(number)[:10]


@pytest.mark.parametrize("text", ["", "x", "1.5", "9" * 30 + "x", "1e99", "0x10"])
def test_what_is_no_whole_number_is_no_large_one(text):
    with pytest.raises(ValueError, match="invalid literal"):
        whole_number(text)


@pytest.mark.parametrize(("text", "number"), [("0" * 30 + "5", 5), ("-" + "0" * 30, 0), ("+7", 7)])
def test_zeros_in_front_make_no_number_large(text, number):
    assert whole_number(text) == number


@pytest.mark.parametrize("number", [TOO_LONG, f"-{TOO_LONG}", f"+{TOO_LONG}", f"00{TOO_LONG}"])
def test_a_long_one_is_shown_short(number):
    assert str(whole_number(number)).endswith("9... (5000 digits)")
    assert len(str(whole_number(number))) < 30


@pytest.mark.parametrize("number", [str(BEYOND), TOO_LONG], ids=["31 digits", "5000 digits"])
@pytest.mark.parametrize("key", KEYS)
def test_no_key_takes_one_and_no_fault_hides_another(write, key, number):
    found = complaints(lambda: load(write(), sets=[f"{key}={number}", "model.d_model=-1"]))
    assert any(key in line for line in found)
    assert len(found) > 1 or key in ("model", "model.attention")  # which then has no d_model
    assert all(len(line) < 600 and "object at" not in line for line in found)


@pytest.mark.parametrize("key", KEYS)
def test_nor_where_the_file_has_it(write, key):
    inside = FILE.replace("d_model = 16", "d_model = -1")
    source = write(inside)
    expected = complaints(lambda: load(source, sets=[f"{key}={BEYOND}"]))
    told = [line for line in expected if "d_model" in line and "-1" in line]
    assert told or key in ("model", "model.attention")


@pytest.mark.parametrize("option", NUMBERS, ids=lambda option: option.flags[0])
def test_every_flag_refuses_one(option: KeyOption):
    typed = [*(other.flag("0") for other in NUMBERS if other.key == "threads" != option.key), option.flag(TOO_LONG)]
    found = complaints(lambda: load(None, flags=typed, sets=["model.d_model=16", "model.attention.n_heads=4"]))
    own = [line for line in found if f"{option.flags[0]} 9999999999... (5000 digits)" in line]
    if option.key in ("model.d_model", "model.attention.n_heads"):  # --set has the last word
        return
    assert len(own) == 1
    assert own[0].endswith("beyond 64 bits")
    assert option.key == "threads" or any("--threads 0" in line for line in found)


@pytest.mark.parametrize("option", [*TARGET, *CAUSALITY], ids=lambda option: option.flags[0])
def test_every_flag_of_a_target_tells_it_in_one_line(option: KeyOption):
    if option.is_switch:
        return
    flags = [option.flag(TOO_LONG), next(other for other in RUN if other.key == "threads").flag("0")]
    found = complaints(lambda: load_any(None, flags=flags, sets=["target.vocab_size=7"]))
    assert any("--threads 0" in line for line in found)
    assert all(len(line) < 600 for line in found)


@pytest.mark.parametrize("declared", [f"window={TOO_LONG}", f"prefix={BEYOND}", f"documents=2,{TOO_LONG}"])
def test_a_spoken_declaration_refuses_one(write, declared):
    found = complaints(lambda: load(write(), sets=[f"causality.declare={declared}", "threads=0"]))
    assert [line[:6] for line in found].count("--set ") == 2
    assert all(len(line) < 600 and "object at" not in line for line in found)


@pytest.mark.parametrize("at", [f"'{TOO_LONG}:'", f"[{BEYOND}]", f"'::{BEYOND}'"])
def test_an_override_of_some_layers_refuses_one(write, at):
    found = complaints(lambda: load(write(f"{FILE}[[model.layers]]\nat = {at}\n[input]\nseq_len = 0\n")))
    assert [line.partition(": expected")[0] for line in found][-1] == "x.toml: input.seq_len"
    assert len(found) == 2


def test_the_largest_seed_is_none_of_them(write):
    assert load(write(), sets=[f"seed={2**63 - 1}"]).experiment.seed == 2**63 - 1
