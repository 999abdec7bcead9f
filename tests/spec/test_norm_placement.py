"""Every placement's formula on plain floats, with an f that does not commute with the norm.

f(x) = x + 10 and N(x) = x / 2 at x = 4. With a linear f such as 10 x, pre and reordered would give the same number,
and the test could not tell them apart.
"""

from typing import Any, get_args

import pytest

from tfblock_cli.spec.base import axis_of, expand, name_of
from tfblock_cli.spec.norm_placement import (
    LNS,
    Branch,
    DeepNorm,
    Function,
    MixLN,
    NoPlacement,
    NormPlacement,
    Parallel,
    Placement,
    Post,
    Pre,
    Reordered,
    Sandwich,
)
from tfblock_cli.spec.size import Role

X = 4.0


def f(x: float) -> float:
    return x + 10


def norm(x: float) -> float:
    return x / 2


def sublayer(placement: Placement, l: int = 1, L: int = 1) -> float:  # noqa: E741
    """One sub-layer on the float."""
    value = placement.sublayer(X, f, (norm,) * len(placement.sublayer_norms), l, L)
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize(
    ("placement", "l", "L", "expected"),
    [
        (Pre(), 1, 1, 16.0),
        (Post(), 1, 1, 9.0),
        (Sandwich(), 1, 1, 10.0),
        (Reordered(), 1, 1, 11.0),
        (LNS(), 1, 9, 16.0),
        (LNS(), 4, 9, 15.0),
        (DeepNorm(), 1, 1, 9.378414230005442),
        (DeepNorm(), 1, 8, 11.0),
        (MixLN(), 1, 4, 9.0),
        (MixLN(), 2, 4, 16.0),
        (MixLN(), 2, 8, 9.0),
        (MixLN(), 3, 11, 16.0),
        (NoPlacement(), 1, 1, 18.0),
    ],
)
def test_the_float_table(placement, l, L, expected):  # noqa: E741
    assert sublayer(placement, l, L) == pytest.approx(expected, rel=1e-14)


class TakenAfterTheNorm(Placement):
    """N(x) + f(N(x)): the residual branches off behind the norm, a bug that libraries have shipped."""

    kind: str = "bug"
    formula = "N(x) + f(N(x))"

    def sublayer(self, x: Any, f: Any, norms: Any, l: int, L: int) -> Any:  # noqa: E741
        (norm,) = norms
        return norm(x) + f(norm(x))


def test_the_well_known_bug_gives_14_and_is_none_of_them():
    assert sublayer(TakenAfterTheNorm()) == 14.0
    every = [sublayer(kind.model_validate({}), 1, 4) for kind in kinds() if kind is not Parallel]
    assert 14.0 not in every


def kinds() -> tuple[type[Placement], ...]:
    found, _ = axis_of(NormPlacement)
    assert all(issubclass(kind, Placement) for kind in found)
    return found  # type: ignore[return-value]


def block(placement: Placement, attention=f, ffn=lambda x: 3 * x - 1, l: int = 1, L: int = 4):  # noqa: E741
    """A whole block on the float, its norms counted and its sums noted."""
    calls: list[str] = []
    sums: list[float] = []

    def counted(name: str) -> Function:
        def visit(x):
            calls.append(name)
            return norm(x)

        return visit

    def noted(x):
        sums.append(x)
        return x

    names = placement.norm_names()
    norms = {name: counted(name) for name in (*names[0], *names[1])}
    first, second = (
        Branch(f=part, norms=tuple(norms[name] for name in own), out=noted)
        for part, own in zip((attention, ffn), names, strict=True)
    )
    return placement.block(X, first, second, l, L), calls, sums


def test_parallel_adds_both_branches_to_the_same_stream():
    """4 + (2 + 10) + (3 · 2 - 1) = 21; one after the other would be 39."""
    shared, calls, sums = block(Parallel())
    assert (shared, calls, sums) == (21.0, ["shared"], [21.0])
    own, calls, sums = block(Parallel(shared_norm=False))
    assert (own, calls, sums) == (21.0, ["attention", "ffn"], [21.0])
    assert block(Pre())[0] == 39.0


@pytest.mark.parametrize("kind", kinds(), ids=name_of)
def test_a_block_is_the_formula_twice_and_every_norm_runs_once(kind):
    placement = kind()
    value, calls, sums = block(placement)
    names = placement.norm_names()
    assert sorted(calls) == sorted({*names[0], *names[1]})
    assert sums[-1] == value
    if kind is not Parallel:
        norms = (norm,) * len(placement.sublayer_norms)
        middle = placement.sublayer(X, f, norms, 1, 4)
        assert sums == [middle, placement.sublayer(middle, lambda x: 3 * x - 1, norms, 1, 4)]


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind is not Parallel], ids=name_of)
def test_a_final_norm_is_wanted_exactly_where_the_stream_leaves_the_last_block_unnormalized(kind):
    """Where a norm is the last thing that happened, a larger f comes out as much smaller as the norm makes it."""
    placement = kind()
    shrinking = (lambda x: 0.0,) * len(placement.sublayer_norms)  # a norm that wipes out what goes into it
    left = placement.sublayer(X, f, shrinking, 4, 4)
    assert placement.final_norm == (left != 0)


def test_names_of_norms():
    assert Pre().norm_names() == (("attention",), ("ffn",))
    assert Sandwich().norm_names() == (("attention_in", "attention_out"), ("ffn_in", "ffn_out"))
    assert Parallel().norm_names() == (("shared",), ("shared",))
    assert Parallel(shared_norm=False).norm_names() == (("attention",), ("ffn",))
    assert NoPlacement().norm_names() == ((), ())


def test_gains():
    roles: tuple[Role, ...] = get_args(Role)
    scaled = {role for role in roles if DeepNorm().gain(role, 2) != 1}
    assert scaled == {"v", "out", "up", "gate", "down"}
    assert DeepNorm().gain("v", 2) == 0.5  # (8 · 2)^(-1/4)
    assert all(kind.model_validate({}).gain(role, 2) == 1 for kind in kinds() if kind is not DeepNorm for role in roles)


@pytest.mark.parametrize(("alias", "kind"), [("peri", "sandwich"), ("olmo2", "reordered")])
def test_other_names(alias, kind):
    assert expand(NormPlacement, alias) == {"kind": kind}
