import dataclasses
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.report.examples import (
    RESULTS,
    causality_result,
    forward_result,
    gradflow_result,
    params_result,
    self_test_result,
)
from tfblock_cli.report.terminal import render, to_text
from tfblock_cli.results.params import Verification
from tfblock_cli.results.result import Check, Result

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = sorted(RESULTS)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_screen_is_as_stored(golden, command, width):
    golden(GOLDEN / f"{command}-{width}.txt", to_text(RESULTS[command], width))


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_too_long_cut_off_or_padded(command, width):
    lines = to_text(RESULTS[command], width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line or line != line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [80, 90, 100, 110, 120])
def test_stage_names_shapes_and_notes_are_whole_at_every_width(width):
    text = to_text(forward_result(), width)
    for stage in forward_result().data.stages:
        name = stage.name if width == 120 else stage.name.removeprefix("blocks.0.").removeprefix("blocks.1.")
        line = next(line for line in text.splitlines() if f" {name} " in f" {line}")
        assert " ".join(stage.symbolic) in line
        assert str(stage.shape) in line
        assert stage.note in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_console_that_reads_markup_loses_no_brackets(command):
    file = io.StringIO()
    Console(file=file, width=120, color_system=None).print(render(RESULTS[command]))
    assert file.getvalue() == to_text(RESULTS[command], 120)
    marked = dataclasses.replace(RESULTS[command], warnings=("x is [batch, seq, d_model]",))
    assert "x is [batch, seq, d_model]" in to_text(marked)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stream_that_knows_only_ascii_gets_only_ascii(command):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    Console(file=file, width=120, color_system=None).print(render(RESULTS[command]))  # or UnicodeEncodeError


VERDICT_COLOURS = [("params", "\x1b[1;32mPASS"), ("causality", "\x1b[1;31mFAIL")]


@pytest.mark.parametrize(("command", "verdict"), VERDICT_COLOURS)
def test_the_verdict_has_a_colour_unless_the_user_wants_none(monkeypatch, command, verdict):
    def on_a_terminal() -> str:
        file = io.StringIO()
        Console(file=file, width=120, force_terminal=True, color_system="standard").print(render(RESULTS[command]))
        return file.getvalue()

    assert verdict in on_a_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert verdict.split("m")[-1] in on_a_terminal()
    assert not any(f"{code}m" in on_a_terminal() for code in range(31, 38))


def last_line(result: Result[Any]) -> str:
    return to_text(result).splitlines()[-1]


def test_the_last_line_is_the_verdict():
    unchecked = params_result()
    held, failed, undecided = (
        next(check for check in causality_result().checks if check.passed is passed) for passed in (True, False, None)
    )

    def with_checks(*checks: Check) -> str:
        return last_line(dataclasses.replace(unchecked, checks=checks, warnings=()))

    assert with_checks() == "NO VERDICT  nothing was to be checked"
    assert with_checks(held) == "PASS  1 check held"
    assert with_checks(held, undecided) == "INCONCLUSIVE  2 checks: 1 cannot be judged"
    assert with_checks(held, failed, undecided) == "FAIL  3 checks: 1 failed, 1 cannot be judged"
    assert last_line(unchecked) == "NO VERDICT  nothing was to be checked, 1 warning"


def test_params_lists_every_difference_to_the_built_model():
    verified = Verification(tensors=17, parameters=1, differences=("head.weight [V, D] is missing", "x is new"))
    text = to_text(params_result(verified=verified))
    assert "DIFFERS  head.weight [V, D] is missing\nDIFFERS  x is new\n" in text
    assert "FAIL  account_equals_model: 2, demanded == 0" in text


def test_params_shares_and_components_of_large_models_fit_80_columns():
    result = params_result()
    large = tuple(
        dataclasses.replace(row, count=row.count * 10**6, weights=row.weights * 10**6) for row in result.data.components
    )
    text = to_text(dataclasses.replace(result, data=dataclasses.replace(result.data, components=large)), 80)
    assert "393,216,000,000   393,216,000,000" in text.replace("  ", "   ").replace("    ", "   ")


def test_a_leak_is_told_in_words_and_a_message_only_once():
    text = to_text(causality_result())
    assert "LEAK  output 3 depends on input 7: relative size 0.800, 4/9 cuts" in text
    assert text.count("Output 3 changes when the inputs") == 1


def test_a_leak_that_is_not_about_the_future_says_what_it_is_about():
    result = causality_result()
    behind = dataclasses.replace(
        result.data.leaks[0], probe="incremental", out=7, in_=6, shape="behind a cache", counted="chunks"
    )
    text = to_text(dataclasses.replace(result, data=dataclasses.replace(result.data, leaks=(behind,))))
    assert "LEAK  output 7 depends wrongly on input 6: relative size 0.800, 4/9 chunks, behind a cache" in text


def test_a_ladder_says_what_it_covers():
    text = to_text(causality_result())
    assert "suffix_cuts at T=10: cuts 4/9, pairs 44.4 %, adjacent pairs 44.4 % (--budget)" in text


def test_a_control_that_slips_through_stands_out():
    text = to_text(self_test_result(), 80)
    assert "1 of 2 broken models caught, 1 of 1 correct ones clean" in text
    assert "20 subtracted  suffix_cuts       clean         0  must be LEAK" in text
    assert text.splitlines()[-1] == "INCONCLUSIVE  3 checks: 1 cannot be judged"


def test_gradflow_draws_gaps_where_a_seed_has_no_gradient():
    result = gradflow_result()
    dead = tuple(
        row._replace(value=0.0) if (row.placement, row.layer, row.metric) == ("post", 0, "grad_norm") else row
        for row in result.data.rows
    )
    text = to_text(dataclasses.replace(result, data=dataclasses.replace(result.data, rows=dead)))
    assert "not drawn: 1 of 12 values" in text
    assert "not drawn" not in to_text(result)


def test_an_experiment_without_a_name_or_a_model_has_a_screen():
    result = Result(command="params", data=params_result().data, experiment={})
    assert to_text(result).startswith("params\n")


def test_the_screen_of_params_needs_no_charts():
    code = """
import sys
from tests.report.examples import params_result
from tfblock_cli.report.terminal import to_text
to_text(params_result())
print([name for name in sys.modules if name in ("torch", "rich.progress", "tfblock_cli.report.terminal.charts")])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
    assert (
        "charts"
        in subprocess.run(
            [sys.executable, "-c", code.replace("params_result", "gradflow_result")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
