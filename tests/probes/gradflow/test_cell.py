"""One cell: every number has a second way to get it."""

import gc
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.probes.models import experiment
from tfblock_cli.modules import initialization
from tfblock_cli.modules.decoder import build
from tfblock_cli.modules.initialization import Memo
from tfblock_cli.probes.gradflow.cell import NOISE, Model, measure, measure_all, response
from tfblock_cli.probes.gradflow.layers import has_clones
from tfblock_cli.probes.gradflow.losses import loss_of
from tfblock_cli.probes.inputs import random_input


def loss_with(asked, change):
    """The loss after ``change(decoder)``, without autograd."""
    decoder, x = build(asked), random_input(asked)
    with torch.no_grad():
        change(decoder)
        return float(loss_of(decoder(x), asked.gradflow.loss, asked.seed))


@pytest.mark.parametrize("placement", ["pre", "post", "parallel"])
@pytest.mark.parametrize("name", ["embed.weight", "blocks.1"])
def test_gradient_norms_are_slopes_of_the_loss(placement, name):
    """The slope along the gradient's own direction is its norm: central differences, no autograd in the slope."""
    asked = experiment({"norm_placement": placement, "initialization": "unit"})
    seen = measure(asked)
    decoder, x = build(asked), random_input(asked)
    loss_of(decoder(x), asked.gradflow.loss, asked.seed).backward()
    chosen = {key: p.grad for key, p in decoder.named_parameters() if key.startswith(name) and p.grad is not None}
    norm = float(torch.stack([grad.norm() for grad in chosen.values()]).norm())
    step = 1e-5

    def along(sign):
        return loss_with(
            asked,
            lambda d: [p.add_(sign * step / norm * chosen[key]) for key, p in d.named_parameters() if key in chosen],
        )

    slope = (along(+1) - along(-1)) / (2 * step)
    assert slope == pytest.approx(seen.source if name == "embed.weight" else seen.blocks[1], rel=1e-6)


def test_input_gradient_of_a_stack_without_a_vocabulary():
    asked = experiment({"vocab_size": 0, "initialization": "unit"})
    seen = measure(asked)
    x = random_input(asked).requires_grad_()
    decoder = build(asked)
    loss = loss_of(decoder(x), asked.gradflow.loss, asked.seed)
    (grad,) = torch.autograd.grad(loss, x)
    assert asked.gradflow.loss == "random_projection"
    assert seen.source == pytest.approx(float(grad.norm()), rel=1e-12)
    assert seen.loss == pytest.approx(float(loss.detach()), rel=1e-12)


def test_cross_entropy_is_torchs():
    asked = experiment()
    logits = torch.randn(2, 5, 11, dtype=torch.float64)
    targets = torch.cat([torch.arange(11)])  # every class once, to read the targets back
    loss = float(loss_of(logits, asked.gradflow.loss, asked.seed))
    rows = F.log_softmax(logits, -1)
    # the drawn targets are the only ids that explain the gradient: softmax - onehot
    logits.requires_grad_()
    (grad,) = torch.autograd.grad(loss_of(logits, asked.gradflow.loss, asked.seed), logits)
    onehot = logits.detach().softmax(-1) - grad * 10
    ids = onehot.argmax(-1)
    assert torch.allclose(onehot, F.one_hot(ids, len(targets)).double(), atol=1e-12)
    assert loss == pytest.approx(float(-rows.gather(-1, ids[..., None]).mean()), rel=1e-12)


def test_random_projection_has_a_gradient_of_norm_about_one():
    asked = experiment({"vocab_size": 0})
    output = torch.zeros(2, 50, 16, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(loss_of(output, asked.gradflow.loss, asked.seed), output)
    assert float(grad.norm()) == pytest.approx(1, rel=0.1)
    assert float(grad.mean(-1).abs().min()) > 0  # a LayerNorm does not take it away


def test_stream_statistics_by_numpy():
    asked = experiment({"initialization": "unit"})
    seen = measure(asked)
    decoder, stream = build(asked), None
    with torch.no_grad():
        stream = decoder.embed(random_input(asked))
        for block, rms, cosine in zip(decoder.blocks, seen.rms, seen.cosine, strict=True):
            stream = block(stream)
            values = stream.numpy()
            assert rms == pytest.approx(np.sqrt((values**2).mean()), rel=1e-12)
            unit = values / np.linalg.norm(values, axis=-1, keepdims=True)
            pairs = [unit[b, t] @ unit[b, s] for b in range(2) for t in range(5) for s in range(5) if s != t]
            assert cosine == pytest.approx(np.mean(pairs), rel=1e-10)


@pytest.mark.parametrize("room", [0, 2**12, 2**27])
def test_memo_changes_nothing(monkeypatch, room):
    monkeypatch.setattr(Memo, "ROOM", room)
    memo = Memo()
    for placement in ("pre", "post", "deepnorm", "subln"):
        asked = experiment({"norm_placement": placement, "initialization": "unit"}, dtype="float32")
        assert measure(asked, memo) == measure(asked)
    assert bool(memo.names) == (room > 0)


@pytest.mark.parametrize(
    ("model", "initialization"),
    [
        ({}, "unit"),
        ({"vocab_size": 0}, "torch"),
        ({"tie_embeddings": True, "position": "learned"}, {"kind": "gpt2", "clone_layers": True}),
    ],
)
def test_models_that_share_weights_are_seen_as_those_that_do_not(model, initialization):
    placements = ("pre", "post", "sandwich", "parallel", "layerscale", "mixln", "none")
    table = {"initialization": initialization, "bias": True, "norm": "layernorm", "n_layers": 4, "max_seq_len": 8}
    asked = [experiment(table | model | {"norm_placement": placement}) for placement in placements]
    first = Model(asked[0])
    models = [first, *(Model(other, first) for other in asked[1:])]
    shared = set(map(id, first.weights.parameters.values()))
    assert all(shared & set(map(id, model.weights.parameters.values())) for model in models[1:])
    for seed in (0, 1, 0):
        alone = [measure(other.model_copy(update={"seed": seed})) for other in asked]
        assert measure_all(models, seed) == alone


def test_a_comparison_leaves_nothing_for_the_collector():
    models = [Model(experiment({"norm_placement": placement})) for placement in ("pre", "post", "sandwich")]
    measure_all(models, 0, Memo())
    gc.collect()
    gc.disable()
    try:
        measure_all(models, 1, Memo())
        assert gc.collect() == 0
        circle: list[object] = []
        circle.append(circle)
        del circle
        assert gc.collect() > 0  # what it would be
    finally:
        gc.enable()


@pytest.mark.parametrize(("room", "again"), [(Memo.ROOM, False), (0, True)])
def test_numbers_are_drawn_once_for_models_that_scale_them_differently(monkeypatch, room, again):
    drawn = []
    draw = initialization.draw

    def counted(*args):
        drawn.append(args)
        return draw(*args)

    monkeypatch.setattr(initialization, "draw", counted)
    monkeypatch.setattr(Memo, "ROOM", room)
    memo = Memo()
    measure(experiment({"initialization": "unit"}), memo)
    before = len(drawn)
    measure(experiment({"initialization": "unit", "norm_placement": "deepnorm"}), memo)
    assert (len(drawn) > before) == again


def test_float32_agrees_with_float64():
    exact, rounded = (measure(experiment({"initialization": "unit"}, dtype=dtype)) for dtype in ("float64", "float32"))
    assert rounded.source == pytest.approx(exact.source, rel=1e-5)
    assert rounded.blocks == pytest.approx(exact.blocks, rel=1e-5)
    assert rounded.rms == pytest.approx(exact.rms, rel=1e-5)
    assert rounded.hidden == pytest.approx(exact.hidden, rel=1e-5)
    assert rounded.cosine == pytest.approx(exact.cosine, rel=1e-5, abs=1e-6)
    assert rounded.noise == pytest.approx(exact.noise, rel=1e-3)  # the difference of two outputs, 1 % apart
    for small, large in zip(rounded.groups, exact.groups, strict=True):
        assert small == pytest.approx(large, rel=1e-5)


def test_dropout_is_off():
    with_dropout, without = (measure(experiment({"dropout": dropout})) for dropout in (0.5, 0.0))
    assert with_dropout == without


def test_post_norm_streams_have_rms_one():
    asked = experiment({"norm_placement": "post", "norm": "layernorm", "initialization": "unit"})
    assert measure(asked).rms == pytest.approx([1, 1], rel=1e-3)


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "layerscale", "subln"])
def test_groups_by_name_and_by_slice(placement):
    """Another way: autograd.grad by parameter, the fused tensor cut by hand, groups by the parameters' names."""
    model = {"norm_placement": placement, "initialization": "unit", "bias": True, "n_layers": 2}
    asked = experiment(model | {"attention": {"n_heads": 2, "n_kv_heads": 1}})
    seen = measure(asked)
    decoder = build(asked)
    parameters = dict(decoder.named_parameters())
    loss = loss_of(decoder(random_input(asked)), asked.gradflow.loss, asked.seed)
    grads = dict(zip(parameters, torch.autograd.grad(loss, [*parameters.values()]), strict=True))
    for layer in (0, 1):
        own = {name.removeprefix(f"blocks.{layer}."): g for name, g in grads.items() if f"blocks.{layer}." in name}
        q, k, v = own["attention.qkv.weight"].split([16, 8, 8])
        expected: dict[str, tuple[torch.Tensor, ...]] = {"q": (q,), "k": (k,), "v": (v,)}
        for role, part in {"out": "attention.out", "up": "ffn.up", "gate": "ffn.gate", "down": "ffn.down"}.items():
            expected[role] = (own[f"{part}.weight"],)
        expected["biases"] = tuple(g for name, g in own.items() if name.endswith("bias") and "norm" not in name)
        expected["norms"] = tuple(g for name, g in own.items() if "norm" in name or "scale" in name)
        norms = {role: float(torch.cat([g.flatten() for g in parts]).norm()) for role, parts in expected.items()}
        assert seen.groups[layer] == pytest.approx(norms, rel=1e-10)
        assert seen.blocks[layer] == pytest.approx(math.hypot(*norms.values()), rel=1e-10)


def test_hidden_states_are_what_autograd_gives_when_asked_for_them():
    asked = experiment({"initialization": "unit", "n_layers": 3})
    seen = measure(asked)
    decoder, streams = build(asked), []
    stream = decoder.embed(random_input(asked))
    for block in decoder.blocks:
        streams.append(stream)
        stream = block(stream)
    streams.append(stream)
    loss = loss_of(decoder.head(decoder.final_norm(stream)), asked.gradflow.loss, asked.seed)
    norms = [float(grad.norm()) for grad in torch.autograd.grad(loss, streams)]
    assert (seen.embedded, *seen.hidden) == pytest.approx(norms, rel=1e-10)


@pytest.mark.parametrize(("vocab_size", "tie", "there"), [(11, False, True), (11, True, False), (0, False, False)])
def test_the_head_is_seen_where_it_is_a_tensor_of_its_own(vocab_size, tie, there):
    asked = experiment({"vocab_size": vocab_size, "tie_embeddings": tie, "initialization": "unit"})
    head = measure(asked).head
    assert (head is not None) == there
    if there:
        decoder = build(asked)
        loss = loss_of(decoder(random_input(asked)), asked.gradflow.loss, asked.seed)
        (grad,) = torch.autograd.grad(loss, decoder.head.weight)
        assert head == pytest.approx(float(grad.norm()), rel=1e-10)


@pytest.mark.parametrize("placement", ["pre", "post", "deepnorm"])
def test_noise_response_by_hand(placement):
    """Two models built and compared; the noise has 1 % of the spread with which each matrix was drawn."""
    asked = experiment({"norm_placement": placement, "initialization": "unit", "d_model": 64, "bias": True})
    model = Model(asked)
    model.weights.draw(0)
    before = {name: value.detach().clone() for name, value in model.decoder.named_parameters()}
    with torch.no_grad():
        for block in model.decoder.blocks:
            for name, value in block.named_parameters():
                assert "weight" in name or (value == 0).all(), name
        model.weights.add_noise(NOISE, 0)
    for name, value in model.decoder.named_parameters():
        change = (value.detach() - before[name]).std() / before[name].std() if value.dim() == 2 else 0.0
        inside = name.startswith("blocks.") and value.dim() == 2
        assert float(change) == (pytest.approx(NOISE, rel=0.1) if inside else 0.0), name
    with torch.no_grad():
        streams = []
        for weights in (before, dict(model.decoder.named_parameters())):
            other = build(asked)
            other.load_state_dict(weights)
            stream = other.embed(random_input(asked))
            for block in other.blocks:
                stream = block(stream)
            streams.append(other.final_norm(stream) if asked.model.has_final_norm else stream)
    response = float((streams[1] - streams[0]).square().sum() / streams[0].square().sum())
    assert measure(asked).noise == pytest.approx(response, rel=1e-8)


def test_noise_is_drawn_per_layer_even_for_clones():
    memo = Memo()
    measure(experiment({"initialization": {"kind": "unit", "clone_layers": True}}), memo)
    queries = {name for name in memo.names if "q.weight" in name}
    assert queries == {f"{noise}blocks.0.attention.q.weight" for noise in ("", "noise.0.", "noise.1.")}


def test_of_noise_the_variance_matters_alone(monkeypatch):
    """Drawn from N(0, 1) instead of uniformly it is answered alike: within 5 %, as a mean of 200 that vary by 17 %."""
    asked = experiment({"initialization": "unit", "d_model": 32, "n_layers": 1})
    seeds = range(1, 201)

    def responses():
        model = Model(asked)
        x = random_input(asked)
        for seed in seeds:  # the same weights and input, and other noise
            model.weights.draw(0)
            *_, before = model.decoder.streams(x)
            model.weights.add_noise(NOISE, seed)
            yield response(model, x, before.detach())

    uniform = [*responses()]
    draw = initialization.draw
    monkeypatch.setattr(
        initialization,
        "draw",
        lambda shape, kind, random: draw(shape, "normal" if kind == "noise" else kind, random),
    )
    normal = [*responses()]
    assert uniform != normal
    assert sum(uniform) == pytest.approx(sum(normal), rel=0.05)


def test_a_model_that_is_used_again_gives_the_same_numbers():
    asked = {seed: experiment({"initialization": "unit", "norm_placement": "layerscale"}, seed=seed) for seed in (0, 1)}
    model = Model(asked[0])
    again = [measure_all([model], seed) for seed in (0, 1, 0)]
    assert again == [[measure(asked[seed])] for seed in (0, 1, 0)]
    assert again[0] != again[1]


def test_clones_are_found_and_equal_biases_are_none():
    cloned, own = (
        build(experiment({"initialization": {"kind": "unit", "clone_layers": clone}, "n_layers": 3, "bias": True}))
        for clone in (True, False)
    )
    assert has_clones(cloned.blocks)
    assert not has_clones(own.blocks)
    with torch.no_grad():
        cloned.get_parameter("blocks.0.ffn.down.weight")[0, 0] += 1e-9
        cloned.get_parameter("blocks.1.attention.out.weight")[-1, -1] += 1e-9
    assert not has_clones(cloned.blocks)


@pytest.mark.parametrize(
    ("norm", "loss", "honest"),
    [
        ("layernorm", lambda y: y.sum(), False),
        ("layernorm", lambda y: y.square().mean(), False),
        ("rmsnorm", lambda y: y.square().mean(), False),
        ("rmsnorm", lambda y: y.sum(), True),
        ("layernorm", lambda y: y[..., 0].sum(), True),
    ],
)
@pytest.mark.parametrize("placement", ["pre", "post", "deepnorm", "b2t"])
def test_degeneracy_is_measured(monkeypatch, placement, norm, loss, honest):
    asked = experiment({"vocab_size": 0, "norm": norm, "norm_placement": placement, "initialization": "unit"})
    monkeypatch.setattr("tfblock_cli.probes.gradflow.cell.loss_of", lambda output, *_: loss(output))
    found = measure(asked).degeneracy
    assert found > 0.1 if honest else found < 1e-4


def test_degeneracy_says_nothing_where_the_stack_ends_in_no_norm():
    assert math.isnan(measure(experiment({"final_norm": False})).degeneracy)
    assert not math.isnan(measure(experiment({"final_norm": False, "norm_placement": "post"})).degeneracy)


@pytest.mark.parametrize(("std", "floor"), [(1e10, 1), (1.0, 1), (1e-12, 0)])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_the_floor_is_not_reached_by_branches_whose_squares_are_beyond_float32(norm, std, floor):
    kind = {"kind": "normal", "std": std, "embedding_std": 1.0}
    table = {"norm": norm, "norm_placement": "reordered", "initialization": kind, "n_layers": 1}
    assert measure(experiment(table, dtype="float32")).floor == pytest.approx(floor, abs=1e-3)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("placement", ["sandwich", "reordered", "subln"])
def test_the_floor_is_the_smallest_mean_square_that_a_branchs_norm_puts_out(norm, placement):
    asked = experiment({"norm": {"kind": norm, "eps": 1e-3}, "norm_placement": placement, "initialization": "unit"})
    decoder, found = build(asked), []

    def see(module, inputs, output):
        found.append(float(output.square().mean()))  # its gains are 1, its biases 0

    wanted = {"sandwich": "_out", "reordered": "norms.", "subln": "inner_norm"}[placement]
    for name, module in decoder.named_modules():
        if wanted in name and "Norm" in type(module).__name__:
            module.register_forward_hook(see)
    with torch.no_grad():
        decoder(random_input(asked))
    assert len(found) == 4
    assert measure(asked).floor == pytest.approx(min(found), rel=1e-10)


def test_no_floor_where_no_norm_takes_a_branch():
    assert measure(experiment({"norm_placement": "post"})).floor == math.inf


def test_mean_squared_error_is_against_noise_of_the_seed():
    asked = experiment({"vocab_size": 0}, gradflow={"loss": "mean_squared_error"})
    zero = torch.zeros(2, 5, 16, dtype=torch.float64)
    (grad,) = torch.autograd.grad(loss_of(zero.requires_grad_(), asked.gradflow.loss, asked.seed), zero)
    target = -grad * zero.numel() / 2
    assert float(target.std()) == pytest.approx(1, rel=0.15)
    assert float(loss_of(target, asked.gradflow.loss, asked.seed)) == pytest.approx(0, abs=1e-20)
