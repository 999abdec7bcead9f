"""A device without float64, played by an object: there is no mps in CI."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tfblock_cli
from tfblock_cli.probes.float64 import for_float64

PROBES = Path(tfblock_cli.__file__).parent / "probes"
FILES = [PROBES / "forward.py", *sorted((PROBES / "gradflow").rglob("*.py"))]
ON_THE_CPU = {"losses.py", "text.py"}
"""What these compute in float64 has not been on a device yet."""


def test_what_is_on_a_device_without_float64_goes_to_the_cpu():
    moved = torch.ones(2)
    there: Any = SimpleNamespace(device=SimpleNamespace(type="mps"), cpu=lambda: moved)
    assert all(tensor is moved for tensor in for_float64(there, there))


def test_everything_else_stays_where_it_is():
    x, y = torch.ones(2), torch.ones(3, device="meta")
    assert [*map(id, for_float64(x, y))] == [id(x), id(y)]
    assert not for_float64()


def in_float64(tree):
    """The calls that compute in float64: x.double(), and what has dtype=torch.float64."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "dtype"]
            if "torch.float64" in names or (isinstance(node.func, ast.Attribute) and node.func.attr == "double"):
                yield node


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_statistics_are_taken_where_float64_is(file):
    """Each function that computes in float64 moves what it is given; the files on the CPU are named above."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    bare = [f.name for f in functions if any(in_float64(f)) and "for_float64" not in ast.unparse(f)]
    assert not bare or file.name in ON_THE_CPU
