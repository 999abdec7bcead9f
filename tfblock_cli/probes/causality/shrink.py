"""Shrink: a small model of the same kind, so that every cut of a large one's architecture can be tried."""

from typing import Any

from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.settings import Declaration

ABOVE = 20_000_000
"""Parameters. Full coverage of a smaller model takes seconds."""
KV_HEADS, D_HEAD, LAYERS, VOCAB, WINDOW = 2, 8, 4, 61, 7


def shrunk(model: ModelSpec) -> ModelSpec:
    """The same kinds, patterns and ratios (query to key-value heads, FFN to model width) in small.

    Layers that differ are all kept: overrides name them by their numbers.
    """
    table = model.model_dump()
    attention = table["attention"]
    H, K, E = attention["n_heads"], attention["n_kv_heads"], attention["d_head"]
    kv_heads = min(K, KV_HEADS)
    d_head = min(E, D_HEAD)
    n_heads = H // K * kv_heads
    d_model = max(round(model.d_model / (H * E) * n_heads * d_head), 2)
    table |= {
        "d_model": d_model,
        "n_layers": model.n_layers if model.layers else min(model.n_layers, LAYERS),
        "vocab_size": min(model.vocab_size, VOCAB),
        "attention": _windows(attention) | {"n_heads": n_heads, "n_kv_heads": kv_heads, "d_head": d_head},
        "ffn": _widths(table["ffn"], d_model / model.d_model),
        "layers": [_layer(layer, d_model / model.d_model) for layer in table["layers"]],
    }
    return ModelSpec.model_validate(table)


def shrunk_declaration(declare: Declaration) -> Declaration:
    """The same declaration with the windows of the small model."""
    table = declare.model_dump()
    return type(declare).model_validate(_window(table))


def _layer(layer: dict[str, Any], factor: float) -> dict[str, Any]:
    changed = dict(layer)
    if changed.get("attention"):
        changed["attention"] = _windows(changed["attention"])
    if isinstance(changed.get("ffn"), dict):
        changed["ffn"] = _widths(changed["ffn"], factor)
    return changed


def _windows(attention: dict[str, Any]) -> dict[str, Any]:
    pattern = attention.get("pattern")
    return attention | {"pattern": _window(pattern)} if isinstance(pattern, dict) else attention


def _window(pattern: dict[str, Any]) -> dict[str, Any]:
    """Windows, prefixes and documents no longer than what a small length exceeds through all layers."""
    small = {key: min(value, WINDOW) if key in ("window", "length") else value for key, value in pattern.items()}
    if lengths := small.get("lengths"):
        small["lengths"] = [min(length, WINDOW + index) for index, length in enumerate(lengths)]
    return small


def _widths(ffn: dict[str, Any], factor: float) -> dict[str, Any]:
    """Its hidden widths, whatever they are called, in the same ratio to the model's."""
    return {
        key: max(round(value * factor), 1)
        if key.startswith("d_")
        else _widths(value, factor)
        if isinstance(value, dict)
        else value
        for key, value in ffn.items()
    }
