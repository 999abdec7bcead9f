"""A whole decoder in plain numpy, written from the formulas: the second way to every number of the modules.

It reads the same weights by name and shares no code with the package but the specs' plain keys.
"""

from itertools import cycle
from math import erf, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfblock_cli.spec.model import BlockSpec, ModelSpec
from tfblock_cli.spec.norm import OptionalNorm

Array = NDArray[np.float64]
Weights = dict[str, Array]


def decode(model: ModelSpec, weights: Weights, x: Array, *, start: int = 0, wrong_scale: bool = False) -> Array:
    """Ids (B, T) to logits (B, T, V), or (B, T, D) to (B, T, D).

    Args:
        model: What it is.
        weights: By name.
        x: Ids or vectors.
        start: Position of the first token, for rope.
        wrong_scale: Divide scores by sqrt(D) and not by sqrt(E), which is a mistake.
    """
    if model.vocab_size:
        x = weights["embed.weight"][x]
    if model.position.kind == "learned":
        x = x + weights["position.weight"][: x.shape[1]]
    for block in model.blocks():
        own = {
            name.removeprefix(f"blocks.{block.index}."): value
            for name, value in weights.items()
            if name.startswith(f"blocks.{block.index}.")
        }
        x = decode_block(block, own, x, start=start, wrong_scale=wrong_scale)
    if "final_norm.weight" in weights:
        x = normalize(model.norm, weights, "final_norm", x)
    if model.vocab_size:
        head = weights["embed.weight" if model.tie_embeddings else "head.weight"]
        x = x @ head.T + weights.get("head.bias", np.zeros(1))
    return x


def decode_block(block: BlockSpec, weights: Weights, x: Array, *, start: int = 0, wrong_scale: bool = False) -> Array:
    """One block."""

    def N(name: str, x: Array) -> Array:
        return normalize(block.norm, weights, f"norms.{name}", x)

    def attn(x: Array) -> Array:
        return attention(block, weights, x, start=start, wrong_scale=wrong_scale)

    def mlp(x: Array) -> Array:
        return ffn(block, weights, x)

    kind, l, L = block.norm_placement.kind, block.index + 1, block.n_layers  # noqa: E741
    if kind == "mixln":
        kind = "post" if l <= L // 4 else "pre"
    match kind:
        case "pre":
            x = x + attn(N("attention", x))
            return x + mlp(N("ffn", x))
        case "post":
            x = N("attention", x + attn(x))
            return N("ffn", x + mlp(x))
        case "sandwich":
            x = x + N("attention_out", attn(N("attention_in", x)))
            return x + N("ffn_out", mlp(N("ffn_in", x)))
        case "reordered":
            x = x + N("attention", attn(x))
            return x + N("ffn", mlp(x))
        case "deepnorm":
            alpha = (2 * L) ** (1 / 4)
            x = N("attention", alpha * x + attn(x))
            return N("ffn", alpha * x + mlp(x))
        case "parallel":
            shared = "norms.shared.weight" in weights
            return x + attn(N("shared" if shared else "attention", x)) + mlp(N("shared" if shared else "ffn", x))
        case "lns":
            x = x + attn(N("attention", x) / np.sqrt(l))
            return x + mlp(N("ffn", x) / np.sqrt(l))
        case "b2t":
            a = N("attention", x + attn(x))
            return N("ffn", x + a + mlp(a))
        case "layerscale":
            x = x + weights["scales.attention.weight"] * attn(N("attention", x))
            return x + weights["scales.ffn.weight"] * mlp(N("ffn", x))
        case "subln":
            x = x + attn(N("attention", x))
            return x + mlp(N("ffn", x))
        case "none":
            x = x + attn(x)
            return x + mlp(x)
    raise AssertionError(f"no formula for {kind}")


def normalize(norm: OptionalNorm, weights: Weights, name: str, x: Array) -> Array:
    """LayerNorm or RMSNorm over the last dimension."""
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias", np.zeros(1))
    assert norm.kind != "none"
    if norm.kind == "layernorm":
        x = x - x.mean(-1, keepdims=True)
    size: Array = np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps)
    return x / size * weight + bias


def attention(block: BlockSpec, weights: Weights, x: Array, *, start: int = 0, wrong_scale: bool = False) -> Array:
    """One head after the other, one query after the other."""
    spec = block.attention
    H, K, E = spec.n_heads, spec.n_kv_heads, spec.d_head
    B, T, D = x.shape
    W = weights["attention.qkv.weight"]
    b = weights.get("attention.qkv.bias", np.zeros(len(W)))
    out = np.zeros((B, T, H * E))
    for h in range(H):
        kv = h * K // H
        rows_q = slice(h * E, (h + 1) * E)
        rows_k = slice((H + kv) * E, (H + kv + 1) * E)
        rows_v = slice((H + K + kv) * E, (H + K + kv + 1) * E)
        q, k, v = (x @ W[rows].T + b[rows] for rows in (rows_q, rows_k, rows_v))
        if spec.qk_norm.kind != "none":
            q = normalize(spec.qk_norm, weights, "attention.q_norm", q)
            k = normalize(spec.qk_norm, weights, "attention.k_norm", k)
        if block.position.kind == "rope":
            q, k = (turn(part, block.position.theta, start) for part in (q, k))
        for t in range(T):
            seen = visible_keys(spec.pattern.model_dump(), t, T)
            scores = np.einsum("be,bse->bs", q[:, t], k[:, seen]) / np.sqrt(D if wrong_scale else E)
            probabilities = np.exp(scores - scores.max(-1, keepdims=True))
            probabilities /= probabilities.sum(-1, keepdims=True)
            out[:, t, h * E : (h + 1) * E] = np.einsum("bs,bse->be", probabilities, v[:, seen])
    if spec.inner_norm.kind != "none":
        out = normalize(spec.inner_norm, weights, "attention.inner_norm", out)
    return out @ weights["attention.out.weight"].T + weights.get("attention.out.bias", np.zeros(1))


def visible_keys(pattern: dict[str, Any], t: int, T: int) -> list[int]:
    """The keys that query t of T sees."""
    match pattern["kind"]:
        case "causal":
            return list(range(t + 1))
        case "sliding_window":
            return list(range(max(0, t - pattern["window"] + 1), t + 1))
        case "prefix":
            return list(range(min(T, max(t + 1, pattern["length"]))))
        case "documents":
            first, lengths = 0, cycle(pattern["lengths"])
            while (after := first + next(lengths)) <= t:
                first = after
            return list(range(first, t + 1))
        case "bidirectional":
            return list(range(T))
        case _:
            raise AssertionError(f"no formula for {pattern}")


def turn(x: Array, theta: float, start: int) -> Array:
    """Features i and i + E/2 as a complex number, multiplied by exp(i t theta^(-2i/E))."""
    T, E = x.shape[-2:]
    plane = x[..., : E // 2] + 1j * x[..., E // 2 :]
    for t in range(T):
        for i in range(E // 2):
            plane[:, t, i] *= np.exp(1j * (start + t) / theta ** (2 * i / E))
    return np.concatenate((plane.real, plane.imag), -1)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x * (1 + np.tanh(x / 2)) / 2,  # x · sigmoid(x), without an overflow
}


def ffn(block: BlockSpec, weights: Weights, x: Array) -> Array:
    """down(activation(up x)) or down(activation(gate x) · up x)."""

    def linear(name: str, x: Array) -> Array:
        if name == "down" and block.ffn.inner_norm.kind != "none":
            x = normalize(block.ffn.inner_norm, weights, "ffn.inner_norm", x)
        return x @ weights[f"ffn.{name}.weight"].T + weights.get(f"ffn.{name}.bias", np.zeros(1))

    match block.ffn.kind:
        case "mlp":
            return linear("down", ACTIVATIONS[block.ffn.activation](linear("up", x)))
        case "swiglu":
            return linear("down", ACTIVATIONS["silu"](linear("gate", x)) * linear("up", x))
        case "geglu":
            return linear("down", ACTIVATIONS["gelu"](linear("gate", x)) * linear("up", x))
    raise AssertionError(f"no formula for {block.ffn.kind}")
