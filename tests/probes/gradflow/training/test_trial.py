"""One training run, held against a loop that is written out with torch's own parts."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.probes.models import experiment
from tfblock_cli.modules.decoder import build
from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes.gradflow.streams import statistics
from tfblock_cli.probes.gradflow.training import text, trial
from tfblock_cli.probes.gradflow.training.outcome import Judged, verdict

STEPS = 8


def asked(model=None, *, train=None, **keys):
    return experiment(
        {"n_layers": 2, "vocab_size": 64, "norm": "layernorm", "initialization": "unit"} | (model or {}),
        gradflow={"train": {"text": "markov", "steps": STEPS, "batch_size": 3} | (train or {})},
        **keys,
    )


def run(asked, *, lr=0.01, warmup=0):
    return trial.run(task(asked, lr=lr, warmup=warmup))


def task(asked, *, lr=0.01, warmup=0):
    sha256 = text.read(asked.gradflow.train.text).sha256
    return {"experiment": asked.model_dump(mode="json"), "lr": lr, "warmup": warmup, "text_sha256": sha256}


def bare(asked, *, lr=0.01, warmup=0, make=None):
    """The same, spelled out: losses of all steps, the network on held-out text at the quarters, update ratios."""
    torch.set_num_threads(1)
    source = text.read("markov")
    model = build(asked)
    T, steps = asked.input.seq_len, asked.gradflow.train.steps
    make = make or (lambda parameters: torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0))
    optimizer = make(model.parameters())
    random = generator(asked.seed, "gradflow.train")
    held_out = source.judged(T)
    losses, judged, ratios = [], [], []

    def look(step):
        streams = []
        handle = model.blocks[-1].register_forward_hook(lambda *args: streams.append(args[-1]))
        with torch.no_grad():
            logits = model(held_out[:, :-1])
        handle.remove()
        loss = F.cross_entropy(logits.transpose(1, 2), held_out[:, 1:])
        judged.append((step, loss.item(), statistics(streams)[0].cosine))

    look(0)
    for step in range(1, steps + 1):
        starts = torch.randint(len(source.training) - T, (asked.gradflow.train.batch_size,), generator=random)
        windows = torch.stack([source.training[start : start + T + 1] for start in starts.tolist()])
        for group in optimizer.param_groups:
            group["lr"] = lr if step >= warmup else lr * step / warmup
        loss = F.cross_entropy(model(windows[:, :-1]).transpose(1, 2), windows[:, 1:])
        model.zero_grad()
        loss.backward()
        before = [p.detach().clone() for p in model.blocks.parameters()]
        optimizer.step()
        pairs = [(old, new) for old, new in zip(before, model.blocks.parameters(), strict=True) if old.dim() > 1]
        change = torch.cat([(new.detach() - old).flatten() for old, new in pairs])
        ratios.append((change.norm() / torch.cat([old.flatten() for old, _ in pairs]).norm()).item())
        losses.append(loss.item())
        if step % (steps // 4) == 0:
            look(step)
    return losses, judged, ratios


@pytest.mark.parametrize("warmup", [0, 5])
def test_a_run_is_the_bare_loop(warmup):
    found = run(asked(), warmup=warmup)
    losses, judged, ratios = bare(asked(), warmup=warmup)
    assert [step for step, _ in found["loss"]] == list(range(1, STEPS + 1))
    assert [loss for _, loss in found["loss"]] == pytest.approx(losses, rel=1e-9)
    assert [step for step, *_ in found["held_out"]] == [0, 2, 4, 6, 8]
    for mine, theirs in zip(found["held_out"], judged, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)
    assert found["update_ratio"] == pytest.approx(ratios[-1], rel=1e-9)
    assert found["error"] == ""
    assert (found["forwards"], found["vjps"]) == (STEPS + 5, STEPS)
    held_out = text.read("markov").judged(asked().input.seq_len)[:, 1:].flatten()
    counts = np.bincount(text.read("markov").training.numpy(), minlength=64) + 1
    unigram = float(-np.log(counts[held_out.numpy()] / counts.sum()).mean())
    assert text.read("markov").unigram_loss(asked().input.seq_len) == pytest.approx(unigram, rel=1e-12)
    seen = [Judged(*one) for one in judged]
    assert found["verdict"] == verdict(seen, unigram_loss=unigram, margin=0.3, broke=False)


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        (
            {"kind": "sgd", "momentum": 0.5, "weight_decay": 0.1},
            lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.5, weight_decay=0.1),
        ),
        (
            {"kind": "adamw", "beta1": 0.5, "beta2": 0.8, "weight_decay": 0.1},
            lambda ps: torch.optim.AdamW(ps, lr=0.01, betas=(0.5, 0.8), weight_decay=0.1),
        ),
    ],
)
def test_the_optimizer_is_the_one_that_was_asked_for(optimizer, make):
    experiment = asked(train={"optimizer": optimizer})
    losses, _, _ = bare(experiment, make=make)
    plain, _, _ = bare(experiment)
    found = [loss for _, loss in run(experiment)["loss"]]
    assert found == pytest.approx(losses, rel=1e-9)
    assert found != pytest.approx(plain, rel=1e-9)


def test_the_rate_grows_linearly_and_then_stays():
    """Under plain SGD the size of the first step is the rate times the gradient, whatever comes after."""
    plain = {"optimizer": {"kind": "sgd", "momentum": 0.0}}
    slow, fast = (run(asked(train=plain), warmup=warmup)["updates"] for warmup in (4, 0))
    first = {(group, layer): ratio for step, group, layer, ratio in fast if step == 1}
    for step, group, layer, ratio in slow:
        if step == 1:
            assert ratio == pytest.approx(first[group, layer] / 4, rel=1e-9)


def test_updates_are_measured_per_block_and_for_both_ends():
    untied = {(group, layer) for _, group, layer, _ in run(asked())["updates"]}
    assert untied == {("embedding", None), ("head", None), ("block", 0), ("block", 1)}
    tied = {(group, layer) for _, group, layer, _ in run(asked({"tie_embeddings": True}))["updates"]}
    assert tied == {("embedding", None), ("block", 0), ("block", 1)}
    assert {step for step, *_ in run(asked())["updates"]} == {1, 2, 4, 6, 8}


def test_the_same_task_gives_the_same_bytes_and_survives_json():
    first = run(asked())
    torch.manual_seed(99)
    torch.randn(7)
    assert json.dumps(run(asked())) == json.dumps(first)
    assert json.loads(json.dumps(first)) == first
    other = asked(seed=1)
    assert run(other)["loss"] != first["loss"]


def test_the_callers_random_numbers_and_threads_are_left_alone():
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    torch.set_num_threads(2)
    run(asked(threads=1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == 2


def test_a_run_that_explodes_is_a_result():
    found = run(asked(dtype="float32", train={"optimizer": {"kind": "sgd"}}), lr=1e12)
    assert found["verdict"] == "DIVERGED"
    assert found["error"] == ""
    assert not math.isfinite(found["held_out"][-1][1])
    assert found["vjps"] < STEPS  # what is lost stays lost


def test_a_loss_that_ends_above_its_start_has_diverged():
    found = run(asked(), lr=3.0)
    assert found["verdict"] == "DIVERGED"
    assert math.isfinite(found["held_out"][-1][1])


def test_an_error_of_any_kind_is_told_and_not_raised(monkeypatch):
    def fail(*_):
        raise MemoryError("all of it")

    monkeypatch.setattr(trial, "build", fail)
    assert run(asked()) == {"error": "MemoryError: all of it"}


def test_ctrl_c_is_no_error_of_the_run(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "build", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(asked())


def test_long_curves_are_thinned_to_means():
    steps = 120
    found = run(asked(train={"steps": steps}, input={"batch_size": 1, "seq_len": 3}))
    losses, _, _ = bare(asked(train={"steps": steps}, input={"batch_size": 1, "seq_len": 3}))
    assert [step for step, _ in found["loss"]] == list(range(3, 121, 3))
    means = [sum(losses[i : i + 3]) / 3 for i in range(0, steps, 3)]
    assert [loss for _, loss in found["loss"]] == pytest.approx(means, rel=1e-8)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_few_steps_have_fewer_quarters(steps):
    found = run(asked(train={"steps": steps}))
    assert [step for step, *_ in found["held_out"]] == list(range(steps + 1))
    assert found["verdict"] in ("SLOW", "STUCK", "COLLAPSED")


def test_sixteen_bits_are_judged_in_float64():
    """A step of bfloat16 at a loss of 4.8 is as large as what tells SLOW from STUCK."""
    found = run(asked(dtype="bfloat16"), lr=1e-3)
    model = build(asked(dtype="bfloat16"))
    held_out = text.read("markov").judged(5)
    exact = F.cross_entropy(model(held_out[:, :-1]).double().transpose(1, 2), held_out[:, 1:]).item()
    assert found["held_out"][0][1] == pytest.approx(exact, rel=1e-12)
    assert exact != float(torch.tensor(exact).bfloat16())


def test_who_knows_only_frequencies_does_not_learn(tmp_path):
    """Held-out blocks of one character make a loss far below the whole text's entropy possible without learning."""
    random = np.random.default_rng(0)
    letters = "".join(random.choice([" ", *map(chr, range(65, 125))], 9000, p=[0.5, *[0.5 / 60] * 60]))
    file = tmp_path / "uneven.txt"
    file.write_text((" " * 1000 + letters) * 2, encoding="utf-8")
    found = run(asked({"n_layers": 1}, train={"text": str(file), "steps": 60}), lr=0.01)
    mine = text.read(str(file))
    assert found["held_out"][-1][1] < mine.unigram_entropy - 0.3
    assert found["verdict"] != "LEARNS"
    assert mine.unigram_loss(5) == pytest.approx(-np.log((letters * 2).count(" ") / 18_000), rel=0.01)


def test_a_text_that_changed_in_between_is_an_error_of_the_run(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("abcd" * 6000, encoding="utf-8")
    asked_for = task(asked(train={"text": str(file)}))
    file.write_text("abdc" * 6000, encoding="utf-8")
    assert trial.run(asked_for) == {"error": "ValueError: the text has changed since the run was asked for"}
    assert text.read(str(file)).sha256 != asked_for["text_sha256"]


def test_dropout_is_off():
    assert run(asked({"dropout": 0.5})) == run(asked())


def test_every_step_is_told():
    told = []
    trial.run(task(asked()), lambda: told.append(1))
    assert len(told) == STEPS
