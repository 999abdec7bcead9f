"""Anybody's module: found, made, asked once, and told in one sentence where that fails."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfblock_cli.errors import BadInput
from tfblock_cli.probes import causality, factory
from tfblock_cli.probes.output import reader
from tfblock_cli.probes.subject import Subject
from tfblock_cli.probes.target import expect_weights, from_target, kind_of, narrowest, of_module, tried
from tfblock_cli.spec.target import TargetExperiment, TargetSpec

V, D = 50, 8

SOURCE = """\
import torch
from torch import nn

class Mean(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.linear = nn.Linear(d, d)
    def forward(self, x):
        n = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)
        return self.linear(x).cumsum(1) / n[:, None]

class Nested:
    @staticmethod
    def build():
        return Mean()

def make(d=8): return Mean(d)
def none(): return None
def raising(): raise RuntimeError("\\n  the disk is full\\n  and more")
def leaving(): raise SystemExit(3)
def on_meta():
    with torch.device("meta"):
        return Mean()
def lazy(): return nn.LazyLinear(8)
ready = Mean()
number = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with a module ``net``, one that fails, and a package; none of them stays imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "script.py").write_text("raise SystemExit('usage: script FILE')\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "inner.py").write_text("from net import make\n")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def target(name: str, **keys: Any) -> TargetSpec:
    return TargetSpec.model_validate({"factory": name, "d_model": D, **keys})


def experiment(name: str, seq_len: int = 5, **keys: Any) -> TargetExperiment:
    table = {"target": {"factory": name, "d_model": D, **keys}, "input": {"seq_len": seq_len}}
    return TargetExperiment.model_validate(table)


def complaint(function: Any, *arguments: Any, **keys: Any) -> str:
    with pytest.raises(BadInput) as caught:
        function(*arguments, **keys)
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize("name", ["net:make", "net:Mean", "net:Nested.build", "pkg.inner:make"])
def test_a_function_a_class_and_what_is_inside_one(here, name):
    before = list(sys.path)
    assert type(factory.call(target(name), 0)).__name__ == "Mean"
    assert sys.path == before


def test_the_first_weights_come_from_the_seed_and_the_callers_random_state_stays(here):
    before = torch.get_rng_state()
    one, same, other = (factory.call(target("net:make"), seed).state_dict()["linear.weight"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_kwargs_reach_the_factory(here):
    module = factory.call(target("net:make", kwargs={"d": 3}), 0)
    assert module.state_dict()["linear.weight"].shape == (3, 3)


FACTORIES = {
    "nett:make": "there is no module 'nett' in the current folder or among the installed packages; did you mean net?",
    "pkg.iner:make": "there is no module 'iner' in pkg; did you mean pkg.inner?",
    "net.inner:make": "there is no module 'inner' in net",
    "net:mak": "module net has no 'mak'; did you mean make?",
    "net:nune": "module net has no 'nune'; did you mean none?",
    "net:mean": "module net has no 'mean'; did you mean Mean?",
    "net:xyz": "module net has no 'xyz'",
    "net:number.reel": "number has no 'reel'; did you mean real?",
    "net:Nested.biuld": "Nested has no 'biuld'; did you mean build?",
    "net:number": "number is a int; name a function that returns a torch.nn.Module, or the module's class",
    "net:ready": "ready is a Mean; name a function that returns a torch.nn.Module, or the module's class",
    "net:none": "none() returned None, not a torch.nn.Module",
    "net:Nested": "Nested() returned a Nested, not a torch.nn.Module",
    "net:raising": "raising() raised RuntimeError: the disk is full",
    "net:leaving": "leaving() raised SystemExit: 3",
    "broken:make": "importing broken raised ModuleNotFoundError: No module named 'nothing_of_that_name'",
    "script:make": "importing script raised SystemExit: usage: script FILE",
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_that_cannot_be_called(here, name):
    assert complaint(factory.call, target(name), 0) == f"target {name}: {FACTORIES[name]}"


@pytest.mark.parametrize(
    ("word", "there", "meant"),
    [
        ("gud", ["bad", "good"], "good"),
        ("mk", ["make", "mix"], "make"),
        ("gtp", ["torch", "gpt"], "gpt"),
        ("gpt", ["GPT", "nn"], "GPT"),
        ("goood", ["good"], "good"),
        ("net", ["decoder"], ""),
        ("make", ["take_it"], ""),
        ("x", ["y"], ""),
        ("", ["good"], ""),
    ],
)
def test_what_was_meant(word, there, meant):
    assert factory.did_you_mean(word, there) == (f"; did you mean {meant}?" if meant else "")


def test_more_factories_that_cannot_be_called(here):
    assert "importing syntax raised SyntaxError" in complaint(factory.call, target("syntax:f"), 0)
    said = complaint(factory.call, target("net:make", kwargs={"width": 2}), 0)
    assert said.startswith("target net:make: make(width=2) raised TypeError: make() got an unexpected keyword")
    for name, message in (("net:on_meta", "on the device meta"), ("net:lazy", "is lazy and has no shape yet")):
        assert message in complaint(from_target, experiment(name))


def test_weights_that_do_not_fit(here, monkeypatch):
    monkeypatch.setattr("tfblock_cli.probes.room.free_bytes", lambda device: 100)
    assert "net:make, its weights alone, needs up to" in complaint(from_target, experiment("net:make"))


TENSOR = torch.zeros(2, 5, 3)
OUTPUTS: dict[str, tuple[Any, Any]] = {
    "the tensor": ("", TENSOR),
    "logits of an object": ("", SimpleNamespace(logits=TENSOR)),
    "logits of a mapping": ("", {"loss": 1, "logits": TENSOR}),
    "the first item": ("", (TENSOR, None)),
    "a key": ("hidden", {"logits": None, "hidden": TENSOR}),
    "an attribute": ("hidden", SimpleNamespace(hidden=TENSOR)),
    "an index": (1, [None, TENSOR]),
    "an index from the command line": ("1", (None, TENSOR)),
    "an index from behind": ("-1", (None, TENSOR)),
    "a key that is a number": (1, {1: TENSOR}),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_output_is_picked(name):
    key, output = OUTPUTS[name]
    assert reader(key)(output) is TENSOR


NO_OUTPUTS: dict[str, tuple[Any, Any]] = {
    "it returns a dict, which has hidden, loss; it has no logits": ("", {"hidden": TENSOR, "loss": 1}),
    "it returns a NoneType; it has no logits": ("", None),
    "there is no 'hiden'; did you mean hidden?": ("hiden", {"hidden": TENSOR}),
    "there is no item 2 among 2": (2, (TENSOR, TENSOR)),
    "there is no 'x'": ("x", (TENSOR, TENSOR)),
    "its output is a float, not a tensor": ("", (0.5, TENSOR)),
    "output loss is a int, not a tensor": ("loss", {"loss": 1}),
}


@pytest.mark.parametrize("message", NO_OUTPUTS)
def test_an_output_that_is_not_there(message):
    key, output = NO_OUTPUTS[message]
    assert message in complaint(reader(key), output)


class Tokens(nn.Module):
    """A decoder in little: a position table that stands first, then a token table, then a causal mean."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.tokens, self.head = nn.Embedding(64, D), nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Any:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        counts = torch.arange(1, ids.shape[1] + 1, dtype=x.dtype)
        return self.head(x.cumsum(1) / counts[:, None])


class Returning(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def test_where_ids_become_vectors_is_seen():
    assert tried(of_module(Tokens(), V, 0), 7, "it").embedding == "tokens"


def test_ids_that_no_table_takes():
    subject = tried(of_module(Returning(lambda ids: F.one_hot(ids, V).double().cumsum(1)), V, 0), 7, "it")
    assert subject.embedding == ""


CALLS: dict[str, Subject] = {
    "called with ids (2, 7) below 99 it raised IndexError: index out of range in self (has it fewer ids": of_module(
        Tokens(), 99, 0
    ),
    "called with vectors (2, 7, 8) it raised RuntimeError: Expected tensor for argument": of_module(Tokens(), 0, D),
    "does it take vectors of width D (--d D)?": of_module(nn.Linear(D, D), V, 0),
    "called with vectors (2, 7, 8) it returns (7, 2, 8); the first two axes must be (2, 7), (B, T)": of_module(
        Returning(lambda x: x.transpose(0, 1)), 0, D
    ),
    "it returns (2, 8)": of_module(Returning(lambda x: x.mean(1)), 0, D),
    "it returns ()": of_module(Returning(lambda x: x.sum()), 0, D),
    "its output is int64; only real numbers can be compared": of_module(Returning(lambda x: x.argmax(-1)), 0, D),
    "it returns a dict, which has y; it has no logits": of_module(Returning(lambda x: {"y": x}), 0, D),
}


@pytest.mark.parametrize("message", CALLS)
def test_a_module_that_does_not_take_what_was_said(message):
    assert message in complaint(tried, CALLS[message], 7, "it")


def test_an_axis_of_the_same_length_does_not_pass_for_time():
    swapped = of_module(Returning(lambda x: x.transpose(0, 1)), 0, D)
    for seq_len in (2, 3):
        assert "the first two axes must be" in complaint(tried, swapped, seq_len, "it")


@pytest.mark.parametrize("inner", [torch.float32, torch.bfloat16])
def test_what_a_module_rounds_to_is_seen(inner):
    subject = of_module(Returning(lambda x: x.softmax(-1, dtype=inner).to(x.dtype)), 0, D)
    assert narrowest(subject, 5) == inner


@pytest.mark.parametrize("hidden", [float("-inf"), -1e300, -3e38])
def test_a_mask_does_not_cover_it(hidden):
    def masked(x: Tensor) -> Tensor:
        scores = (x @ x.transpose(1, 2)).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), hidden)
        return scores.float().softmax(-1).to(x.dtype) @ x

    assert narrowest(of_module(Returning(masked), 0, D), 5) == torch.float32


def test_what_it_rounds_that_is_no_content_is_not():
    angles = torch.arange(D, dtype=torch.float64)
    subject = of_module(Returning(lambda x: x * angles.float().cos().to(x.dtype)), 0, D)
    assert narrowest(subject, 5) == torch.float64
    assert narrowest(of_module(nn.Linear(D, D), 0, D), 5) == torch.float64


def test_a_module_that_is_no_float64_is_left_to_the_probes():
    assert narrowest(of_module(Returning(lambda x: x @ torch.ones(D, D)), 0, D), 5) == torch.float64


def test_what_an_example_says():
    ids = torch.zeros(1, 7, dtype=torch.long)
    assert kind_of(Tokens(), ids, vocab_size=0, d_model=0) == {"vocab_size": V}
    assert kind_of(nn.Linear(D, D), torch.zeros(1, 7, D), vocab_size=0, d_model=0) == {"d_model": D}
    assert kind_of(Tokens(), ids, vocab_size=9, d_model=0) == {"vocab_size": 9, "d_model": 0}


def test_an_example_that_says_nothing():
    ids = torch.zeros(1, 7, dtype=torch.long)
    one_hot = Returning(lambda ids: F.one_hot(ids, V).double())
    none: Any = lambda x: x  # noqa: E731
    for module, example, message in (
        (Tokens(), None, "what does it take?"),
        (Tokens(), torch.zeros(3), "an example is ids (B, T) or real vectors (B, T, D), not float32 of shape (3,)"),
        (Tokens(), ids[0], "not int64 of shape (7,)"),
        (one_hot, ids, "it looks its ids up in no nn.Embedding, so give vocab_size"),
        (Tokens(), ids + V, "called with the example it raised IndexError"),
        (none, ids, "expected a torch.nn.Module, got <function"),
    ):
        assert message in complaint(kind_of, module, example, vocab_size=0, d_model=0)


def test_a_target_is_checked_and_repeated_exactly(here):
    asked = experiment("net:make")
    one, two = causality.run_target(asked), causality.run_target(asked)
    assert one.verdict == "pass"
    assert one == two
    assert {row.seq_len for row in one.data.probes} == {5, 37}


def test_a_length_that_is_refused_is_not_tried():
    eights = Returning(lambda x: x.unflatten(1, (-1, 8)).cumsum(2).flatten(1, 2))
    result = causality.run_module(eights, experiment("in:memory", seq_len=96))
    assert {row.seq_len for row in result.data.probes} == {64, 96}
    fixed = causality.run_module(Returning(lambda x: x.view(-1, 6, D).cumsum(1)), experiment("in:memory", seq_len=6))
    assert {row.seq_len for row in fixed.data.probes} == {6}


def test_ids_without_a_table_skip_the_gradient_map_alone():
    asked = TargetExperiment.model_validate({"target": {"factory": "in:memory", "vocab_size": V}})
    result = causality.run_module(Returning(lambda ids: F.one_hot(ids, V).to(torch.float32).cumsum(1)), asked)
    assert result.verdict == "pass"
    assert [row.name for row in result.data.probes if row.verdict == "skipped"] == ["gradient_map", "incremental"]


def test_a_softmax_in_float32_is_no_leak_and_a_small_leak_beside_it_is():
    class Attention(nn.Module):
        def __init__(self, leak: float) -> None:
            super().__init__()
            self.leak, self.qkv = leak, nn.Linear(D, 3 * D)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(1, 2)).masked_fill(hidden, float("-inf"))
            context: Tensor = scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ v
            return context + self.leak * x.mean(1, keepdim=True)

    asked = experiment("in:memory", seq_len=37)
    torch.manual_seed(0)
    assert causality.run_module(Attention(0.0), asked).verdict == "pass"
    assert causality.run_module(Attention(1e-9), asked).verdict == "fail"


def test_expect_weights_has_nothing_against_numbers():
    expect_weights(Tokens(), "it")
