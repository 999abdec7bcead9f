"""CI runs what the README promises."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("pip", "python", "tfblock", "ruff", "mypy", "lint-imports")
TOOL = """\
#!/bin/sh
name=$(basename "$0")
echo "called $name $*"
[ "$name" = python ] && echo "=== 5 passed in 0.01s ==="
[ "$name $1" != "$FAIL" ]
"""


def _set_up_lines(text: str) -> list[str]:
    return re.findall(r"^(python3 -m venv \.venv && .*)$", text, re.MULTILINE)


def test_the_readme_has_a_line_for_the_main_job_and_one_for_the_tests():
    lines = _set_up_lines((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [line.rpartition(" && ")[2] for line in lines] == [
        ".venv/bin/tfblock gradflow norm_placements",
        ".venv/bin/python -m pytest",
    ]


def test_ci_runs_them_word_for_word():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    quoted = re.findall(r'="(python3 -m venv .*)"$', ci, re.MULTILINE)
    assert sorted(quoted) == sorted(_set_up_lines((ROOT / "README.md").read_text(encoding="utf-8")))
    for name in re.findall(r'^(\w+)="python3', ci, re.MULTILINE):
        assert f'"${name}"' in ci  # it is run, not only written down


def test_contributing_names_the_same_test_line():
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert _set_up_lines(contributing)[0] in _set_up_lines((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout whose tools only say that they were called; ``FAIL`` names one that fails."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    for name in ("bin/python3", *(f".venv/bin/{tool}" for tool in TOOLS)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TOOL, encoding="utf-8")
        path.chmod(0o755)
    return tmp_path


def run_ci(clone: Path, fail: str) -> tuple[int, list[str]]:
    environment = {**os.environ, "PATH": f"{clone / 'bin'}:{os.environ['PATH']}", "FAIL": fail}
    done = subprocess.run(
        [clone / ".ci" / "run"], env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout.splitlines()


def test_ci_ends_with_the_closing_line_of_pytest(clone):
    code, lines = run_ci(clone, fail="nothing")
    assert code == 0
    assert lines[-1] == "=== 5 passed in 0.01s ==="
    called = [line for line in lines if line.startswith("called ")]
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports"):
        assert any(line.startswith(f"called {tool}") for line in called)
    for experiment in (ROOT / "experiments").glob("*.toml"):
        assert any(line.startswith(f"called tfblock params {experiment.stem} ") for line in called)
    assert "called tfblock gradflow norm_placements" in called
    (trained,) = [line for line in called if line.startswith("called tfblock gradflow warmup ")]
    assert trained.endswith(" --quick")


@pytest.mark.parametrize(
    "fail", ["python -m", "python3 -m", "mypy ", "ruff format", "tfblock causality", "pip install"]
)
def test_ci_fails_if_anything_does_and_goes_on_to_the_end(clone, fail):
    code, lines = run_ci(clone, fail=fail)
    assert code == 1
    counted = re.fullmatch(r"(\d+) passed, (\d+) failed", lines[-1])
    assert counted
    assert int(counted[2]) == sum(line.startswith("FAILED: ") for line in lines) > 0
    assert any(line.startswith("called lint-imports") for line in lines)
