import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tfblock_cli.loading import load, shipped
from tfblock_cli.loading.shipped import PACKAGE
from tfblock_cli.spec.norm_placement import Parallel

REPOSITORY = Path(__file__).parents[2]
NAMES = {"decoder_block", "gpt2", "norm_placements", "pre_vs_post", "tiny_transformer"}
NAMES |= {"depth_slopes", "embedding_scale", "tutorial_flaws"}


def test_in_a_checkout_they_lie_beside_the_package() -> None:
    assert shipped().keys() >= NAMES
    assert {path.parent for path in shipped().values()} == {PACKAGE.parent / "experiments"}


def test_the_ones_inside_the_package_go_first(tmp_path: Path) -> None:
    package = tmp_path / "tfblock_cli"
    for folder, name in ((package / "experiments", "inside"), (tmp_path / "experiments", "beside")):
        assert shipped(package) == ({} if name == "inside" else {"inside": package / "experiments" / "inside.toml"})
        folder.mkdir(parents=True)
        (folder / f"{name}.toml").touch()
    (package / "experiments" / "inside.toml").unlink()
    (package / "experiments").rmdir()
    assert shipped(package) == {"beside": tmp_path / "experiments" / "beside.toml"}


ASK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tfblock_cli.loading import load, shipped
assert all(path.is_relative_to(sys.argv[1]) for path in shipped().values()), shipped()
print(*shipped())
print(load("gpt2").experiment.model.d_model)
"""


@pytest.mark.skipif(not (REPOSITORY / "pyproject.toml").is_file(), reason="no checkout to build from")
def test_a_wheel_holds_them(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(REPOSITORY)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert {f"tfblock_cli/experiments/{name}.toml" for name in NAMES} <= set(names)
    assert "tfblock_cli/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "experiments/", "runs/"))]
    # -I: neither the working directory nor PYTHONPATH may lead back to the checkout.
    ask = [sys.executable, "-I", "-c", ASK, str(tmp_path / "site")]
    answer = subprocess.run(ask, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    found, d_model = answer.splitlines()
    assert (set(found.split()), d_model) == (set(shipped()), "768")


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_file_asks_one_question_and_bears_its_own_name(name: str) -> None:
    text = shipped()[name].read_text(encoding="utf-8")
    first = text.splitlines()[0]
    assert first.startswith("# ")
    assert first.count("?") == 1
    assert tomllib.loads(text)["name"] == name
    assert load(name).warnings == ()


@pytest.mark.parametrize(
    ("name", "bias", "total"),
    [
        ("decoder_block", None, 256 + 280 + 32),
        ("gpt2", True, 124_439_808),
        ("gpt2", False, 124_439_808 - 82_944),
        ("tiny_transformer", None, 590_464),
    ],
)
def test_known_totals(name: str, bias: bool | None, total: int) -> None:
    keys = ["bias", "head_bias", "attention.bias", "attention.out_bias", "ffn.bias"]
    sets = [] if bias is not False else [f"model.{key}=false" for key in keys]
    model = load(name, sets=sets).experiment.model
    assert sum(weight.count for weight in model.weights()) == total


def test_the_decoder_block_is_a_block_and_no_model() -> None:
    experiment = load("decoder_block").experiment
    model = experiment.model
    assert (model.n_layers, model.vocab_size, model.d_model, model.attention.n_heads) == (1, 0, 8, 2)
    assert (experiment.input.batch_size, experiment.input.seq_len) == (1, 4)
    assert not model.has_final_norm
    assert {weight.name.partition("blocks.0.")[0] for weight in model.weights()} == {""}
    biases = [weight for weight in model.weights() if weight.kind == "bias" and weight.name.startswith("blocks.0.ffn.")]
    assert sum(bias.count for bias in biases) == 24


def test_the_placements_that_are_compared() -> None:
    pre_vs_post = load("pre_vs_post").experiment
    assert [placement.kind for placement in pre_vs_post.gradflow.placements] == ["pre", "post"]
    assert pre_vs_post.gradflow.depths == (6, 12)
    assert pre_vs_post.gradflow.loss == "random_projection"  # it has no vocabulary
    assert pre_vs_post.model.ffn.d_ff == 4 * pre_vs_post.model.d_model == 4 * 384
    gradflow = load("norm_placements").experiment.gradflow
    kinds = [placement.kind for placement in gradflow.placements]
    assert kinds == ["pre", "post", "sandwich", "reordered", "deepnorm", "parallel", "lns", "mixln"]
    assert (gradflow.baseline, gradflow.seeds, gradflow.depths) == ("pre", 5, (12,))
    assert gradflow.placements[5] == Parallel()
