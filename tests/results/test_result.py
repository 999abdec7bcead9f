import math
from dataclasses import dataclass

import pytest

from tests.store.records import PARAMS, check
from tfblock_cli.results.result import Check, Result, to_json


def result(*checks: Check) -> Result[object]:
    return Result(command="params", data=PARAMS, checks=checks, experiment={})


@pytest.mark.parametrize(
    ("passed", "verdict"),
    [
        ((), "none"),
        ((True,), "pass"),
        ((True, True), "pass"),
        ((True, False), "fail"),
        ((True, None), "inconclusive"),
        ((None, False), "fail"),  # a leak outranks what could not be judged, in either order
        ((False, None), "fail"),
    ],
)
def test_the_worst_check_decides(passed: tuple[bool | None, ...], verdict: str) -> None:
    assert result(*(check(each) for each in passed)).verdict == verdict


def test_a_warning_alone_decides_nothing() -> None:
    assert Result(command="params", data=PARAMS, warnings=("careful",), experiment={}).verdict == "none"


@dataclass
class Measured:
    in_: int
    value: float


@pytest.mark.parametrize(("value", "reason"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_number_that_is_not_finite_is_null_and_says_why(value: float, reason: str) -> None:
    assert to_json(Measured(1, value)) == {"in": 1, "value": None, "value_reason": reason}
    assert to_json({"outer": [Measured(1, value)]}) == {"outer": [{"in": 1, "value": None, "value_reason": reason}]}
    assert to_json((1.0, value)) == [1.0, None]


def test_a_finite_number_has_no_reason() -> None:
    assert to_json(Measured(1, 1e308)) == {"in": 1, "value": 1e308}


def test_what_is_not_plain_data_is_refused() -> None:
    with pytest.raises(TypeError, match="complex is not plain data"):
        to_json({"value": 1j})
    with pytest.raises(TypeError, match="type is not plain data"):
        to_json(Measured)
