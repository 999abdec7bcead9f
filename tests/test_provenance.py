import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tfblock_cli import provenance
from tfblock_cli.store.schema import result_schema

ROOT = Path(__file__).parents[1]
KEYS = ["experiment_sha256", "source", "tfblock", "python", "torch", "platform", "device", "threads", "git"]


def collect() -> dict[str, Any]:
    return provenance.collect(experiment_sha256="0" * 64, source="x.toml", device="cpu", threads=1)


def git(*arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository in the current directory, out of reach of the settings of this machine."""
    for variable in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    return tmp_path


def test_the_keys_and_what_was_handed_in() -> None:
    made = collect()
    assert list(made) == KEYS
    assert [made[key] for key in ("experiment_sha256", "source", "device", "threads")] == [
        "0" * 64,
        "x.toml",
        "cpu",
        1,
    ]
    assert made["python"] == platform.python_version()
    assert made["torch"] == metadata.version("torch")
    jsonschema.validate(made, result_schema()["properties"]["provenance"])


def test_git_is_the_commit_one_stands_on(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert collect()["git"] is None  # no commit yet
    file = repository / "tracked.txt"
    file.write_text("one")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    sha = git("rev-parse", "HEAD")
    assert collect()["git"] == {"sha": sha, "dirty": False}

    below = repository / "runs"
    below.mkdir()
    (below / "untracked.txt").write_text("a result")
    monkeypatch.chdir(below)
    assert collect()["git"] == {"sha": sha, "dirty": False}

    file.write_text("two")
    assert collect()["git"] == {"sha": sha, "dirty": True}
    git("commit", "--quiet", "--all", "-m", "second")
    git("checkout", "--quiet", "--detach")
    assert collect()["git"] == {"sha": git("rev-parse", "HEAD"), "dirty": False}


def test_outside_a_repository_git_is_null(repository: Path) -> None:
    (repository / ".git").rename(repository / "moved")
    assert collect()["git"] is None


def test_without_git_installed_git_is_null(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert collect()["git"] is None


def test_a_git_that_hangs_is_given_up(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = repository / "git"
    script.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(repository))
    monkeypatch.setattr(provenance, "_GIT_TIMEOUT_S", 0.2)
    start = time.monotonic()
    assert collect()["git"] is None
    assert time.monotonic() - start < 30


def test_a_deleted_current_directory_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert collect()["git"] is None


def test_what_is_not_installed_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert (collect()["tfblock"], collect()["torch"]) == (None, None)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from tfblock_cli.provenance import collect;"
        "made = collect(experiment_sha256='', source='', device='cpu', threads=1);"
        "assert made['torch'] and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
