"""Attention: which tokens look at which, with how many heads."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from tfblock_cli.spec.base import Axis, Count, Kind, Spec, derived
from tfblock_cli.spec.norm import NoNorm, OptionalNorm
from tfblock_cli.spec.size import INPUT, Letters, Saved, Size, StageSpec, Weight, fused_linear, linear


class Causal(Kind):
    """A query sees itself and the keys before it."""

    kind: Literal["causal"] = "causal"

    def allows(self, query: Any, key: Any) -> Any:
        """Whether the query at an index may see the key at an index; also on tensors of indices."""
        return key <= query

    def visible_pairs(self, seq_len: int) -> int:
        """T (T + 1) / 2."""
        return seq_len * (seq_len + 1) // 2


class Bidirectional(Kind):
    """A query sees every key: an encoder, and the negative control of ``causality``."""

    kind: Literal["bidirectional"] = "bidirectional"

    def allows(self, query: Any, key: Any) -> Any:
        """Always, in the shape of the indices."""
        return key == key  # elementwise True, for tensors too

    def visible_pairs(self, seq_len: int) -> int:
        """T²."""
        return seq_len**2


Pattern = Annotated[Causal | Bidirectional, Axis("causal")]


class Attention(Spec):
    """softmax(q kᵀ / sqrt(E)) v per head, K key-value heads shared by H query heads.

    K = H is multi-head (MHA), 1 < K < H grouped-query (GQA), K = 1 multi-query attention (MQA).

    Attributes:
        n_heads: H.
        n_kv_heads: K; H unless given.
        d_head: E; D / H unless given.
        bias: Whether the q, k and v projections have biases; ``model.bias`` unless given.
        out_bias: Whether the output projection has one; ``model.bias`` unless given.
        qk_norm: A norm over each head's q and k before they meet.
        pattern: Which (query, key) pairs are visible.
    """

    n_heads: Count
    n_kv_heads: Count = derived("n_heads")
    d_head: Count = derived("d_model / n_heads")
    bias: bool = derived("model.bias")
    out_bias: bool = derived("model.bias")
    qk_norm: OptionalNorm = NoNorm()
    pattern: Pattern = Causal()

    @property
    def sizes(self) -> tuple[Size, Size, Size]:
        """H, K, E. Without grouping K is written H, so that formulas read as one expects."""
        H = Size(self.n_heads, "H")
        return H, H if self.n_kv_heads == self.n_heads else Size(self.n_kv_heads, "K"), Size(self.d_head, "E")

    def weights(self, d_model: Size) -> Iterator[Weight]:
        """One fused q, k, v projection of width (H + 2K)·E, the optional q and k norms, the output projection."""
        H, K, E = self.sizes
        width = (H + 2 * K) * E if K is not H else 3 * H * E
        yield from fused_linear("qkv", {"q": H * E, "k": K * E, "v": K * E}, d_model, width, bias=self.bias)
        yield from self.qk_norm.weights("q_norm", E)
        yield from self.qk_norm.weights("k_norm", E)
        yield from linear("out", "out", H * E, d_model, bias=self.out_bias)

    def stages(self, letters: Letters) -> Iterator[StageSpec]:
        """From the head split to the output projection."""
        B, T, S, D = letters.B, letters.T, letters.S, letters.D
        H, K, E = self.sizes
        yield StageSpec(name="q", shape=(B, H, T, E), inner=D)
        yield StageSpec(name="k", shape=(B, K, S, E), inner=D)
        yield StageSpec(name="v", shape=(B, K, S, E), inner=D)
        yield StageSpec(name="scores", shape=(B, H, T, S), inner=E, over_pairs=True, fused=True, masked=True)
        yield StageSpec(name="weights", shape=(B, H, T, S), fused=True)
        yield StageSpec(name="context", shape=(B, H, T, E), inner=S, over_pairs=True)
        yield StageSpec(name="merged", shape=(B, T, H * E))
        yield StageSpec(name="out", shape=(B, T, D), inner=H * E)

    def saved(self, letters: Letters, width: int, *, turned: bool, fused: bool) -> Iterator[Saved]:
        """The input of every matrix and norm, and what softmax needs. The tables of masks and angles are shared.

        Args:
            letters: B, T, S and D.
            width: Bytes per element.
            turned: Whether the positions turn q and k, which makes tensors of their own of them.
            fused: By the sdpa kernel; else the eager one.
        """
        B, T, S, D = letters.B, letters.T, letters.S, letters.D
        H, K, E = self.sizes
        q = Saved(name="q", shape=(B, T, H, E), width=width)
        k = Saved(name="k", shape=(B, S, K, E), width=width)
        # q, k and v start as views of one tensor, which is kept whole as soon as one of them is
        qkv = Saved(name="qkv", shape=(B, T, H + 2 * K, E), width=width)
        yield Saved(name=INPUT, shape=(B, T, D), width=width)
        for part in (q, k):
            for saved in self.qk_norm.saved(part.shape, width):
                yield qkv if saved.name == INPUT else replace(saved, name=f"{part.name}_norm.{saved.name}")
        views = not turned and isinstance(self.qk_norm, NoNorm)
        if fused:
            yield from (qkv,) if views else (qkv, q, k)
            yield Saved(name="logsumexp", shape=(B, H, T), width=max(width, 4))
        else:
            # a batch of matrices has one dimension: (B, H) merge without a copy only if one of them is 1
            yield qkv if views and 1 in (B, H) else q
            yield Saved(name="k_repeated", shape=(B, H, S, E), width=width)
            yield Saved(name="v_repeated", shape=(B, H, S, E), width=width)
            yield Saved(name="weights", shape=(B, H, T, S), width=width)
        yield Saved(name="merged", shape=(B, T, H, E), width=width)
