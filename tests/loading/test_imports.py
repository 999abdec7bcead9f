import subprocess
import sys

import pytest

LOAD = "import sys; from tfblock_cli.loading import load; load('gpt2'); print(*sys.modules)"


def modules(code: str) -> set[str]:
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return modules(LOAD)


@pytest.mark.parametrize("module", ["torch", "rich", "numpy", "typer", "tomli_w", "difflib"])
def test_loading_does_not_import(module: str, loaded: set[str]) -> None:
    assert module not in loaded


def test_the_list_of_modules_can_show_one(loaded: set[str]) -> None:
    assert "pydantic" in loaded
    assert "difflib" in modules("import difflib; " + LOAD)
