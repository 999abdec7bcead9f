"""The whole process of ``tfblock params``, beside a bare import of the libraries that it stands on.

    python benchmarks/startup.py [--rounds 15]

The contestants take turns in every round; printed are median CPU seconds (user and system) of the finished process,
its peak memory, and the median of the round-by-round ratios to the bare import.
Demanded: at most 3 times the bare import, under 50 MB, and the same for gpt2 and for 400 billion parameters.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

BARE = [sys.executable, "-c", "import typer, rich.console, rich.table, pydantic"]
PARAMS = [sys.executable, "-m", "tfblock_cli", "params"]
# 126 layers of width 16384 with grouped heads: about 400 billion parameters
HUGE = ["--d", "16384", "--layers", "126", "--heads", "128", "--kv-heads", "8", "--d-ff", "53248", "--vocab", "128256"]
# As users have it: compiled modules are kept from one process to the next.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def spent(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak MB of one process, from the operating system's own account of it."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} left with {process.returncode}")
    kilobytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return usage.ru_utime + usage.ru_stime, kilobytes / 1024


def main() -> None:
    """Print one row per contestant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as runs:
        save = ["--runs-dir", str(Path(runs))]
        contestants = {
            "bare import": BARE,
            "params gpt2": [*PARAMS, "gpt2", *save],
            "params gpt2 --json": [*PARAMS, "gpt2", "--json", *save],
            "params, 400 billion": [*PARAMS, *HUGE, *save],
        }
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for turn in range(rounds + 1):  # the first is warm-up
            for name, command in contestants.items():
                found = spent(command)
                if turn:
                    seen[name].append(found)
    for name, found_all in seen.items():
        seconds, peaks = zip(*found_all, strict=True)
        bare = [cpu for cpu, _ in seen["bare import"]]
        ratio = median(mine / theirs for mine, theirs in zip(seconds, bare, strict=True))
        print(f"{name:20} {median(seconds):.3f} CPU s  {ratio:.2f} times the bare import  {max(peaks):.1f} MB")


if __name__ == "__main__":
    main()
