"""What is free, read from a file system that is made up; and what a refusal says."""

from pathlib import Path

import pytest

from tfblock_cli.errors import BadInput
from tfblock_cli.probes import room
from tfblock_cli.probes.room import free_bytes, require

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"}
VERSION_2 = {"proc/self/cgroup": "0::/user/box\n"}
VERSION_1 = {"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/box\n0::/\n"}


def test_without_limits_it_is_what_the_machine_has_available(tmp_path):
    assert free_bytes("cpu", write(tmp_path, MACHINE)) == 8 * GIB


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"user/box/memory.max": f"{4 * GIB}\n", "user/box/memory.current": f"{3 * GIB}\n"}, GIB),
        ({"user/memory.max": f"{2 * GIB}\n", "user/memory.current": f"{GIB // 2}\n"}, 3 * GIB // 2),
        ({"user/box/memory.max": "max\n", "user/box/memory.current": f"{3 * GIB}\n"}, 8 * GIB),
        ({"user/box/memory.max": f"{64 * GIB}\n", "user/box/memory.current": "0\n"}, 8 * GIB),
        ({"user/box/memory.max": f"{GIB}\n", "user/box/memory.current": f"{2 * GIB}\n"}, 0),
        (
            {
                "user/box/memory.max": f"{4 * GIB}\n",
                "user/box/memory.current": f"{4 * GIB}\n",
                "user/box/memory.stat": f"anon 5\nfile 7\ninactive_file {2 * GIB}\nactive_file 9\n",
            },
            2 * GIB,
        ),
    ],
    ids=["limit", "limit of the parent", "no limit", "limit above the machine", "over the limit", "page cache"],
)
def test_the_narrowest_limit_around_the_process_counts(tmp_path, files, left):
    write(tmp_path, MACHINE | VERSION_2 | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert free_bytes("cpu", tmp_path) == left


def test_control_groups_of_version_1(tmp_path):
    files = {"memory.limit_in_bytes": f"{2 * GIB}\n", "memory.usage_in_bytes": f"{GIB}\n"}
    write(tmp_path, MACHINE | VERSION_1 | {f"sys/fs/cgroup/memory/box/{name}": text for name, text in files.items()})
    assert free_bytes("cpu", tmp_path) == GIB


def test_on_this_machine_something_is_free():
    free = free_bytes("cpu")
    assert free is not None
    assert free > 2**20


def test_up_to_four_fifths_are_granted_and_no_more(monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda device: 10 * GIB)
    require(8 * GIB, "cpu", "a forward pass of gpt2")
    with pytest.raises(BadInput) as refused:
        require(8 * GIB + 1, "cpu", "a forward pass of gpt2")
    (problem,) = refused.value.problems
    assert problem.where == "--device cpu"
    for words in ("a forward pass of gpt2", "8.0 GiB", "80%", "10.0 GiB", "--batch", "--seq", "bfloat16", "meta"):
        assert words in problem.message


def test_meta_needs_no_room():
    assert free_bytes("meta") is None
    require(10**30, "meta", "anything")


@pytest.mark.parametrize("device", ["cuda:99", "mps"])
def test_a_device_that_is_not_there_is_the_users_to_mend(device):
    import torch

    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(BadInput, match="no such device"):
        require(1, device, "a forward pass")
