"""The screen and the picture of gradflow about a target: every number at its place, at any width."""

import math

import pytest

from tfblock_cli.report.long_format import to_csv
from tfblock_cli.report.terminal import to_text
from tfblock_cli.results.gradflow import Row
from tfblock_cli.results.result import Result
from tfblock_cli.results.target_gradflow import ParameterFacts, TargetGradflowData


def row(layer: int | None, group: str, value: float, metric: str = "grad_norm", seed: int = 0) -> Row:
    return Row(
        placement="", seed=seed, depth=2, stage="as-is", step=0, layer=layer, group=group, metric=metric, value=value
    )


def fact(name: str, layer: int | None, group: str, count: int) -> ParameterFacts:
    return ParameterFacts(name=name, layer=layer, group=group, shape=(count,), count=count, rms=1.0, dead=False)


def result(depth: int = 2) -> Result[TargetGradflowData]:
    rows = [row(None, "model", 9.5), row(None, "wte", 7.25), row(None, "model", 2.5, "loss")]
    for layer in range(depth):
        rows += [
            row(layer, "block", 3.5 + layer),
            row(layer, "attn.q.weight", 4.0 + layer, seed=0),
            row(layer, "attn.q.weight", 16.0 + layer, seed=1),
            row(layer, "hidden", 0.125),
            row(layer, "residual", 1.75, "rms"),
        ]
    facts = [fact("wte.weight", None, "wte", 4000)]
    facts += [fact(f"h.{layer}.attn.q.weight", layer, "attn.q.weight", 64) for layer in range(depth)]
    data = TargetGradflowData(
        loss="cross_entropy",
        layers="h" if depth else "",
        layer_type="Layer" if depth else "",
        depth=depth,
        seeds=(0, 1),
        parameters=tuple(facts),
        forwards=3,
        vjps=2,
        rows=tuple(rows),
    )
    return Result(command="gradflow", data=data, experiment={"name": "theirs"})


def cells(text: str, first: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_screen_has_every_number(width):
    text = to_text(result(), width)
    assert cells(text, "wte") == ["wte", "4,000", "7.25"]
    assert "all parameters       4,128           9.50" in text
    assert "h: 2 x Layer" in text
    assert "geometric mean over 2 seeds" in text
    for number in ("3.50", "4.50", "0.125", "1.75"):
        assert number in text
    assert f"{math.sqrt(4 * 16):.2f}" in text
    assert f"{math.sqrt(5 * 17):.2f}" in text
    assert max(map(len, text.splitlines())) <= width


def test_without_layers_there_are_no_curves():
    text = to_text(result(0))
    assert "no list of layers of one class was found" in text
    assert "by module" in text
    assert "along the layers" not in text


def test_the_long_format_has_all_rows():
    lines = to_csv([result()]).splitlines()
    assert len(lines) == 1 + len(result().data.rows)
    assert "theirs,,0,2,as-is,0,1,block,grad_norm,4.5,," in lines


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_of_the_layers_is_the_same_for_the_same_numbers(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    from tfblock_cli.report.plot import draw_layers

    one, other = (tmp_path / f"{name}.{suffix}" for name in ("one", "other"))
    draw_layers(result().data, one)
    draw_layers(result().data, other)
    assert one.read_bytes() == other.read_bytes()
