"""Settings that every test shares. No torch here: tests/spec and tests/loading run without it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Typer and Rich read these when they are imported; under GitHub Actions help would have colour otherwise.
for variable in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "NO_COLOR", "TFBLOCK_RUNS_DIR"):
    os.environ.pop(variable, None)
os.environ.update(TERM="dumb", COLUMNS="120")

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the stored outputs anew instead of comparing them"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """``golden(path, text)``: the file holds exactly this text; with --update-golden it is written."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            pytest.skip(f"{path.name} was written, not compared")
        assert path.is_file(), f"{path.name} is missing; pytest --update-golden writes it"
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date; see --update-golden"

    return compare


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
