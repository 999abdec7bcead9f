"""Imports run downward, and nothing imports more than it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

IMPORTED = """
import sys
{program}
print(*(name for name in ("torch", "rich", "numpy", "pydantic", "typer") if name in sys.modules), file=sys.stderr)
"""


def imported(program: str, folder: Path) -> set[str]:
    """Which of the heavy packages a program has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(program=program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())


def command_line(*arguments: str) -> str:
    return f"from tfblock_cli.__main__ import run\nassert run({list(arguments)!r}) == 0"


def test_import_contracts_hold():
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["params", "--help"], ["forward", "--help"], ["params", "gpt2", "--no-save"]],
    ids=" ".join,
)
def test_help_and_params_import_no_torch(arguments, tmp_path):
    assert not imported(command_line(*arguments), tmp_path) & {"torch", "numpy"}


def test_params_imports_no_other_command(tmp_path):
    """It has to start fast: what the others find, and how it is shown, is theirs."""
    others = {f"tfblock_cli.{of}.{name}" for of in ("cli", "results") for name in ("causality", "gradflow", "forward")}
    program = command_line("params", "gpt2", "--no-save")
    look = f"{program}\nimport sys\nassert not {others} & set(sys.modules), set(sys.modules)"
    assert "torch" not in imported(look, tmp_path)


def test_verifying_imports_it(tmp_path):
    """The negative control: what the test above looks for is found where it is."""
    assert "torch" in imported(command_line("params", "decoder_block", "--verify", "--no-save"), tmp_path)


def test_the_package_imports_nothing(tmp_path):
    assert imported("import tfblock_cli\ndir(tfblock_cli)\ntfblock_cli.__version__", tmp_path) == set()
    assert "pydantic" in imported("import tfblock_cli\ntfblock_cli.load", tmp_path)


def test_the_app_itself_needs_no_rich(tmp_path):
    assert imported("import tfblock_cli.cli.app", tmp_path) == {"pydantic", "typer"}


def test_failing_early_needs_nothing_heavy(tmp_path):
    """``__main__`` is what has to be there before Ctrl-C can be told in one word."""
    assert imported("import tfblock_cli.__main__", tmp_path) == set()
