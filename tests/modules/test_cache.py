"""A key-value cache: any chunks, one after the other, give what the whole sequence gives."""

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.modules.models import EVERY_PATTERN, distance, experiment, inputs, shaken
from tfblock_cli.modules.cache import Cache
from tfblock_cli.modules.chunk import Chunk
from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.spec.attention import SlidingWindow
from tfblock_cli.spec.experiment import Experiment

T = 11
SCHEDULES = {
    "token by token": [1] * T,
    "prefill and steps": [6, 1, 1, 1, 1, 1],
    "uneven": [4, 2, 5],
    "longer than a window": [5, 5, 1],
    "all at once": [T],
}
CACHED = [pattern for pattern in EVERY_PATTERN if pattern.mutual is not None]


def fed(decoder: Decoder, x: Tensor, schedule: list[int], padding: Tensor | None = None) -> tuple[Tensor, Cache]:
    """What the decoder makes of x in chunks, and the cache afterwards."""
    cache = decoder.new_cache(len(x))
    stops = list(accumulate(schedule))
    chunks = [x[:, stop - length : stop] for stop, length in zip(stops, schedule, strict=True)]
    with torch.no_grad():
        first = decoder(chunks[0], cache=cache, padding=padding)
        return torch.cat([first, *(decoder(chunk, cache=cache) for chunk in chunks[1:])], dim=1), cache


def asked(**keys: Any) -> Experiment:
    defaults: dict[str, Any] = {"attention": {"n_heads": 4, "n_kv_heads": 2}, "vocab_size": 11}
    return experiment(**defaults | keys)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("position", ["none", "learned", "rope"])
@pytest.mark.parametrize("pattern", CACHED, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_chunks_equal_the_whole(kernel, position, pattern, schedule):
    """Every kind of position and every pattern that allows a cache; the first chunk holds the whole prefix."""
    attention = {"n_heads": 4, "n_kv_heads": 2, "pattern": pattern.model_dump()}
    decoder = shaken(asked(kernel=kernel, position=position, attention=attention))
    x, lengths = inputs(asked(), 3, T), SCHEDULES[schedule]
    prefix = min(pattern.mutual, T)
    if lengths[0] < prefix:
        lengths = [prefix, *([1] * (T - prefix))]
    with torch.no_grad():
        whole = decoder(x)
    found, cache = fed(decoder, x, lengths)
    assert distance(found, whole) < 1e-12
    assert cache.n_tokens == T


@pytest.mark.parametrize(
    "model",
    [
        {"attention": {"n_heads": 4, "n_kv_heads": 1}},
        {"attention": {"n_heads": 4, "qk_norm": "rmsnorm"}},
        {"vocab_size": 0},
        {"norm_placement": "parallel"},
        {"norm_placement": "post", "norm": "layernorm", "bias": True},
        {"layers": [{"at": "::2", "attention": {"pattern": {"kind": "sliding_window", "window": 3}}}]},
        {"layers": [{"at": [1], "attention": {"n_kv_heads": 1, "d_head": 2}}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_other_models(model, kernel):
    decoder, x = shaken(asked(kernel=kernel, **model)), inputs(asked(**model), 2, T)
    with torch.no_grad():
        whole = decoder(x)
    for schedule in SCHEDULES.values():
        assert distance(fed(decoder, x, schedule)[0], whole) < 1e-12


@pytest.mark.parametrize(
    "fault", ["positions start anew", "a window that keeps too few", "the newest key hidden", "no past"]
)
def test_a_broken_cache_is_noticed(fault, monkeypatch):
    pattern = {"kind": "sliding_window", "window": 3}
    decoder = shaken(asked(position="learned", attention={"n_heads": 4, "pattern": pattern}))
    x = inputs(asked(), 2, T)
    with torch.no_grad():
        whole = decoder(x)
    assert distance(fed(decoder, x, [4, 2, 5])[0], whole) < 1e-12
    match fault:
        case "positions start anew":
            once = Chunk.positions
            monkeypatch.setattr(Chunk, "positions", lambda self, n, device: once(Chunk(), n, device))
        case "a window that keeps too few":
            monkeypatch.setattr(SlidingWindow, "reach", 1)  # W - 1 earlier ones would do
        case "the newest key hidden":
            seen = Chunk.visible
            monkeypatch.setattr(
                Chunk, "visible", lambda self, p, q, k, device: seen(self, p, q, k, device).roll(-1, -1)
            )
        case _:
            monkeypatch.setattr(Chunk, "with_past", lambda self, layer, k, v: (k, v))
    assert distance(fed(decoder, x, [4, 2, 5])[0], whole) > 1e-3


def test_a_pass_without_a_cache_has_the_very_bits_of_one_with_an_empty_cache():
    for kernel in ("sdpa", "eager"):
        decoder, x = shaken(asked(kernel=kernel)), inputs(asked(), 2, T)
        with torch.no_grad():
            assert torch.equal(decoder(x, cache=decoder.new_cache(2)), decoder(x))


def test_a_window_keeps_its_own_tokens_alone():
    pattern = {"kind": "sliding_window", "window": 3}
    decoder, x = shaken(asked(attention={"n_heads": 4, "pattern": pattern})), inputs(asked(), 2, T)
    full = shaken(asked(attention={"n_heads": 4}))
    sizes = {length: [fed(one, x[:, :length], [length])[1].bytes for one in (decoder, full)] for length in (1, 3, 4, T)}
    per_token = 2 * 2 * 2 * 24 * 8  # layers, keys and values, sequences, width, bytes
    assert sizes == {length: [per_token * min(length, 3), per_token * length] for length in sizes}


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_gradients_flow_through_the_cache(kernel):
    decoder, x = shaken(experiment(kernel=kernel)), inputs(experiment(), 2, T).requires_grad_()
    cache = decoder.new_cache(2)
    chunked = torch.cat([decoder(chunk, cache=cache) for chunk in x.split([4, 2, 5], dim=1)], dim=1)
    cotangent = inputs(experiment(), 2, T).roll(1, 0)
    found, expected = (torch.autograd.grad(y, x, cotangent)[0] for y in (chunked, decoder(x)))
    assert distance(found, expected) < 1e-12


@pytest.mark.parametrize("position", ["none", "learned", "rope"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("pattern", CACHED, ids=str)
def test_padded_sequences_may_be_cached(position, kernel, pattern):
    attention = {"n_heads": 4, "n_kv_heads": 2, "pattern": pattern.model_dump()}
    decoder = shaken(asked(kernel=kernel, position=position, attention=attention))
    x, padding = inputs(asked(), 3, T), torch.tensor([0, 2, 5])
    with torch.no_grad():
        whole = decoder(x, padding=padding)
    for first in (1, 4, 8) if pattern.is_causal else {min(pattern.mutual + 5, T)}:  # behind the padding a whole prefix
        rest = [length for length in (min(2, T - first), T - 2 - first) if length > 0]
        assert distance(fed(decoder, x, [first, *rest], padding)[0], whole) < 1e-12


def test_a_pass_that_fails_leaves_no_trace():
    decoder, x = shaken(asked()), inputs(asked(), 2, T)
    with torch.no_grad():
        whole = decoder(x)
        cache = decoder.new_cache(2)
        found = [decoder(x[:, :4], cache=cache)]

        def fail(module: object, given: object) -> None:
            raise KeyboardInterrupt

        handle = decoder.blocks[1].register_forward_pre_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            decoder(x[:, 4:6], cache=cache)
        handle.remove()
        found.append(decoder(x[:, 4:], cache=cache))
    assert distance(torch.cat(found, dim=1), whole) < 1e-12


def test_what_cannot_be_cached_is_refused_in_words():
    def decoder(pattern: Any, **keys: Any) -> Decoder:
        return shaken(asked(attention={"n_heads": 4, "pattern": pattern}, **keys))

    x = inputs(asked(), 2, T)
    with pytest.raises(ValueError, match="no cache for the pattern bidirectional of layer 0"):
        decoder("bidirectional").new_cache(2)
    causal = decoder("causal", max_seq_len=8)
    with pytest.raises(ValueError, match="a batch of 3, not of 2"):
        causal(x[:, :4], cache=causal.new_cache(3))
    cache = causal.new_cache(2)
    causal(x[:, :6], cache=cache)
    with pytest.raises(ValueError, match="9 tokens are more than max_seq_len = 8"):
        causal(x[:, 6:9], cache=cache)
    with pytest.raises(ValueError, match="told with the first chunk"):
        causal(x[:, 6:7], cache=cache, padding=torch.tensor([0, 1]))
    prefix = decoder({"kind": "prefix", "length": 4})
    cache = prefix.new_cache(2)
    prefix(x[:, :3], cache=cache)
    with pytest.raises(ValueError, match="must hold the whole prefix, 4 tokens"):
        prefix(x[:, 3:], cache=cache)
