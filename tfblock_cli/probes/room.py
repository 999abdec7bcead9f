"""Is there room? Asked before anything is allocated, so that the answer is one sentence and not a killed process."""

import os
from collections.abc import Iterator
from pathlib import Path

from tfblock_cli.errors import BadInput, Problem

SHARE = 0.8
"""The part of the free memory that a run may claim; the rest is for torch itself and for others."""

CGROUP_FILES = {
    # version: limit, usage, and the part of the usage that the kernel gives back when asked
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


HELPS = (
    "a smaller batch (--batch), a shorter sequence (--seq), a smaller model, --dtype bfloat16 instead of float32, or "
    "for forward --device meta (shapes without numbers)"
)
HELPS_TARGET = "a smaller model, weights of a narrower dtype, such as bfloat16 instead of float32, or another --device"


def require(need_bytes: int, device: str, what: str, helps: str = HELPS) -> None:
    """Refuse a run that needs more than 80 % of the free memory; the device meta needs none.

    Args:
        need_bytes: An upper bound of what it needs at once.
        device: Where: cpu, cuda, cuda:1, mps or meta.
        what: What needs it, in the user's words.
        helps: What the user can do about it.

    Raises:
        BadInput: With both figures and what helps; or there is no such device.
    """
    free = free_bytes(device)
    if free is not None and need_bytes > SHARE * free:
        free_part = f"{SHARE:.0%} of the free {_gib(free)}"
        message = f"{what} needs up to {_gib(need_bytes)}, which is more than {free_part}; what helps: {helps}"
        raise BadInput(Problem(f"--device {device}", message))


def free_bytes(device: str, root: Path = Path("/")) -> int | None:
    """What is free on a device now: on the machine and within the limits set on this process; None: no limit known.

    Args:
        device: Its name.
        root: Where /proc and /sys are found.

    Raises:
        BadInput: There is no such device.
    """
    match device.split(":")[0]:
        case "meta":
            return None
        case "cuda":
            return _free_on_cuda(device)
        case "mps":
            _expect_mps(device)
        case _:  # the CPU; mps has its memory from the same machine
            pass
    return min((*_machine(root), *_cgroups(root)), default=None)


def _expect_mps(device: str) -> None:
    import torch

    if not torch.backends.mps.is_available():
        raise BadInput(Problem(f"--device {device}", "there is no such device here"))


def _free_on_cuda(device: str) -> int:
    import torch

    try:
        free, _ = torch.cuda.mem_get_info(device)
    except (AssertionError, RuntimeError, ValueError) as error:  # torch without CUDA, no driver, no such index
        reason = str(error).splitlines()[0]
        raise BadInput(Problem(f"--device {device}", f"there is no such device here ({reason})")) from error
    return int(free)


def _machine(root: Path) -> Iterator[int]:
    """Free memory of the machine; where the system does not tell it, all memory that the machine has."""
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) * 1024
            return
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroups(root: Path) -> Iterator[int]:
    """What is left under the limit of each control group around this process (a container's, for example)."""
    for line in _lines(root / "proc/self/cgroup"):
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            version, top = 2, root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            version, top = 1, root / "sys/fs/cgroup/memory"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                yield from _left(folder, *CGROUP_FILES[version])


def _left(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    limits, usages = _lines(folder / limit), _lines(folder / usage)
    if limits and usages and limits[0] != "max":
        given_back = sum(
            int(line.split()[1]) for line in _lines(folder / "memory.stat") if line.split()[0] == reclaimable
        )
        yield max(int(limits[0]) - int(usages[0]) + given_back, 0)


def _lines(file: Path) -> list[str]:
    """The lines of a file that not every system has."""
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
