"""Attention: the two kernels, shared heads, softmax, and the way into heads and out again."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from tests.modules.formulas import decode
from tests.modules.models import EVERY_PATTERN, block_of, distance, experiment, inputs, plain, shaken
from tfblock_cli.modules.stage import record
from tfblock_cli.spec.experiment import Experiment


def outputs(asked: Experiment, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The recorded stages of block 0, and the output of the model."""
    decoder = shaken(asked)
    seen: dict[str, Tensor] = {}
    with torch.no_grad(), record(decoder, [f"blocks.0.attention.{name}" for name in names], seen.__setitem__):
        out = decoder(inputs(asked))
    return out, *(seen[f"blocks.0.attention.{name}"] for name in names)


@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "d_head"), [(4, 4, 6), (4, 2, 6), (4, 1, 6), (3, 3, 8), (6, 3, 2), (1, 1, 10), (5, 5, 2)]
)
@pytest.mark.parametrize("seq_len", [1, 2, 7, 33])
def test_sdpa_equals_eager(pattern, n_heads, n_kv_heads, d_head, seq_len):
    attention = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d_head, "pattern": pattern.model_dump()}
    found = []
    for kernel in ("sdpa", "eager"):
        asked = experiment(kernel=kernel, attention=attention, seq_len=seq_len)
        with torch.no_grad():
            found.append(shaken(asked)(inputs(asked, 3, seq_len)))
    assert distance(*found) < 1e-12


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_patterns_differ(kernel):
    found: dict[str, list[Tensor]] = {}
    for pattern in EVERY_PATTERN:
        visible = str([[pattern.allows(t, s) for s in range(7)] for t in range(7)])
        attention = {"n_heads": 4, "pattern": pattern.model_dump()}
        found.setdefault(visible, []).append(outputs(experiment(kernel=kernel, attention=attention), ())[0])
    assert len(found) == 7  # a window, a prefix and documents longer than the input hide and show nothing new
    for same in found.values():
        assert all(distance(one, same[0]) < 1e-12 for one in same)
    for one, other in combinations(found.values(), 2):
        assert distance(one[0], other[0]) > 1e-3


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_shared_heads_equal_multi_head_attention_with_repeated_heads(kernel, n_kv_heads):
    """Query head h reads key-value head h // (H/K)."""
    H, E = 4, 6
    shared = experiment(kernel=kernel, attention={"n_heads": H, "n_kv_heads": n_kv_heads})
    full = experiment(kernel=kernel, attention={"n_heads": H})
    one, other = block_of(shaken(shared)).attention, block_of(shaken(full)).attention
    q, k, v = torch.split(one.qkv.weight, [H * E, n_kv_heads * E, n_kv_heads * E])
    repeated = [part.reshape(n_kv_heads, E, -1).repeat_interleave(H // n_kv_heads, 0).flatten(0, 1) for part in (k, v)]
    other.load_state_dict({"qkv.weight": torch.cat((q, *repeated)), "out.weight": one.out.weight})
    x = inputs(shared)
    with torch.no_grad():
        assert distance(one(x), other(x)) < 1e-12
        tiled = [part.reshape(n_kv_heads, E, -1).repeat(H // n_kv_heads, 1, 1).flatten(0, 1) for part in (k, v)]
        other.load_state_dict({"qkv.weight": torch.cat((q, *tiled)), "out.weight": one.out.weight})
        assert n_kv_heads == 1 or distance(one(x), other(x)) > 1e-3  # the other order of heads is another model


def test_as_many_key_value_heads_as_heads_is_the_same_model():
    written, derived = (experiment(attention=table) for table in ({"n_heads": 4, "n_kv_heads": 4}, {"n_heads": 4}))
    assert written == derived
    assert torch.equal(outputs(written, ())[0], outputs(derived, ())[0])


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_splitting_and_merging_heads_are_inverse(kernel):
    """merged[b, t] is the heads' context side by side; q's heads side by side are the projection."""
    asked = experiment(kernel=kernel, position="none", bias=True)
    _, q, context, merged = outputs(asked, ("q", "context", "merged"))
    B, H, T, E = context.shape
    for h in range(H):
        assert torch.equal(merged[..., h * E : (h + 1) * E], context[:, h])
    assert torch.equal(merged.reshape(B, T, H, E).transpose(1, 2), context)
    block = block_of(shaken(asked))
    with torch.no_grad():
        projected = block.attention.qkv(block.norms["attention"](inputs(asked)))[..., : H * E]
    assert torch.equal(q.transpose(1, 2).reshape(B, T, H * E), projected)
    assert not torch.equal(q.reshape(B, T, H * E), projected)  # without the transposition it is a jumble


@pytest.mark.parametrize("pattern", EVERY_PATTERN, ids=str)
def test_rows_of_weights_sum_to_one_and_keep_the_order_of_scores(pattern):
    asked = experiment(kernel="eager", attention={"n_heads": 4, "pattern": pattern.model_dump()})
    _, scores, weights = outputs(asked, ("scores", "weights"))
    assert float((weights.sum(-1) - 1).abs().max()) < 1e-14
    hidden = torch.tensor([[not pattern.allows(t, s) for s in range(7)] for t in range(7)])
    assert torch.equal(scores.isneginf(), hidden.expand_as(scores))
    assert torch.equal(weights == 0, scores.isinf())
    order = scores.argsort(dim=-1)
    assert bool((weights.gather(-1, order).diff(dim=-1) >= 0).all())
    itself = [part.diagonal(dim1=-2, dim2=-1)[..., None] for part in (weights, scores)]
    ratio = itself[0] / weights  # exp(difference of scores), wherever both are seen
    expected = (itself[1] - scores).exp()
    seen = ~scores.isinf()
    assert torch.allclose(ratio[seen], expected[seen], rtol=1e-12)


def test_layers_may_alternate_between_a_window_and_everything():
    """As in Gemma 2: only the odd layers see further than three tokens."""
    layers = [{"at": "::2", "attention": {"pattern": {"kind": "sliding_window", "window": 3}}}]
    found = [shaken(experiment(kernel=kernel, layers=layers)) for kernel in ("sdpa", "eager")]
    assert [block_of(found[0], i).attention.pattern.kind for i in range(2)] == ["sliding_window", "causal"]
    x = inputs(experiment())
    with torch.no_grad():
        assert distance(found[0](x), found[1](x)) < 1e-12
        assert distance(found[0](x), decode(found[0].spec, plain(found[0]), x.numpy())) < 1e-10
        assert distance(found[0](x), shaken(experiment())(x)) > 1e-3


def test_scores_and_weights_keep_the_dtype():
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        _, scores, weights = outputs(experiment(kernel="eager", dtype=dtype), ("scores", "weights"))
        assert scores.dtype == weights.dtype == getattr(torch, dtype)
