"""How far outputs are apart, where some of their entries are infinite."""

import pytest
import torch

from tfblock_cli.probes.change import change_T, size, speaks_T

INF, NAN = float("inf"), float("nan")


def outputs(*positions: list[float]) -> torch.Tensor:
    """(1, T, V)."""
    return torch.tensor([positions])


def test_without_infinities_it_is_the_largest_difference():
    a, b = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    wanted = [max(abs(float(x)) for x in (a[:, t] - b[:, t]).flatten()) / 2 for t in range(5)]
    assert change_T(a, b, 2.0).tolist() == pytest.approx(wanted)


def test_the_same_infinity_is_no_change_and_another_one_is_a_full_one():
    y = outputs([1.0, -INF], [1.0, -INF], [1.0, -INF], [1.0, 5.0], [-INF, -INF], [1.0, NAN])
    z = outputs([1.0, -INF], [3.0, -INF], [1.0, +INF], [1.0, -INF], [-INF, -INF], [1.0, -INF])
    *moved, last = change_T(y, z, 10.0).tolist()
    assert moved == pytest.approx([0.0, 0.2, 1.0, 1.0, 0.0])
    assert last != last


def test_what_is_too_large_a_difference_for_its_dtype_is_a_full_one():
    y = torch.full((1, 2, 1), 60000.0, dtype=torch.float16)
    assert change_T(y, -y, 60000.0).tolist() == [1.0, 1.0]


def test_no_size_is_that_of_an_infinity_and_none_is_zero():
    assert size(outputs([1.0, -INF], [-3.0, -INF])) == 3.0  # a banned class
    assert size(outputs([-INF, -INF], [1.0, 2.0], [4.0, -8.0])) == 8.0  # a masked position
    assert size(outputs([-1e30, 1.0], [-1e30, 2.0], [-INF, -INF])) == 2.0  # a padded vocabulary beside one
    assert size(outputs([0.0, -INF], [-INF, 0.0])) == 1.0
    assert size(outputs([-INF, INF], [-INF, INF])) == 1.0
    assert size(outputs([7.0, -INF], [7.0, -INF])) == 7.0  # nothing varies
    assert size(torch.tensor([[1.0, -INF, -5.0]])) == 5.0  # (B, T)
    assert size(outputs([NAN, 1.0], [2.0, 3.0])) != size(outputs([NAN, 1.0], [2.0, 3.0]))


def test_a_position_of_infinities_alone_tells_nothing():
    y = torch.tensor([[[1.0, -INF], [-INF, INF], [NAN, -INF]], [[1.0, 1.0], [-INF, -INF], [-INF, -INF]]])
    assert speaks_T(y).tolist() == [True, False, True]
