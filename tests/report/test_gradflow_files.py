"""What gradflow writes for other programs: CSV, JUnit XML, pictures, and the full matrix on the screen."""

import csv
import dataclasses
import io
from xml.etree import ElementTree

import pytest

from tests.report.examples import RESULTS, gradflow_result, training_result
from tfblock_cli.report.junit import to_junit
from tfblock_cli.report.long_format import to_csv
from tfblock_cli.report.terminal import explain, to_text
from tfblock_cli.report.terminal.console import to_plain
from tfblock_cli.results.metrics import METRICS, TRAINED


def test_csv_has_every_row_with_all_digits():
    result = gradflow_result()
    lines = list(csv.DictReader(io.StringIO(to_csv([result, result]))))
    assert len(lines) == 2 * len(result.data.rows)
    for line, row in zip(lines, result.data.rows, strict=False):
        assert line["experiment"] == "small"
        assert float(line["value"]) == row.value
        assert (line["placement"], int(line["layer"]), line["metric"]) == (row.placement, row.layer, row.metric)


def test_junit_counts_failures_and_errors():
    result = RESULTS["causality"]  # one check of each outcome
    odd = dataclasses.replace(result, warnings=("a <b> & \x00",))
    suites = ElementTree.fromstring(to_junit([odd, gradflow_result()]))
    first, second = suites
    assert {key: first.attrib[key] for key in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
    }
    assert [case.find("failure") is not None for case in first.iter("testcase")] == [False, True, False]
    assert [case.find("error") is not None for case in first.iter("testcase")] == [False, False, True]
    assert first.findtext("system-err") == "warning: a <b> & ?"
    assert second.attrib["name"] == "gradflow small"
    assert sum(1 for _ in second.iter("testcase")) == len(gradflow_result().checks)


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_a_picture_is_the_same_twice_and_another_for_other_numbers(tmp_path, ending):
    pytest.importorskip("matplotlib")
    from tfblock_cli.report.plot import draw_gradflow

    data = gradflow_result().data
    other = dataclasses.replace(data, rows=tuple(row._replace(value=0.5 + row.seed) for row in data.rows))
    dead = dataclasses.replace(data, rows=tuple(row._replace(value=0.0) for row in data.rows))
    files = []
    for i, drawn in enumerate((data, data, other, dead)):
        draw_gradflow(drawn, tmp_path / f"{i}{ending}")
        files.append((tmp_path / f"{i}{ending}").read_bytes())
    assert files[0] == files[1] != files[2]
    if ending == ".svg":
        assert b"post" in files[0] or b"<path" in files[0]


def test_a_picture_shows_the_loss_curves_where_there_was_training(tmp_path):
    pytest.importorskip("matplotlib")
    from tfblock_cli.report.plot import draw_gradflow

    for name, data in (("plain", gradflow_result().data), ("trained", training_result().data)):
        draw_gradflow(data, tmp_path / f"{name}.svg")
    plain, trained = ((tmp_path / f"{name}.svg").read_text(encoding="utf-8") for name in ("plain", "trained"))
    # labels are drawn as paths, and matplotlib leaves each text beside them as a comment
    for label in ("training loss (nats)", "frequencies alone", "12 layers, lr 0.001, warmup 100"):
        assert f"<!-- {label} -->" in trained
        assert f"<!-- {label} -->" not in plain


def test_csv_says_which_run_a_point_of_a_curve_is_of():
    data = training_result().data
    lines = [line for line in csv.DictReader(io.StringIO(to_csv([training_result()]))) if line["stage"] == "train"]
    assert len(lines) == sum(row.stage == "train" for row in data.rows)
    assert {(line["lr"], line["warmup"]) for line in lines} == {("0.0003", "0"), ("0.001", "100")}


def test_all_layers_on_demand():
    result = gradflow_result()
    short, full = to_text(result), to_text(result, all_layers=True)
    assert "post, depth 12" not in short.replace("of post, depth 12", "")
    assert "post, depth 12  gradient norms by layer and group" in full
    matrix = full.split("pre, depth 6  gradient norms")[1].split("post, depth 6")[0]
    (line,) = (line for line in matrix.splitlines() if line.startswith("    5 "))
    assert line.split() == ["5", "0.524", "11.9"]  # 0.5 and 1.5^6, times sqrt(1 · 1.1)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_metric_is_explained_in_plain_text(width):
    for name in (*METRICS, *TRAINED, "slope.rms.last"):
        lines = to_plain(explain(name), width).splitlines()
        assert lines[0] == name
        assert max(map(len, lines)) <= width
        assert not any(line != line.rstrip() for line in lines)
    assert "theorem 1" in to_plain(explain("grad.down.last"), 120)
    with pytest.raises(KeyError):
        explain("nothing")
