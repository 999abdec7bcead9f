"""Every placement's formula on plain floats, with an f that does not commute with the norm.

f(x) = x + 10 and N(x) = x / 2 at x = 4. With a linear f such as 10 x, pre and reordered would give the same number,
and the test could not tell them apart.
"""

from typing import Any, get_args

import pytest

from tfblock_cli.spec.base import axis_of, expand, name_of
from tfblock_cli.spec.norm_placement import (
    B2T,
    LNS,
    Branch,
    DeepNorm,
    Function,
    LayerScale,
    MixLN,
    NoPlacement,
    NormPlacement,
    Parallel,
    Placement,
    Post,
    Pre,
    Reordered,
    Sandwich,
    SubLN,
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
        (SubLN(), 1, 1, 16.0),
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
    every = [sublayer(kind.model_validate({}), 1, 4) for kind in kinds() if has_sublayers(kind)]
    assert 14.0 not in every


def kinds() -> tuple[type[Placement], ...]:
    found, _ = axis_of(NormPlacement)
    assert all(issubclass(kind, Placement) for kind in found)
    return found  # type: ignore[return-value]


def has_sublayers(kind: type[Placement]) -> bool:
    """Whether its block is one formula applied to attention and then to the FFN."""
    return kind.block is Placement.block


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
        Branch(f=part, norms=tuple(norms[name] for name in own), out=noted, scale=lambda x: 5 * x)
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
    if has_sublayers(kind):
        norms = (norm,) * len(placement.sublayer_norms)
        middle = placement.sublayer(X, f, norms, 1, 4)
        assert sums == [middle, placement.sublayer(middle, lambda x: 3 * x - 1, norms, 1, 4)]


@pytest.mark.parametrize("kind", [kind for kind in kinds() if has_sublayers(kind)], ids=name_of)
def test_a_final_norm_is_wanted_exactly_where_the_stream_leaves_the_last_block_unnormalized(kind):
    """Where a norm is the last thing that happened, a larger f comes out as much smaller as the norm makes it."""
    placement = kind()
    shrinking = (lambda x: 0.0,) * len(placement.sublayer_norms)  # a norm that wipes out what goes into it
    left = placement.sublayer(X, f, shrinking, 4, 4)
    assert placement.final_norm == (left != 0)


def test_b2t_adds_the_blocks_input_before_the_last_norm():
    """a = (4 + 14) / 2 = 9, then (9 + 26 + 4) / 2; without the skip it would be 17.5, the value of post."""
    assert block(B2T())[0] == 19.5
    assert block(Post())[0] == 17.5
    assert block(B2T())[2] == [9.0, 19.5]


def test_layerscale_scales_the_branch_and_not_the_stream():
    """The vector of the test is 5: 4 + 5 · 12 = 64, then 64 + 5 · (3 · 32 - 1) = 539."""
    assert block(LayerScale())[2] == [64.0, 539.0]
    assert LayerScale(initial=0.25).initial_scale == 0.25
    assert Pre().initial_scale is None


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
    assert {role for role in roles if SubLN().gain(role, 2) != 1} == scaled
    assert SubLN().gain("v", 2) == pytest.approx(1.177410022515475, rel=1e-14)  # sqrt(ln 4)
    others = [kind.model_validate({}) for kind in kinds() if kind not in (DeepNorm, SubLN)]
    assert all(placement.gain(role, 2) == 1 for placement in others for role in roles)


def test_which_placements_norm_what_a_branch_puts_out():
    """The norm sees f(x) and nothing else: a stream that is left out of its input does not change what comes out."""
    seen = {}
    for kind in kinds():
        inputs: list[float] = []
        placement = kind.model_validate({})
        names = placement.norm_names()
        note = [lambda x, inputs=inputs: inputs.append(x) or x / 2] * 2
        branches = [Branch(f=lambda x: -7.0, norms=tuple(note[: len(own)]), out=lambda x: x) for own in names]
        placement.block(X, branches[0], branches[1], 4, 4)
        seen[kind] = -7.0 in inputs
    assert {kind for kind, normed in seen.items() if normed} == {Sandwich, Reordered}
    assert {kind for kind in kinds() if kind.norms_the_branch} == {Sandwich, Reordered}


@pytest.mark.parametrize(("alias", "kind"), [("peri", "sandwich"), ("olmo2", "reordered")])
def test_other_names(alias, kind):
    assert expand(NormPlacement, alias) == {"kind": kind}
