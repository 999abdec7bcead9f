"""Gradient norms of any tensors; those of a decoder's parts stand in test_cell.py."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfblock_cli.probes.gradflow.gradients import euclidean_norms


def test_a_missing_gradient_counts_as_zero():
    assert euclidean_norms([torch.tensor([3.0, 4.0]), None, torch.tensor([1.0])]) == [5.0, 0.0, 1.0]
    assert euclidean_norms([None]) == [0.0]
    assert euclidean_norms([]) == []


SHAPES = st.lists(st.none() | st.lists(st.integers(0, 4), max_size=3), max_size=6)


@given(SHAPES, st.sampled_from([torch.float32, torch.float64]))
def test_each_is_the_root_of_the_sum_of_squares_and_in_its_place(shapes, dtype):
    random = torch.Generator().manual_seed(0)
    made = [None if shape is None else torch.randn(shape, generator=random).to(dtype) for shape in shapes]
    expected = [0.0 if one is None else math.sqrt(sum(x * x for x in one.double().flatten().tolist())) for one in made]
    assert euclidean_norms(made) == pytest.approx(expected, rel=1e-14)


def test_squares_beyond_the_range_of_float32_are_no_trouble():
    assert euclidean_norms([torch.tensor([3e30, 4e30]), torch.tensor([3e-30, 4e-30])]) == pytest.approx([5e30, 5e-30])
