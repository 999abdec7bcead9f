"""The pages name everything there is, and their example works."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import pytest

import tfblock_cli
from tests.documents import DOCUMENTS, ROOT, blocks
from tfblock_cli import api
from tfblock_cli.cli.app import COMMANDS
from tfblock_cli.cli.exit_codes import ExitCode
from tfblock_cli.cli.options import GRADFLOW, INPUT, MODEL, RUN
from tfblock_cli.results.causality import ProbeVerdict
from tfblock_cli.results.forward import ForwardData
from tfblock_cli.results.gradflow import GradflowData
from tfblock_cli.results.metrics import METRICS, TRAINED
from tfblock_cli.results.params import ParamsData
from tfblock_cli.spec.attention import Attention
from tfblock_cli.spec.base import Axis, names
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.ffn import Activation
from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.norm_placement import NormPlacement
from tfblock_cli.spec.settings import DEGENERATE, Expect, GradflowSettings, Loss
from tfblock_cli.spec.train import Outcome, TrainSettings

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
DATA = {"params": ParamsData, "forward": ForwardData, "gradflow": GradflowData}


def named(word: str, text: str) -> bool:
    """Whether a word stands between backticks, by itself or as a part of what stands there."""
    return any(word in re.split(r"[^\w.-]+", code) for code in re.findall(r"`([^`\n]+)`", text))


def test_named_finds_code_only():
    assert named("post", "the `post` placement, `pre`")
    assert named("d_head", "`attention.n_heads, d_head`")
    assert not named("post", "the post placement")
    assert not named("norm", "`norm_placement`")


def axes() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every axis by its key, with its kinds and aliases."""
    for owner in (ModelSpec, Attention):
        for key, field in owner.model_fields.items():
            if any(isinstance(item, Axis) for item in field.metadata):
                annotation: Any = owner.__annotations__[key]
                yield key, names(annotation)


@pytest.mark.parametrize(("key", "kinds"), [*axes()], ids=lambda value: value if isinstance(value, str) else "")
def test_the_readme_names_every_kind_in_the_row_of_its_axis(key, kinds):
    (row,) = re.findall(rf"^\| `model\.(?:attention\.)?{key}` \|.*$", README, re.MULTILINE)
    assert not [kind for kind in kinds if not named(kind, row)]


def test_there_are_axes_to_be_named():
    assert {"norm", "norm_placement", "position", "initialization", "ffn", "pattern", "qk_norm"} <= dict(axes()).keys()


@pytest.mark.parametrize("activation", get_args(Activation))
def test_the_readme_names_every_activation(activation):
    assert named(activation, README)


@pytest.mark.parametrize("flag", [flag for option in (*MODEL, *INPUT, *RUN, *GRADFLOW) for flag in option.flags])
def test_the_readme_names_every_flag_of_a_key(flag):
    assert all(named(form, README) for form in flag.split("/"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_page_that_the_readme_links_to(command):
    assert PAGES[command].startswith(f"# `tfblock {command}`")
    assert f"](docs/{command}.md)" in README


def test_the_exit_codes_are_those_of_the_program():
    table = README.partition("## Exit codes")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [*ExitCode]
    assert issubclass(ExitCode, Enum)


def test_the_readme_names_the_whole_python_api():
    assert all(named(name, README) for name in tfblock_cli.__all__)


@pytest.mark.parametrize("placement", names(NormPlacement))
def test_every_placement_is_explained(placement):
    assert named(placement, PAGES["gradflow"])


def test_the_formulas_of_the_placements_are_those_of_the_code():
    for row in re.findall(
        r"^\| `(\w+)`.*? \| (.*?) \|", PAGES["gradflow"].partition("## The protocol")[0], re.MULTILINE
    ):
        kind, formula = row
        if kind not in ("deepnorm", "mixln"):  # told in words as well
            code = load_placement(kind).formula
            assert formula.startswith(code), (kind, formula, code)


def load_placement(kind: str) -> Any:
    return Experiment.model_validate(
        {"model": {"d_model": 8, "n_layers": 4, "norm_placement": kind, "attention": {"n_heads": 2}}}
    ).model.norm_placement


@pytest.mark.parametrize("word", [*METRICS, *TRAINED, *DEGENERATE, *get_args(get_args(Loss)[0])])
def test_every_metric_and_loss_is_explained(word):
    assert named(word, PAGES["gradflow"])


@pytest.mark.parametrize(
    "key", [*GradflowSettings.model_fields, *Expect.model_fields, *TrainSettings.model_fields, *get_args(Outcome)]
)
def test_every_key_of_gradflow_is_explained(key):
    assert named(key, PAGES["gradflow"]) or named(f"gradflow.{key}", PAGES["gradflow"])


def keys(data: Any) -> Iterator[str]:
    """Every key of a dataclass and of those inside it."""
    for field in fields(data):
        yield field.name.rstrip("_")
        for part in (
            field.type,
            *get_args(field.type),
            *(inner for arg in get_args(field.type) for inner in get_args(arg)),
        ):
            if is_dataclass(part):
                yield from keys(part)


@pytest.mark.parametrize("command", DATA)
def test_every_key_of_the_json_is_named(command):
    assert not [key for key in keys(DATA[command]) if not named(key, PAGES[command])]


def test_every_key_of_a_result_is_named():
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text(encoding="utf-8"))
    parts = [schema, schema["$defs"]["Check"], schema["$defs"]["Run"], schema["properties"]["provenance"]]
    assert not [
        key
        for part in parts
        for key in part["properties"]
        if not named(key.removesuffix("_reason"), PAGES["architecture"])
    ]


def literal_checks() -> Iterator[tuple[str, str]]:
    """Every ``Check(name="...")`` in the probes, with the command that it belongs to."""
    probes = ROOT / "tfblock_cli" / "probes"
    for file in sorted(probes.rglob("*.py")):
        command = file.relative_to(probes).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Check":
                for keyword in node.keywords:
                    if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                        yield command, str(keyword.value.value)


@pytest.mark.parametrize(("command", "name"), sorted(set(literal_checks())))
def test_every_check_is_explained(command, name):
    assert named(name, PAGES[command])


def test_the_checks_are_found():
    assert {("forward", "output_shape"), ("params", "account_equals_model")} <= set(literal_checks())


def test_every_probe_and_verdict_of_causality_is_explained():
    found = api.causality("decoder_block")
    assert found.checks
    for check in found.checks:
        assert check.name in PAGES["causality"]
    for verdict in get_args(ProbeVerdict):
        assert f"| {verdict} |" in PAGES["causality"]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda document: document.stem
)
def test_links_between_pages_resolve(document):
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if target.startswith("https://"):
            continue
        page = document.parent / path if path else document
        assert page.exists(), target
        assert not anchor or anchor in anchors(page.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_files_that_are_named_are_there(document):
    """Between backticks; files of other projects are named with their project behind."""
    text = document.read_text(encoding="utf-8")
    paths = re.findall(r"`(?:python )?((?:tests|benchmarks|tfblock_cli|docs)/[\w./]+)`", text)
    assert not [path for path in paths if not (ROOT / path).exists() and not path.endswith("_test.py")]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the changes of docs/adding.md."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("tfblock_cli", "tests", "experiments"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for block in blocks(ROOT / "docs" / "adding.md", "diff"):
        outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}  # of any repository around it
        done = subprocess.run(
            ["git", "apply", "-"],
            input=block.text,
            cwd=folder,
            env=outside,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return folder


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


USE_REGLU = """
from tfblock_cli.__main__ import run
model = ["--d", "16", "--heads", "2", "--ffn", "reglu", "--seq", "4", "--no-save"]
print([int(run([*command, *model])) for command in (["params", "--verify"], ["forward"], ["causality"])])
"""
COUNT_ITS_BYTES = """
from tests.account.test_memory import activations, experiment, kept
print([kept(asked) - activations(asked) for asked in (experiment(ffn=ffn) for ffn in ("swiglu", "reglu"))])
"""


def test_the_ffn_that_adding_adds_works(copy):
    assert python(copy, "-c", USE_REGLU).stdout.splitlines()[-1] == "[0, 0, 0]"


def test_it_does_not_work_before():
    """The negative control: 2 is a bad option."""
    assert python(ROOT, "-c", USE_REGLU).stdout.splitlines()[-1] == "[2, 2, 2]"


def test_its_tests_pass(copy):
    assert python(copy, "-c", COUNT_ITS_BYTES).stdout.splitlines()[-1] == "[0, 0]"
    tests = ["tests/modules/test_formulas.py", "tests/modules/test_stage.py"]
    done = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "-k", "reglu")
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 8
