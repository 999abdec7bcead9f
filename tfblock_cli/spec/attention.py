"""Attention: which tokens look at which, with how many heads."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tfblock_cli.spec.base import Axis, Count, Items, Kind, Spec, derived, fault
from tfblock_cli.spec.norm import NoNorm, OptionalNorm
from tfblock_cli.spec.size import INPUT, Letters, Saved, Size, StageSpec, Weight, fused_linear, linear


class Visibility(Kind):
    """Which keys a query sees: a predicate on their indices, counted from the first token of a sequence.

    Every query sees itself.
    """

    def allows(self, query: Any, key: Any) -> Any:
        """Whether the query at an index may see the key at an index; also on tensors of indices."""
        raise NotImplementedError

    def visible_pairs(self, seq_len: int) -> int:
        """How many (query, key) pairs of a sequence are visible."""
        raise NotImplementedError

    @property
    def reach(self) -> int | None:
        """No query sees a key that is ``reach`` or more tokens before it; None: it may see the first one."""
        return None

    @property
    def mutual(self) -> int | None:
        """So many tokens from the first one see each other, in both directions; None: all of them."""
        return 1

    @property
    def is_causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.mutual == 1


class Causal(Visibility):
    """A query sees itself and the keys before it."""

    kind: Literal["causal"] = "causal"

    def allows(self, query: Any, key: Any) -> Any:
        """Key <= query."""
        return key <= query

    def visible_pairs(self, seq_len: int) -> int:
        """T (T + 1) / 2."""
        return _triangle(seq_len)


class SlidingWindow(Visibility):
    """Query i sees the keys i - W + 1 .. i: itself and W - 1 before it (Mistral 7B, arXiv:2310.06825).

    Attributes:
        window: W.
    """

    kind: Literal["sliding_window"] = "sliding_window"
    window: Count

    def allows(self, query: Any, key: Any) -> Any:
        """Query - W < key <= query."""
        return (key <= query) & (key > query - self.window)

    def visible_pairs(self, seq_len: int) -> int:
        """The triangle without the triangle of what lies W and more tokens back."""
        return _triangle(seq_len) - _triangle(max(seq_len - self.window, 0))

    @property
    def reach(self) -> int:
        """W."""
        return self.window


class Prefix(Visibility):
    """The first P tokens see each other, in both directions; the rest is causal (prefix LM, arXiv:1910.10683).

    Attributes:
        length: P.
    """

    kind: Literal["prefix"] = "prefix"
    length: Count

    def allows(self, query: Any, key: Any) -> Any:
        """Key <= query, or key < P."""
        return (key <= query) | (key < self.length)

    def visible_pairs(self, seq_len: int) -> int:
        """The triangle, and the pairs of the prefix that look ahead."""
        return _triangle(seq_len) + _triangle(min(self.length, seq_len) - 1)

    @property
    def mutual(self) -> int:
        """P."""
        return self.length


def _some(lengths: Any) -> Any:
    if lengths in ([], ()):
        raise fault("needs the length of at least one document", "")
    return lengths


class Documents(Visibility):
    """Documents packed into one sequence: a token sees itself and the earlier tokens of its own document.

    Positions count on through the whole sequence; they do not start anew with a document.

    Attributes:
        lengths: Tokens of each document, again and again until the sequence ends: [5, 7] is 5, 7, 5, 7, ...
    """

    kind: Literal["documents"] = "documents"
    lengths: Annotated[Items[Count], Field(min_length=1), BeforeValidator(_some)]

    def allows(self, query: Any, key: Any) -> Any:
        """Key <= query, in the same document."""
        return (key <= query) & (self.document(key) == self.document(query))

    def document(self, index: Any) -> Any:
        """Which document, 0, 1, ..., the token at an index belongs to; also on tensors of indices."""
        *starts, period = accumulate(self.lengths)
        place = index % period
        return index // period * len(self.lengths) + sum(place >= start for start in starts)

    def visible_pairs(self, seq_len: int) -> int:
        """A triangle for each document; the last one may be cut short."""
        rounds, rest = divmod(seq_len, sum(self.lengths))
        pairs = rounds * sum(map(_triangle, self.lengths))
        for length in self.lengths:
            pairs += _triangle(min(length, rest))
            rest = max(rest - length, 0)
        return pairs

    @property
    def reach(self) -> int:
        """The longest document's length."""
        return max(self.lengths)


class Bidirectional(Visibility):
    """A query sees every key: an encoder, and the negative control of ``causality``."""

    kind: Literal["bidirectional"] = "bidirectional"

    def allows(self, query: Any, key: Any) -> Any:
        """Always, in the shape of the indices."""
        return key == key  # elementwise True, for tensors too

    def visible_pairs(self, seq_len: int) -> int:
        """T²."""
        return seq_len**2

    @property
    def mutual(self) -> None:
        """All tokens."""
        return None


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


Pattern = Annotated[Causal | SlidingWindow | Prefix | Documents | Bidirectional, Axis("causal")]


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
        inner_norm: A norm over all heads together before the output projection; ``model.norm`` for the norm
            placement subln, none for the others, unless given.
        pattern: Which (query, key) pairs are visible.
    """

    n_heads: Count
    n_kv_heads: Count = derived("n_heads")
    d_head: Count = derived("d_model / n_heads")
    bias: bool = derived("model.bias")
    out_bias: bool = derived("model.bias")
    qk_norm: OptionalNorm = NoNorm()
    inner_norm: OptionalNorm = NoNorm()
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
        yield from self.inner_norm.weights("inner_norm", H * E)
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
        if not isinstance(self.inner_norm, NoNorm):
            yield StageSpec(name="inner_norm", shape=(B, T, H * E))
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
            if not isinstance(self.pattern, Causal | Bidirectional):  # those two the kernel knows by itself
                yield Saved(name="mask", shape=(T, S), width=width)
        else:
            # a batch of matrices has one dimension: (B, H) merge without a copy only if one of them is 1
            yield qkv if views and 1 in (B, H) else q
            yield Saved(name="k_repeated", shape=(B, H, S, E), width=width)
            yield Saved(name="v_repeated", shape=(B, H, S, E), width=width)
            yield Saved(name="weights", shape=(B, H, T, S), width=width)
        if fused:  # the kernel keeps what it puts out
            yield Saved(name="merged", shape=(B, T, H, E), width=width)
        yield from self.inner_norm.saved_before("merged", (B, T, H * E), width)
