"""What is declared, how far it reaches, and what a declaration that the model does not keep amounts to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.probes.causality.asking import row
from tests.probes.models import experiment
from tfblock_cli.probes.causality import run
from tfblock_cli.probes.causality.check import check
from tfblock_cli.probes.causality.declared import CAUSAL, Declared, of_box, of_model, visible_TT
from tfblock_cli.probes.subject import from_experiment
from tfblock_cli.spec.attention import Bidirectional, Causal, Documents, Pattern, Prefix, SlidingWindow
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.settings import CausalitySettings, OfModel

PATTERNS: st.SearchStrategy[Pattern] = st.one_of(
    st.just(Causal()),
    st.integers(1, 6).map(lambda W: SlidingWindow(window=W)),
    st.integers(1, 6).map(lambda P: Prefix(length=P)),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(lambda n: Documents(lengths=tuple(n))),
    st.just(Bidirectional()),
)


@settings(max_examples=50)
@given(st.lists(PATTERNS, min_size=1, max_size=3), st.integers(2, 9))
def test_reach_is_what_following_every_path_gives(patterns, T):
    """Second way: walk from each output down through the layers, key by key."""
    reached = Declared(tuple(patterns)).reach_TT(T)
    for i in range(T):
        seen = {i}
        for pattern in reversed(patterns):
            seen |= {j for query in seen for j in range(T) if pattern.allows(query, j)}
        assert {j for j in range(T) if reached[i, j]} == seen


@pytest.mark.parametrize("windows", [(1,), (3,), (3, 4), (2, 5, 3)])
def test_windows_add_up(windows):
    """1 + the sum of W_l - 1."""
    declared = Declared(tuple(SlidingWindow(window=W) for W in windows))
    reach_TT, T = declared.reach_TT(20), 20
    assert declared.reach == 1 + sum(W - 1 for W in windows) == int(reach_TT[T - 1].sum())


def test_properties_and_words():
    mixed = Declared((SlidingWindow(window=3), Causal(), SlidingWindow(window=3)))
    assert mixed.words == "sliding_window(window=3) in layers 0, 2; causal in layer 1"
    assert (mixed.reach, mixed.mutual, mixed.is_causal) == (None, 1, True)
    assert Declared((Documents(lengths=(5, 7)),)).words == "documents(lengths=5,7)"
    assert Declared((Prefix(length=4), Causal())).mutual == 4
    assert Declared((Causal(), Bidirectional())).mutual is None
    assert CAUSAL.words == "causal"
    assert torch.equal(visible_TT(Causal(), 4), torch.ones(4, 4, dtype=torch.bool).tril())


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("causal", Causal()),
        ("bidirectional", Bidirectional()),
        ("window=16", SlidingWindow(window=16)),
        ("sliding_window = 16", SlidingWindow(window=16)),
        ("prefix=4", Prefix(length=4)),
        ("documents=5", Documents(lengths=(5,))),
        ("documents=5, 7", Documents(lengths=(5, 7))),
        ({"kind": "prefix", "length": 4}, Prefix(length=4)),
        ("auto", OfModel()),
    ],
)
def test_text_and_table(written, read):
    assert CausalitySettings.model_validate({"declare": written}).declare == read


@pytest.mark.parametrize("written", ["window", "window=", "window=0", "window=1.5", "future=3", "causal=1", 3])
def test_what_means_nothing_is_refused(written):
    with pytest.raises(ValueError, match="declare"):
        CausalitySettings.model_validate({"declare": written})


def asked(pattern: object, declare: object = "auto") -> Experiment:
    model = {"max_seq_len": 8, "attention": {"n_heads": 2, "pattern": pattern}}
    return experiment(model, causality={"declare": declare}, input={"seq_len": 8})


def test_left_open_it_is_what_the_layers_say_but_never_bidirectional():
    window = {"kind": "sliding_window", "window": 3}
    assert of_model(OfModel(), asked(window).model) == Declared((SlidingWindow(window=3),) * 2)
    assert of_model(OfModel(), asked("bidirectional").model) == Declared((Causal(),) * 2)
    assert of_model(Prefix(length=2), asked("causal").model) == Declared((Prefix(length=2),) * 2)
    assert of_box(OfModel()) == CAUSAL
    assert of_box(SlidingWindow(window=3)) == Declared((SlidingWindow(window=3),))


def test_of_windows_in_layers_that_are_not_known_no_more_is_asked_than_one_reaches():
    left_open = of_box(OfModel(), windows=(5, 3))
    assert left_open == Declared((Causal(),), at_least=3)
    assert torch.equal(left_open.reach_TT(9), CAUSAL.reach_TT(9))
    n = torch.arange(9)
    assert torch.equal(left_open.must_TT(9), (n[:, None] >= n) & (n[:, None] - n < 3))
    assert torch.equal(CAUSAL.must_TT(9), CAUSAL.reach_TT(9))
    assert of_box(Causal(), windows=(3,)) == CAUSAL  # what is declared is held to


@pytest.mark.parametrize(
    ("pattern", "declare", "verdict"),
    [
        ({"kind": "sliding_window", "window": 3}, "auto", "pass"),
        ({"kind": "sliding_window", "window": 3}, "causal", "fail"),  # it reaches less far than was said
        ({"kind": "sliding_window", "window": 3}, "window=4", "fail"),
        ({"kind": "sliding_window", "window": 4}, "window=3", "fail"),
        ({"kind": "prefix", "length": 4}, "auto", "pass"),
        ({"kind": "prefix", "length": 4}, "causal", "fail"),
        ({"kind": "documents", "lengths": [5, 4]}, "auto", "pass"),
        ("causal", "documents=5,4", "fail"),
        ("bidirectional", "auto", "fail"),
        ("bidirectional", "bidirectional", "pass"),
        ("causal", "bidirectional", "fail"),
    ],
)
def test_a_model_is_held_to_what_was_declared(pattern, declare, verdict):
    one = asked(pattern, declare)
    declared = of_model(one.causality.declare, one.model)
    found = {row.verdict for row in check([from_experiment(one)], declared=declared, seq_len=8).probes}
    assert bool(found & {"LEAK", "no-flow"}) == (verdict == "fail")


def test_what_lies_outside_the_window_is_named():
    data = run(asked({"kind": "sliding_window", "window": 4}, "window=3")).data
    leak = next(leak for leak in data.leaks if leak.probe == "gradient_map")
    assert (leak.out, leak.in_, leak.shape) == (5, 0, "outside the window")  # two layers of window 3 reach 5 inputs
    leak = next(leak for leak in data.leaks if leak.probe == "mask_readout")
    assert (leak.out, leak.in_, leak.stage, leak.shape) == (3, 0, "blocks.0.attention", "outside the window")
    assert row(data, "suffix_cuts").verdict == "clean"


def test_nothing_is_claimed_of_what_was_declared_to_see_everything():
    data = run(asked("bidirectional", "bidirectional")).data
    skipped = {found.name for found in data.probes if found.verdict == "skipped"}
    assert skipped == {"suffix_cuts", "truncation", "incremental", "padding"}
    assert data.declared == "bidirectional"
