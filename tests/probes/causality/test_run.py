"""``run`` on experiments: verdicts, rows, costs, and what is said not to be proven."""

import weakref
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor, nn

from tests.probes.causality.asking import attention, findings, row
from tests.probes.models import experiment as any_experiment
from tests.strategies import experiments
from tfblock_cli.errors import BadInput
from tfblock_cli.probes.causality import run
from tfblock_cli.probes.causality.check import check
from tfblock_cli.probes.causality.weights import redraw
from tfblock_cli.probes.causality.zoo.parts import Net
from tfblock_cli.probes.subject import Subject, from_experiment
from tfblock_cli.results.causality import CausalityData
from tfblock_cli.results.result import Result, to_json
from tfblock_cli.spec.attention import Attention
from tfblock_cli.spec.base import axis_of, name_of, names
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.norm_placement import NormPlacement
from tfblock_cli.spec.position import Position

LONGEST = 6
"""The small length of these experiments: their models take no more."""


def experiment(model: dict[str, Any] | None = None, **keys: Any) -> Experiment:
    """T = 5, and a model that takes 6 tokens at most."""
    return any_experiment({"max_seq_len": LONGEST} | (model or {}), **keys)


UNMASKED = {"attention": {"n_heads": 2, "pattern": "bidirectional"}}
SHORT: dict[str, Any] = {"max_seq_len": 4}
"""For many models: every cut of 4 tokens, and no ladder."""


def short(model: dict[str, Any], **keys: Any) -> Experiment:
    """T = 4, and a model that takes no more."""
    return any_experiment(SHORT | model, input={"batch_size": 2, "seq_len": 4}, **keys)


@pytest.fixture(scope="module")
def sound() -> Result[CausalityData]:
    """A result that several tests look at."""
    return run(experiment(dtype="float32"))


@pytest.fixture(scope="module")
def unmasked() -> Result[CausalityData]:
    """The same without a mask."""
    return run(experiment(UNMASKED, dtype="float32"))


@pytest.mark.parametrize("placement", [name_of(kind) for kind in axis_of(NormPlacement)[0]])
def test_every_placement_is_causal_and_its_maskless_twin_is_not(placement):
    """The attention is the same in all of them, so that one kernel will do."""
    model = {"norm_placement": placement, "n_layers": 4 if placement == "mixln" else 2}
    subject = from_experiment(short(model))
    redraw(subject.module, seed=0)
    data = check([subject], seq_len=4)
    assert {found.verdict for found in data.probes} == {"clean"}
    twin = from_experiment(short(model | UNMASKED))
    unmasked = check([twin], seq_len=4, only={"suffix_cuts"})
    assert {found.verdict for found in unmasked.probes if found.name == "suffix_cuts"} == {"LEAK"}


def test_a_missing_mask_leaks_in_every_mode_under_both_kernels(unmasked):
    assert unmasked.verdict == "fail"
    modes = {f"{mode} {kernel}" for mode in ("eval", "eval, grad", "train") for kernel in ("sdpa", "eager")}
    assert {leak.mode for leak in unmasked.data.leaks} == modes


@pytest.mark.parametrize("position", names(Position))
@pytest.mark.parametrize(("n_kv_heads", "vocab_size"), [(1, 0), (2, 11), (4, 0)])
def test_heads_positions_and_inputs(position, n_kv_heads, vocab_size):
    attention = {"n_heads": 4, "n_kv_heads": n_kv_heads}
    model = {"position": position, "attention": attention, "vocab_size": vocab_size}
    assert run(short(model)).verdict == "pass"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_exactness_holds_in_the_own_dtype_too(dtype):
    result = run(short({}, dtype=dtype))
    assert result.verdict == "pass"
    assert {found.dtype for found in result.data.probes} == {"float64", dtype}
    leaky = check([from_experiment(short(UNMASKED, dtype=dtype))], seq_len=4, only={"suffix_cuts"})
    assert {found.dtype for found in leaky.probes} == {"float64", dtype}
    assert {leak.in_ for leak in leaky.leaks} == {1}
    assert all(found.verdict == "LEAK" for found in leaky.probes if found.name == "suffix_cuts")


def test_the_leak_is_named(unmasked):
    leak = unmasked.data.leaks[0]
    assert (leak.out, leak.in_, leak.stage, leak.shape) == (0, 1, "blocks.0.attention", "full upper triangle")
    assert (leak.cuts, leak.cuts_total) == (LONGEST - 1, LONGEST - 1)


def test_one_layer_of_three():
    """An override makes layer 1 see everything; the stage says which one it is."""
    overrides = [{"at": [1], "attention": {"pattern": "bidirectional"}}]
    result = run(short({"n_layers": 3, "layers": overrides}))
    assert result.verdict == "fail"
    assert {leak.stage for leak in result.data.leaks} == {"blocks.1.attention"}


class OffByOne(Attention):
    """Stands in for a pattern of ours: one key too many."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query + 1


def test_a_decoder_of_ours_with_a_wrong_mask():
    subject = from_experiment(experiment({"n_layers": 2}, kernel="eager"))
    subject.module.get_submodule("blocks.1.attention").pattern = OffByOne(  # type: ignore[assignment]
        n_heads=1, n_kv_heads=1, d_head=1, bias=False, out_bias=False
    )
    leaks = check([subject], seq_len=6).leaks
    assert {(leak.out, leak.in_, leak.stage) for leak in leaks} == {(0, 1, "blocks.1.attention")}
    assert {leak.probe: leak.shape for leak in leaks} == {
        **dict.fromkeys(("suffix_cuts", "gradient_map", "truncation", "mask_readout"), "next token"),
        "incremental": "ahead without a cache",  # in pieces the key ahead is not there yet
    }


def test_every_row_is_a_check(unmasked):
    judged = [found for found in unmasked.data.probes if found.verdict != "skipped"]
    assert [claim.name for claim in unmasked.checks] == [found.name for found in judged]
    for claim, found in zip(unmasked.checks, judged, strict=True):
        assert claim.passed == (found.verdict == "clean")
        assert claim.value == found.worst
    assert {claim.name for claim in unmasked.checks if not claim.passed} == {
        "suffix_cuts",
        "gradient_map",
        "truncation",
        "mask_readout",
    }


def test_a_leak_outranks_what_cannot_be_judged():
    """float16 overflows here, and a missing mask is seen in float64 all the same."""
    weights = {"initialization": {"kind": "normal", "std": 60.0}, "norm_placement": "none", "final_norm": False}
    as_they_are = {"weights": "as-is"}
    sound = run(experiment(weights, dtype="float16", causality=as_they_are))
    assert sound.verdict == "inconclusive"
    assert row(sound.data, "suffix_cuts").verdict == "clean"
    assert run(experiment(weights | UNMASKED, dtype="float16", causality=as_they_are)).verdict == "fail"


def test_one_token_is_no_proof():
    result = run(experiment(input={"seq_len": 1}))
    assert result.verdict == "inconclusive"
    assert any("no future" in check.message for check in result.checks)


@pytest.mark.parametrize("seq_len", [2, 3])
def test_short_sequences_are_judged(seq_len):
    model = {"max_seq_len": seq_len}
    assert run(any_experiment(model, input={"seq_len": seq_len})).verdict == "pass"
    assert run(any_experiment(model | UNMASKED, input={"seq_len": seq_len})).verdict == "fail"


def test_a_vocabulary_of_one_word_is_no_proof():
    result = run(experiment({"vocab_size": 1}))
    assert result.verdict == "inconclusive"
    assert "one word" in result.checks[0].message


def test_the_device_meta_is_refused():
    with pytest.raises(BadInput, match="meta"):
        run(experiment(device="meta"))


def test_what_is_not_proven_names_what_was_run():
    data = run(experiment(dtype="bfloat16", kernel="eager", seed=3)).data
    said = "; ".join(data.not_proven)
    for word in ("seed 3", "T = 6 and 5", "float64, bfloat16", "eager, sdpa", "cpu"):
        assert word in said


def test_the_modes_and_the_order(sound):
    own = ("mask_readout", "head_groups", "padding", "rope_shift")
    expected = [
        ("eval sdpa", "float64", 6, ("preflight", "batch_independence", "suffix_cuts")),
        ("eval, grad sdpa", "float64", 6, ("gradient_map",)),
        ("eval sdpa", "float64", 6, ("truncation", "incremental", *own)),
        ("eval, grad sdpa", "float64", 6, ("suffix_cuts",)),
        ("train sdpa", "float64", 6, ("preflight", "batch_independence", "suffix_cuts")),
        ("eval eager", "float64", 6, ("preflight", "batch_independence", "suffix_cuts", "incremental", *own)),
        ("eval, grad eager", "float64", 6, ("suffix_cuts",)),
        ("train eager", "float64", 6, ("preflight", "batch_independence", "suffix_cuts")),
        ("eval sdpa", "float32", 6, ("preflight", "suffix_cuts", "truncation", "incremental")),
        ("eval sdpa", "float64", 5, ("preflight", "suffix_cuts", "truncation")),
        ("eval sdpa", "float32", 5, ("preflight", "suffix_cuts", "truncation")),
    ]
    assert [(found.mode, found.dtype, found.seq_len, found.name) for found in sound.data.probes] == [
        (mode, dtype, T, name) for mode, dtype, T, names in expected for name in names
    ]


@pytest.mark.parametrize("T", [5, 9, 40])
def test_costs_are_what_the_protocol_says(T):
    """Of a subject of which nothing is known but that it can be called."""
    data = findings(Net(attention()), seq_len=T)
    assert (row(data, "suffix_cuts").forwards, row(data, "suffix_cuts").cuts_tried) == (1 + 2 * (T - 1), T - 1)
    assert (row(data, "gradient_map").forwards, row(data, "gradient_map").vjps) == (1, T)
    assert row(data, "truncation").forwards == T
    assert row(data, "preflight").forwards == row(data, "batch_independence").forwards == 4
    assert row(data, "incremental").verdict == "skipped"


@pytest.mark.parametrize("budget", [10, 20, 64])
def test_a_ladder_at_the_own_length_keeps_its_budget(budget):
    data = check([Subject(module=Net(attention()), d_model=8)], seq_len=200, small=5, budget=budget)
    small, own = ([found for found in data.probes if (found.seq_len == 200) == is_own] for is_own in (False, True))
    assert {found.dtype for found in own} == {"float64", "float32"}
    assert all(found.pairs_covered == 1 for found in small if found.cuts_tried)
    own = own[:3]
    assert [found.name for found in own] == ["preflight", "suffix_cuts", "truncation"]
    assert sum(found.forwards for found in own) <= budget
    assert sum(found.forwards for found in own) >= budget - 3
    assert 0 < own[1].pairs_covered < 1


def test_the_influence_is_the_gradient_map_of_the_first_mode(sound):
    influence = sound.data.influence
    assert len(influence) == len(influence[0]) == LONGEST
    assert all((influence[i][j] > 0) == (j <= i) for i in range(LONGEST) for j in range(LONGEST))


def test_dropout_is_off_in_train_mode():
    assert run(short({"dropout": 0.5})).verdict == "pass"


def test_two_runs_are_equal(unmasked):
    assert to_json(run(experiment(UNMASKED, dtype="float32"))) == to_json(unmasked)


class NoDouble(Net):
    """As on a device that has no float64."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise RuntimeError("no kernel for Double")
        return super().forward(x)


def test_without_float64_all_runs_in_float32_and_says_so():
    data = findings(NoDouble(attention()))
    assert {(found.verdict, found.dtype) for found in data.probes if found.verdict != "skipped"} == {
        ("clean", "float32")
    }
    assert "float64 cannot be used here (no kernel for Double)" in data.probes[0].message
    assert "float32" in "; ".join(data.not_proven)
    leaky = findings(NoDouble(attention(lambda h, q, k: k <= q + 1)))
    assert {leak.probe for leak in leaky.leaks} == {"suffix_cuts", "gradient_map", "truncation"}


class Counting(nn.Module):
    """A model that knows how many of its outputs are still held when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(attention())
        self.held: list[weakref.ref[Tensor]] = []
        self.most = 0

    def forward(self, x: Tensor) -> Tensor:
        self.most = max(self.most, sum(output() is not None for output in self.held))
        y: Tensor = self.net(x)
        self.held.append(weakref.ref(y.untyped_storage()))  # type: ignore[arg-type]
        return y


@pytest.mark.parametrize("T", [8, 32])
def test_memory_does_not_grow_with_the_number_of_cuts(T):
    model = Counting()
    findings(model, seq_len=T)
    assert len(model.held) > 3 * T
    assert model.most <= 4


class Listener:
    """Progress that adds up."""

    def __init__(self) -> None:
        self.total = self.done = 0
        self.descriptions: list[str] = []

    def start(self, description: str, total: int) -> None:
        self.descriptions.append(description)
        self.total += total

    def advance(self, n: int = 1) -> None:
        self.done += n

    def stop(self) -> None:
        self.descriptions.append("")


def test_progress_reaches_its_end():
    listener = Listener()
    run(short({}), progress=listener)
    assert listener.done == listener.total > 0
    assert listener.descriptions[-1] == ""
    assert "gradient map, eval, grad sdpa" in listener.descriptions


def with_pattern(asked: Experiment, pattern: str) -> Experiment:
    """The same with one pattern in every layer, for 4 tokens at most."""
    table = asked.model_dump()
    table["model"] |= {"layers": (), **SHORT}
    table["model"]["attention"]["pattern"] = {"kind": pattern}
    table["input"]["seq_len"] = 4
    return Experiment.model_validate(table)


@settings(max_examples=3)
@given(experiments(overrides=False))
def test_any_causal_model_passes_and_its_maskless_twin_fails(asked):
    assume(asked.model.d_model > 2)
    causal = run(with_pattern(asked, "causal"))
    assert causal.verdict == "pass", [found for found in causal.data.probes if found.verdict != "clean"]
    unmasked = check([from_experiment(with_pattern(asked, "bidirectional"))], seq_len=4, only={"suffix_cuts"})
    assert "LEAK" in {found.verdict for found in unmasked.probes}
