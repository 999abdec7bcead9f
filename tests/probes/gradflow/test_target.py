"""Gradient norms of anybody's module: known ones, those of our own decoder, and a module that comes back unchanged."""

import json
from collections.abc import Callable
from math import hypot, inf, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.account.test_memory import peak
from tfblock_cli import api
from tfblock_cli.errors import BadInput
from tfblock_cli.loading import load
from tfblock_cli.modules.decoder import build
from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes.gradflow import run_module
from tfblock_cli.probes.gradflow.compare import variant_of
from tfblock_cli.probes.gradflow.layers import find_layers
from tfblock_cli.results.target_gradflow import TargetGradflowData
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.target import TargetExperiment

B, T, D, V = 2, 5, 4, 11


def asked(*, seed: int = 3, seeds: int = 1, loss: str = "auto", **target: Any) -> TargetExperiment:
    table = {"factory": "in:memory", **(target or {"d_model": D})}
    settings = {"seeds": seeds, "loss": loss}
    return TargetExperiment.model_validate(
        {"seed": seed, "input": {"batch_size": B, "seq_len": T}, "target": table, "gradflow": settings}
    )


def numbers(data: TargetGradflowData, seed: int = 3) -> dict[tuple[int | None, str, str], float]:
    found = {(row.layer, row.group, row.metric): row.value for row in data.rows if row.seed == seed}
    assert len(found) == sum(row.seed == seed for row in data.rows)  # nothing is told twice
    return found


class Gate(nn.Module):
    """x -> w x, with one number w."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


class Gates(nn.Module):
    def __init__(self, *values: float) -> None:
        super().__init__()
        self.gates = nn.ModuleList(map(Gate, values))

    def forward(self, x: Tensor) -> Tensor:
        for gate in self.gates:
            x = gate(x)
        return x


class Block(nn.Module):
    """A residual block that may add in place, and may return a tuple."""

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self.mix, self.in_place = nn.Linear(D, D), in_place

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        change = torch.tanh(self.mix(x.cumsum(1)))
        if self.in_place:
            x += change
            return x, None
        return x + change, None


class Net(nn.Module):
    def __init__(self, blocks: list[nn.Module], p: float = 0.0) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(V, D), nn.Dropout(p)
        self.blocks, self.norm, self.head = nn.ModuleList(blocks), nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.embed(ids))
        for block in self.blocks:
            x, _ = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def net(n: int = 3, **options: Any) -> Net:
    torch.manual_seed(0)
    return Net([Block(**options) for _ in range(n)])


def test_a_product_has_the_gradients_that_calculus_gives():
    """y = w₁ w₂ x and loss = Σ y r, so d loss / d w₁ = w₂ Σ x r, and d loss / d(w₁ x) = w₂ r."""
    w = (0.5, -3.0)
    result = run_module(Gates(*w), asked())
    x, r = (
        torch.randn((B, T, D), generator=generator(3, name), dtype=torch.float64)
        for name in ("input", "gradflow.random_projection")
    )
    r = r / sqrt(x.numel())
    slope, size = float((x * r).sum()), float(r.norm())
    rms = float(x.square().mean().sqrt())
    assert result.verdict == "pass"
    assert result.data.loss == "random_projection"
    assert numbers(result.data) == pytest.approx(
        {
            (None, "model", "loss"): w[0] * w[1] * slope,
            (None, "model", "grad_norm"): hypot(*w) * abs(slope),
            (None, "input", "grad_norm"): abs(w[0] * w[1]) * size,
            (0, "block", "grad_norm"): abs(w[1] * slope),
            (0, "w", "grad_norm"): abs(w[1] * slope),
            (0, "hidden", "grad_norm"): abs(w[1]) * size,
            (0, "residual", "rms"): abs(w[0]) * rms,
            (1, "block", "grad_norm"): abs(w[0] * slope),
            (1, "w", "grad_norm"): abs(w[0] * slope),
            (1, "hidden", "grad_norm"): size,
            (1, "residual", "rms"): abs(w[0] * w[1]) * rms,
        },
        rel=1e-12,
    )
    assert [(fact.name, fact.layer, fact.group, fact.rms, fact.count) for fact in result.data.parameters] == [
        ("gates.0.w", 0, "w", 0.5, 1),
        ("gates.1.w", 1, "w", 3.0, 1),
    ]


def test_every_parameter_has_the_gradient_that_autograd_gives_it():
    module = net()
    found = numbers(run_module(module, asked(vocab_size=V)).data)
    ids = torch.randint(V, (B, T), generator=generator(3, "input"))
    targets = torch.randint(V, (B, T), generator=generator(3, "gradflow.cross_entropy"))
    loss = F.cross_entropy(module(ids).flatten(0, 1), targets.flatten())
    norms = [float(grad.double().norm()) for grad in torch.autograd.grad(loss, [*module.parameters()])]
    wanted = dict(zip(dict(module.named_parameters()), norms, strict=True))
    assert found[None, "model", "loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    assert found[None, "embed", "grad_norm"] == pytest.approx(wanted["embed.weight"], rel=1e-6)
    assert found[None, "norm", "grad_norm"] == pytest.approx(
        hypot(wanted["norm.weight"], wanted["norm.bias"]), rel=1e-6
    )
    for layer in range(3):
        own = [found[layer, f"mix.{name}", "grad_norm"] for name in ("weight", "bias")]
        assert own == pytest.approx([wanted[f"blocks.{layer}.mix.{name}"] for name in ("weight", "bias")], rel=1e-6)
        assert found[layer, "block", "grad_norm"] == hypot(*own)
    assert found[None, "model", "grad_norm"] == pytest.approx(hypot(*wanted.values()), rel=1e-6)


DECODER = """\
[input]
batch_size = 2
seq_len = 6
[model]
d_model = 16
n_layers = 4
vocab_size = 32
bias = true
[model.attention]
n_heads = 4
n_kv_heads = 2
[gradflow]
placements = ["pre", "post", "sandwich", "deepnorm", "parallel", "mixln"]
seeds = 1
"""


@pytest.fixture
def decoder(tmp_path) -> Experiment:
    (tmp_path / "x.toml").write_text(DECODER)
    return load(tmp_path / "x.toml", sets=["seed=3"]).experiment


def test_our_own_decoder_has_the_numbers_of_the_comparison(decoder):
    compared = api.gradflow(decoder).data
    for placement in decoder.gradflow.placements:
        rows = {(r.layer, r.group, r.metric): r.value for r in compared.rows if r.placement == placement.kind}
        module = build(variant_of(decoder, placement, 4))
        target = {"factory": "in:memory", "vocab_size": 32}
        experiment = TargetExperiment.model_validate(
            {"seed": 3, "input": decoder.input.model_dump(), "target": target, "gradflow": {"seeds": 1}}
        )
        data = run_module(module, experiment).data
        found = numbers(data)
        assert (data.layers, data.layer_type, data.depth, data.loss) == ("blocks", "Block", 4, "cross_entropy")
        assert found[None, "model", "loss"] == rows[None, "model", "loss"]
        assert found[None, "embed", "grad_norm"] == rows[None, "embedding", "grad_norm"]
        for layer in range(4):
            for group, metric in (("block", "grad_norm"), ("hidden", "grad_norm"), ("residual", "rms")):
                assert found[layer, group, metric] == pytest.approx(rows[layer, group, metric], rel=1e-12), placement
            qkv = hypot(*(rows[layer, name, "grad_norm"] for name in "qkv"))
            assert found[layer, "attention.qkv.weight", "grad_norm"] == pytest.approx(qkv, rel=1e-12)
            assert found[layer, "ffn.down.weight", "grad_norm"] == pytest.approx(
                rows[layer, "down", "grad_norm"], rel=1e-12
            )


def test_the_placements_are_told_apart(decoder):
    """The negative control of the test above: the numbers of another placement are others."""
    pre, post, *_ = decoder.gradflow.placements
    loss = {row.placement: row.value for row in api.gradflow(decoder).data.rows if row.metric == "loss"}
    assert loss[pre.kind] != loss[post.kind]


def test_the_module_comes_back_unchanged():
    module = net()
    module.add_module("norm", nn.BatchNorm1d(T))  # whose statistics a pass in train mode changes
    module.train()
    module.blocks[1].eval()
    module.head.bias.requires_grad_(False)
    module.head.weight.grad = torch.ones(V, D)
    weights = {name: (p, p.detach().clone(), p.requires_grad, p.grad) for name, p in module.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    modes = {name: inner.training for name, inner in module.named_modules()}
    state = torch.random.get_rng_state()
    run_module(module, asked(vocab_size=V, seeds=2))
    for name, parameter in module.named_parameters():
        own, bits, requires_grad, gradient = weights[name]
        assert parameter is own
        assert torch.equal(parameter, bits)
        assert parameter.requires_grad == requires_grad
        assert parameter.grad is gradient
    assert torch.equal(module.head.weight.grad, torch.ones(V, D))
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in module.named_buffers())
    assert {name: inner.training for name, inner in module.named_modules()} == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(inner._forward_hooks or inner._forward_pre_hooks for inner in module.modules())


def test_it_comes_back_unchanged_from_a_failure_too():
    class Failing(Net):
        def forward(self, ids: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                raise RuntimeError("no such kernel")
            return super().forward(ids)

    module = Failing([Block()]).train()
    with pytest.raises(BadInput, match="forward and backward it raised RuntimeError: no such kernel"):
        run_module(module, asked(vocab_size=V))
    assert module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not any(inner._forward_hooks for inner in module.modules())


def test_frozen_weights_are_measured_as_any_other():
    open_, frozen = net(), net()
    frozen.requires_grad_(False)
    experiment = asked(vocab_size=V)
    assert run_module(open_, experiment).data == run_module(frozen, experiment).data


def test_a_seed_is_an_input_and_nothing_else():
    module = net()
    both, second = (run_module(module, asked(vocab_size=V, seed=s, seeds=n)).data for s, n in ((3, 2), (4, 1)))
    assert both.seeds == (3, 4)
    assert numbers(both, 4) == numbers(second, 4)
    assert numbers(both, 3) != numbers(both, 4)
    assert (both.forwards, both.vjps) == (2, 2)


def test_dropout_is_off_and_told():
    with_dropout, without = net(), net()
    with_dropout.drop.p = 0.5
    loud, quiet = (run_module(module.train(), asked(vocab_size=V)) for module in (with_dropout, without))
    assert loud.data == quiet.data
    assert loud.warnings == ("it has dropout, which is noise where an effect should stand; it was switched off",)
    assert quiet.warnings == ()


def test_what_the_next_layer_adds_in_place_is_not_seen():
    plain, in_place = (run_module(net(in_place=flag), asked(vocab_size=V)).data for flag in (False, True))
    assert numbers(in_place) == pytest.approx(numbers(plain), rel=1e-6)


def test_a_parameter_without_any_gradient_is_named():
    module = net()
    module.unused = nn.Linear(D, D)
    result = run_module(module, asked(vocab_size=V))
    assert result.verdict == "pass"
    assert result.warnings == ("no gradient reaches unused.weight, unused.bias",)
    assert [fact.name for fact in result.data.parameters if fact.dead] == ["unused.weight", "unused.bias"]


def test_many_of_them_are_counted():
    module = net()
    module.unused = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
    (warning,) = run_module(module, asked(vocab_size=V)).warnings
    assert warning.endswith("unused.2.weight and 3 more")


def test_layers_with_the_same_weights_are_told():
    module = net()
    module.blocks[2].load_state_dict(module.blocks[0].state_dict())
    (warning,) = run_module(module, asked(vocab_size=V)).warnings
    assert warning == "layers have identical weights, so their gradients add up in step (blocks)"


def test_a_layer_that_stands_in_the_list_twice_is_met_place_by_place():
    shared = Gate(2.0)
    module = Gates(1.0)
    module.gates = nn.ModuleList([shared, Gate(3.0), shared])
    found = numbers(run_module(module, asked()).data)
    rms = [found[layer, "residual", "rms"] for layer in range(3)]
    hidden = [found[layer, "hidden", "grad_norm"] for layer in range(3)]
    assert rms[1] / rms[0] == pytest.approx(3)
    assert rms[2] / rms[1] == pytest.approx(2)
    assert hidden[0] / hidden[1] == pytest.approx(3)
    assert hidden[1] / hidden[2] == pytest.approx(2)
    assert found[2, "block", "grad_norm"] == 0  # its weight is counted where it stands first


def test_a_layer_that_is_called_more_often_is_seen_at_its_last_call():
    class Thrice(Gates):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(super().forward(super().forward(x)))

    found = numbers(run_module(Thrice(2.0), asked()).data)
    straight = numbers(run_module(Gates(2.0, 2.0, 2.0), asked()).data)
    assert found[0, "residual", "rms"] == straight[2, "residual", "rms"]
    assert found[0, "hidden", "grad_norm"] == straight[2, "hidden", "grad_norm"]


def test_sparse_gradients_count_as_dense_ones():
    dense, sparse = net(), net()
    sparse.embed.sparse = True
    one, other = (numbers(run_module(module, asked(vocab_size=V)).data) for module in (dense, sparse))
    assert one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize("value", [inf, -inf, float("nan")])
def test_without_finite_numbers_there_is_no_answer(value):
    module = Gates(1.0, value)
    result = run_module(module, asked())
    assert result.verdict == "inconclusive"
    assert [(check.name, check.passed) for check in result.checks] == [("guard.non_finite_gradients", None)]
    assert "(seed 3)" in result.checks[0].message


def test_a_module_that_lets_no_gradient_through_is_refused():
    class Detached(Net):
        @torch.no_grad()
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids)

    with pytest.raises(BadInput, match=r"Detached: its output has no gradient: does it run under torch\.no_grad"):
        run_module(Detached([Block()]), asked(vocab_size=V))


class Asked(Exception):  # noqa: N818
    """Stands in for the refusal: with what memory was asked for, and the words."""


def room_asked(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> tuple[int, str]:
    def ask(need: int, device: str, what: str, helps: str) -> None:
        raise Asked(need, what)

    with monkeypatch.context() as patch:
        for name in ("target", "gradflow.target"):
            patch.setattr(f"tfblock_cli.probes.{name}.require", ask)
        with pytest.raises(Asked) as told:
            call()
    need, what = told.value.args
    return need, what


def stack(dtype: torch.dtype = torch.float32, frozen: bool = False) -> nn.Module:
    """Nearly all of it is weights."""
    return nn.Sequential(*(nn.Linear(300, 300, dtype=dtype) for _ in range(4))).requires_grad_(not frozen)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_memory_is_asked_for_the_gradients_too_and_that_is_what_is_used(monkeypatch, dtype, frozen):
    module, experiment = stack(dtype, frozen), asked(d_model=300)
    need, what = room_asked(monkeypatch, lambda: run_module(module, experiment))
    assert what == "Sequential, a copy that is run, and its gradients,"
    weights = sum(weight.nbytes for weight in module.parameters())
    assert need == pytest.approx(peak(lambda: run_module(module, experiment)), rel=0.02)  # the rest is the input's part
    assert need >= 2 * weights

    made = asked(d_model=300, factory="tests.probes.gradflow.test_target:stack")
    whole, what = room_asked(monkeypatch, lambda: api.gradflow(made))
    assert what.startswith("the target tests.probes.gradflow.test_target:stack, its weights, a copy that is run, and")
    if dtype == torch.float32:
        assert whole == need + weights


def test_gradients_that_do_not_fit_are_refused(monkeypatch):
    module, weights = stack(), sum(weight.nbytes for weight in stack().parameters())
    monkeypatch.setattr("tfblock_cli.probes.room.free_bytes", lambda device: 2 * weights)  # all but the gradients fit
    with pytest.raises(BadInput, match=r"Sequential, a copy that is run, and its gradients, needs up to"):
        run_module(module, asked(d_model=300))
    monkeypatch.setattr("tfblock_cli.probes.room.free_bytes", lambda device: 4 * weights)
    assert run_module(module, asked(d_model=300)).verdict == "pass"


def test_the_device_meta_is_refused():
    with pytest.raises(BadInput, match="no numbers on the device meta"):
        api.gradflow(asked().model_copy(update={"device": "meta"}))


class Features(Net):
    """Ids in, features out: no prediction of ids."""

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.embed(ids)
        return vectors


@pytest.mark.parametrize(
    ("module", "loss", "taken"),
    [
        (net(), "auto", "cross_entropy"),
        (net(), "mean_squared_error", "mean_squared_error"),
        (net(), "random_projection", "random_projection"),
        (Features([Block()]), "auto", "random_projection"),
    ],
)
def test_the_loss(module, loss, taken):
    assert run_module(module, asked(vocab_size=V, loss=loss)).data.loss == taken


def test_a_cross_entropy_needs_logits():
    class Score(Net):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids).sum(-1)

    with pytest.raises(BadInput, match=r"cross_entropy needs an output \(B, T, V\), not \(2, 5\)"):
        run_module(Score([Block()]), asked(vocab_size=V, loss="cross_entropy"))


def linears(n: int, width: int = D) -> list[nn.Module]:
    return [nn.Linear(width, width) for _ in range(n)]


class With(nn.Module):
    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


@pytest.mark.parametrize(
    ("module", "path", "depth"),
    [
        (net(5), "blocks", 5),
        (With(a=nn.ModuleList(linears(2)), b=nn.Sequential(*linears(3))), "b", 3),
        (With(layers=nn.ModuleList(With(experts=nn.ModuleList(linears(9))) for _ in range(3))), "layers", 3),
        (With(a=nn.ModuleList(linears(1, 50)), b=nn.ModuleList(linears(2))), "b", 2),
        (With(a=nn.ModuleList(linears(1))), "a", 1),
        (nn.Sequential(*linears(4)), "", 4),
        (nn.Sequential(nn.Linear(D, D), nn.ReLU()), "", 0),
        (With(a=nn.Sequential(nn.ReLU(), nn.ReLU()), b=nn.Linear(D, D)), "", 0),
    ],
    ids=["blocks", "the larger", "not the experts", "two before one", "one", "itself", "mixed", "without weights"],
)
def test_where_the_layers_are(module, path, depth):
    layers = find_layers(module)
    assert (layers.path, len(layers.modules)) == (path, depth)
    names = [name for name, _ in module.named_parameters()]
    places = [layers.place(name) for name in names]
    assert len(set(places)) == len(places) or None in dict(places)  # no two of a layer share a name
    for name, (layer, group) in zip(names, places, strict=True):
        if layer is not None:
            assert name == ".".join(filter(None, (path, layers.names[layer], group)))


def test_a_parameter_named_as_a_whole_goes_by_its_full_name():
    module = Gates(1.0, 2.0)
    for gate in module.gates:
        gate.hidden = nn.Parameter(torch.ones(3))
    module.model = nn.Linear(D, D)
    found = numbers(run_module(module, asked()).data)
    assert found[0, "gates.0.hidden", "grad_norm"] == 0
    assert found[None, "model.weight", "grad_norm"] == 0


def test_a_module_without_layers_is_told_module_by_module():
    data = run_module(nn.Sequential(nn.Linear(D, D), nn.ReLU()), asked()).data
    assert (data.layers, data.depth) == ("", 0)
    assert {row.group for row in data.rows} == {"model", "input", "0"}


CONFIGS = sorted((Path(__file__).parents[2] / "data" / "transformers").glob("*/config.json"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.parent.name)
def test_the_layers_of_transformers_are_found(config):
    pytest.importorskip("transformers")
    experiment = asked(factory=f"hf:{config}")
    result = api.gradflow(experiment)
    shape = json.loads(config.read_text())
    assert result.verdict == "pass"
    assert result.warnings == ()
    assert result.data.layers in ("transformer.h", "model.layers")
    assert result.data.depth == shape.get("num_hidden_layers", shape.get("n_layer"))
    assert result.data.loss == "cross_entropy"
    found = numbers(result.data)
    assert all(found[layer, "hidden", "grad_norm"] > 0 for layer in range(result.data.depth))
