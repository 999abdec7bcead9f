"""What ``params`` answers: parameters, FLOPs (2 per multiply-add) and bytes, as exact integers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRow:
    """One parameter tensor (of every layer of a group): its name, symbolic and concrete shape, and count."""

    name: str
    symbolic: tuple[str, ...]
    shape: tuple[int, ...]
    count: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One kind of part over the whole model. The counts of all components add up to the total.

    Attributes:
        name: embedding, position, attention, ffn, norms, final_norm or head.
        count: Its parameters; 0 where it borrows its weights (``tied_to``).
        weights: Those of the count in matrices and gains.
        biases: The rest of the count.
        formula: The count in the letters of the model (D, H, K, E, F, L, V, P).
        share: Its part of the total, between 0 and 1.
        tied_to: The component whose weights it uses, or None.
    """

    name: str
    count: int
    weights: int
    biases: int
    formula: str
    share: float
    tied_to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that are alike: ``layers`` such as "0-11", how many (``n``), and the counts of ONE of them."""

    layers: str
    n: int
    attention: int
    ffn: int
    norms: int
    total: int
    weights: tuple[WeightRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFlops:
    """The matrix multiplications of one stage over the whole model, forward."""

    name: str
    formula: str
    dense: int
    visible: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """FLOPs of the experiment's input (B, T): 2 per multiply-add, matrix multiplications only.

    Attributes:
        batch_size: B.
        seq_len: T.
        dense: The forward pass, with the full T x T attention square.
        visible: The forward pass, with only the (query, key) pairs that the pattern lets see each other.
        backward_dense: Twice the forward: one multiplication for the input's gradient, one for the weight's.
        backward_visible: Likewise over visible pairs.
        train_dense: Forward and backward.
        train_visible: Likewise over visible pairs.
        per_token_dense: The dense forward pass divided by B T (rounded down).
        stages: The same by stage; the column ``dense`` adds up to ``dense``.
    """

    batch_size: int
    seq_len: int
    dense: int
    visible: int
    backward_dense: int
    backward_visible: int
    train_dense: int
    train_visible: int
    per_token_dense: int
    stages: tuple[StageFlops, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes. Weights, gradients and cache in the experiment's dtype; AdamW's two moments likewise.

    Attributes:
        dtype: The experiment's dtype.
        bytes_per_element: Its width.
        weights: Every parameter once.
        gradients: One per parameter.
        adamw: Two moments per parameter.
        logits: B T V elements (0 without a vocabulary).
        activations: What autograd keeps for one backward pass through the blocks at (B, T), without the loss.
        kv_cache_per_token: Keys and values of one token of one sequence, over all layers.
        kv_cache: The same for B sequences of max_seq_len tokens; a sliding window keeps its own tokens alone.
    """

    dtype: str
    bytes_per_element: int
    weights: int
    gradients: int
    adamw: int
    logits: int
    activations: int
    kv_cache_per_token: int
    kv_cache: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The account held against the built model, name by name."""

    tensors: int
    parameters: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamsData:
    """The answer of ``params``.

    Attributes:
        total: Parameters, tied weights once.
        total_without_embeddings: Without the token table and the position table. A tied head is the token
            table; an untied head counts.
        total_without_positions: Without the position table alone.
        by_path: Parameters counted once per place of use: tied weights twice.
        active: Parameters that take part for one token; the total, unless experts are chosen.
        components: Rows that add up to the total.
        per_layer: Groups of equal layers.
        flops: Of the experiment's input.
        memory: In bytes.
        verified: What ``--verify`` found; None when it was not asked.
    """

    total: int
    total_without_embeddings: int
    total_without_positions: int
    by_path: int
    active: int
    components: tuple[Component, ...]
    per_layer: tuple[LayerGroup, ...]
    flops: Flops
    memory: Memory
    verified: Verification | None
