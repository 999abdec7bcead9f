"""Where a result comes from: versions, machine, and the state of the repository one stands in."""

import platform
import subprocess
from importlib import metadata
from typing import Any

_GIT_TIMEOUT_S = 2.0


def collect(*, experiment_sha256: str, source: str, device: str, threads: int) -> dict[str, Any]:
    """The ``provenance`` of a result; what cannot be found out is null. Never raises, and imports no torch.

    ``git`` is the repository of the current directory, not that of tfblock's own source: in a CI job that is
    the commit under test, and ``tfblock`` names the other by its version.

    Args:
        experiment_sha256: Of the resolved experiment.
        source: What the experiment was read from, in the user's words.
        device: The torch device that the run used.
        threads: The number of torch threads.
    """
    return {
        "experiment_sha256": experiment_sha256,
        "source": source,
        "tfblock": version("tfblock"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "platform": f"{platform.system()}-{platform.release()}-{platform.machine()}",
        "device": device,
        "threads": threads,
        "git": _git(),
    }


def version(distribution: str) -> str | None:
    """Of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except (metadata.PackageNotFoundError, KeyError, OSError):  # not installed, or its metadata is broken
        return None


def _git() -> dict[str, Any] | None:
    """The commit, and whether a tracked file differs from it; None without a repository or a first commit.

    Untracked files do not count: the results of the last run would make the next one dirty.
    """
    command = [
        "git",
        "--no-optional-locks",  # only look: never get in the way of a git that runs beside us
        "-c",
        "core.fsmonitor=false",  # or git may start a daemon that outlives us
        "status",
        "--porcelain=v2",
        "--branch",
        "--untracked-files=no",
    ]
    try:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    lines = status.decode("utf-8", "replace").splitlines()
    headers = [line for line in lines if line.startswith("# ")]
    sha = next((line.split()[-1] for line in headers if line.startswith("# branch.oid ")), "(initial)")
    return None if sha == "(initial)" else {"sha": sha, "dirty": len(lines) > len(headers)}
