"""Training runs that are done, kept until the run that they belong to is saved: a killed one goes on where it was."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

from tfblock_cli.store.whole import write_whole

PARTIAL = ".partial"
"""The folder in ``runs/`` that holds one folder per unfinished experiment, by its sha256."""


class Partial:
    """Small JSON files, one per training run, by name.

    One that cannot be written costs its training run when the process is killed, and nothing else: the result itself
    tells what is wrong with the disk.

    Args:
        runs_dir: Where results are kept.
        experiment_sha256: Of the resolved experiment.
    """

    def __init__(self, runs_dir: Path, experiment_sha256: str) -> None:
        self.folder = runs_dir / PARTIAL / experiment_sha256

    def get(self, name: str, /) -> dict[str, Any] | None:
        """What was kept under a name; None if there is nothing, or nothing whole."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else None
        return None

    def __setitem__(self, name: str, found: dict[str, Any], /) -> None:
        """Keep it."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / f"{name}.json", json.dumps(found))

    def remove(self) -> None:
        """Forget what is kept of this experiment: its result is saved."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()
