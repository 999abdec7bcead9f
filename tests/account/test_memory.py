"""Bytes of the account against what autograd really keeps and what torch really allocates."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.modules.models import EVERY_PATTERN, block_of
from tfblock_cli.account.memory import activations, backward_bytes, comparison_bytes, forward_bytes, memory
from tfblock_cli.modules.decoder import build
from tfblock_cli.modules.initialization import Memo
from tfblock_cli.probes import forward, gradflow
from tfblock_cli.probes.gradflow.cell import measure
from tfblock_cli.probes.gradflow.compare import variant_of
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.norm import RMSNorm


def experiment(
    *, dtype: str = "float32", kernel: str = "sdpa", batch_size: int = 2, seq_len: int = 5, **model: Any
) -> Experiment:
    table = {"d_model": 24, "n_layers": 4, "vocab_size": 0, "attention": {"n_heads": 4}} | model
    shape = {"batch_size": batch_size, "seq_len": seq_len}
    return Experiment.model_validate({"dtype": dtype, "kernel": kernel, "input": shape, "model": table})


def kept(asked: Experiment) -> int:
    """Bytes of every storage that autograd keeps for the backward pass through the blocks; each once.

    Parameters are left out, and so are the tables that the blocks share.
    """
    decoder = build(asked)
    x = torch.randn(asked.input.batch_size, asked.input.seq_len, asked.model.d_model)
    x = x.to(getattr(torch, asked.dtype)).requires_grad_()
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for block in decoder.blocks:
            x = block(x)
    tables = block_of(decoder).attention.tables._tables.values()
    shared = {tensor.untyped_storage().data_ptr() for tensor in (*decoder.parameters(), *tables)}
    return sum(storage.nbytes() for pointer, storage in storages.items() if pointer not in shared)


PLACEMENTS = (
    *("pre", "post", "sandwich", "reordered", "deepnorm", "lns", "mixln", "none", "parallel"),
    *("b2t", "layerscale", "subln"),
    {"kind": "parallel", "shared_norm": False},
)
FFNS = (
    *({"kind": "mlp", "activation": activation} for activation in ("relu", "gelu", "gelu_tanh", "silu")),
    "swiglu",
    "geglu",
)
HEADS = ((4, 2, 6), (4, 4, 8), (1, 1, 24), (4, 1, 2))
NORMS, QK_NORMS, POSITIONS = ("layernorm", "rmsnorm"), ("none", "rmsnorm", "layernorm"), ("none", "learned", "rope")
DTYPES, KERNELS, SHAPES = ("float64", "float32", "bfloat16"), ("sdpa", "eager"), ((2, 5), (1, 7), (3, 1))
EVERYTHING = list(product(NORMS, QK_NORMS, POSITIONS, PLACEMENTS, FFNS, HEADS, DTYPES, KERNELS, SHAPES))


@pytest.mark.parametrize("part", range(4))
def test_activations_are_exact_to_the_byte(part):
    """A random sample of all combinations; every value of every axis comes by many times."""
    for case in random.Random(part).sample(EVERYTHING, 40):
        norm, qk_norm, position, placement, ffn, (n_heads, n_kv_heads, d_head), dtype, kernel, shape = case
        asked = experiment(
            dtype=dtype,
            kernel=kernel,
            batch_size=shape[0],
            seq_len=shape[1],
            norm=norm,
            position=position,
            norm_placement=placement,
            ffn=ffn,
            attention={"n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d_head, "qk_norm": qk_norm},
        )
        assert activations(asked) == kept(asked), case


def test_the_measurement_notices_one_forgotten_row_of_numbers(monkeypatch):
    asked = experiment()
    whole = RMSNorm.saved
    monkeypatch.setattr(RMSNorm, "saved", lambda *args: [part for part in whole(*args) if part.name != "rstd"])
    assert kept(asked) - activations(asked) == 8 * 2 * 5 * 4  # eight norms, one float32 for each of 2 · 5 tokens


def test_a_known_block_by_hand():
    """Pre, LayerNorm, GELU, four heads, sdpa: 16 D elements per token and a few statistics."""
    asked = experiment(n_layers=1, norm="layernorm", position="none", ffn={"kind": "mlp"})
    tokens, D, H = 2 * 5, 24, 4
    assert activations(asked) == 4 * (16 * tokens * D + 4 * tokens + tokens * H)


def test_the_other_figures():
    asked = experiment(
        dtype="bfloat16", batch_size=3, vocab_size=100, max_seq_len=64, attention={"n_heads": 4, "n_kv_heads": 2}
    )
    parameters = sum(parameter.numel() for parameter in build(asked).parameters())
    found = memory(asked)
    assert (found.dtype, found.bytes_per_element) == ("bfloat16", 2)
    assert found.weights == found.gradients == 2 * parameters
    assert found.adamw == 4 * parameters
    assert found.logits == 3 * 5 * 100 * 2
    assert found.kv_cache_per_token == 2 * 4 * 2 * 6 * 2  # keys and values, layers, key-value heads, width, bytes
    assert found.kv_cache == 3 * 64 * found.kv_cache_per_token


def test_llama_3_8b_caches_128_kib_per_token():
    model = {"d_model": 4096, "n_layers": 32, "attention": {"n_heads": 32, "n_kv_heads": 8}, "max_seq_len": 8192}
    found = memory(Experiment.model_validate({"dtype": "bfloat16", "model": model}))
    assert found.kv_cache_per_token == 131_072
    assert found.kv_cache == 2**30


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
def test_patterns_keep_what_they_keep(kernel, pattern):
    """Only the fused kernel keeps masks, one for each layer: those that it does not know by itself."""
    for dtype, shape, (n_heads, n_kv_heads, _) in product(DTYPES, SHAPES, HEADS):
        attention = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "pattern": pattern.model_dump()}
        asked = experiment(dtype=dtype, kernel=kernel, batch_size=shape[0], seq_len=shape[1], attention=attention)
        assert activations(asked) == kept(asked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "layers",
    [
        [],
        [{"at": "::2", "attention": {"pattern": {"kind": "sliding_window", "window": 3}}}],
        [{"at": [1], "attention": {"pattern": {"kind": "sliding_window", "window": 50}}}],
        [{"at": [1, 2], "attention": {"n_kv_heads": 1, "pattern": {"kind": "documents", "lengths": [2, 4]}}}],
        [{"at": [3], "attention": {"pattern": {"kind": "prefix", "length": 2}}}],
    ],
    ids=str,
)
def test_a_full_cache_has_the_bytes_of_the_account(dtype, layers):
    asked = experiment(dtype=dtype, max_seq_len=11, attention={"n_heads": 4, "n_kv_heads": 2}, layers=layers)
    decoder = build(asked)
    cache, x = decoder.new_cache(2), torch.zeros(2, 11, 24, dtype=getattr(torch, dtype))
    sizes = []
    with torch.no_grad():
        for chunk in x.split([2, 4, 1, 4], dim=1):
            decoder(chunk, cache=cache)
            sizes.append(cache.bytes)
    assert sizes[0] == 2 * 2 * memory(asked).kv_cache_per_token
    assert sizes[-1] == memory(asked).kv_cache


def test_layers_that_differ_keep_and_cache_their_own():
    asked = experiment(layers=[{"at": "1::2", "attention": {"n_kv_heads": 1}, "ffn": "geglu"}])
    assert activations(asked) == kept(asked)
    assert memory(asked).kv_cache_per_token == 2 * (2 * 4 + 2 * 1) * 6 * 4


def peak(run: Callable[[], object]) -> int:
    """The most bytes that torch held at once on the CPU while something ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = highest = 0
    for _, change in changes:
        held += change
        highest = max(highest, held)
    return highest


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("n_layers", "vocab_size", "seq_len", "pattern"),
    [
        (1, 0, 512, "causal"),
        (4, 0, 128, "causal"),
        (2, 5000, 128, "causal"),
        (1, 0, 512, {"kind": "sliding_window", "window": 64}),
        (2, 0, 512, {"kind": "documents", "lengths": [100, 30]}),
    ],
)
def test_bounds_are_never_exceeded_and_not_far_away(kernel, dtype, n_layers, vocab_size, seq_len, pattern):
    asked = experiment(
        dtype=dtype,
        kernel=kernel,
        d_model=96,
        n_layers=n_layers,
        vocab_size=vocab_size,
        seq_len=seq_len,
        attention={"n_heads": 4, "n_kv_heads": 2, "pattern": pattern},
    )
    for bound, run in ((forward_bytes, lambda: forward.run(asked)), (backward_bytes, lambda: measure(asked, Memo()))):
        used = peak(run)
        assert used <= bound(asked) <= 5 * used


@pytest.mark.parametrize(
    ("dtype", "placements", "depths", "vocab_size"),
    [
        ("float32", ["pre", "post", "sandwich", "parallel"], [2], 50),  # one set of weights
        ("bfloat16", ["pre", "deepnorm", "subln"], [2], 50),  # three
        ("float32", ["pre", "deepnorm"], [6, 1, 3], 0),  # two, of one depth after the other
        ("float32", ["pre", "post", "sandwich", "reordered", "parallel", "lns", "layerscale", "none"], [1], 0),
    ],
)
def test_the_bound_of_a_comparison_is_never_exceeded_and_not_far_away(
    monkeypatch, dtype, placements, depths, vocab_size
):
    monkeypatch.setattr(Memo, "ROOM", 0)
    table = {
        "dtype": dtype,
        "input": {"batch_size": 2, "seq_len": 16},
        "model": {"d_model": 96, "vocab_size": vocab_size, "attention": {"n_heads": 4}},
        "gradflow": {"placements": placements, "depths": depths, "seeds": 2},
    }
    asked = Experiment.model_validate(table)
    used = peak(lambda: gradflow.run(asked))
    variants = [variant_of(asked, kind, max(depths)) for kind in asked.gradflow.placements]
    assert used <= comparison_bytes(variants) <= 3 * used


def test_the_meter_sees_what_is_held_at_once():
    def run():
        first = torch.empty(1000, 1000)
        second = torch.empty(1000, 1000)
        del first
        return second, torch.empty(500, 1000)

    assert peak(run) == 8_000_000
