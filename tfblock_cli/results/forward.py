"""What ``forward`` answers: the shape and the statistics of every stage."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One named point of the computation.

    Attributes:
        name: Its place in the model, such as ``blocks.0.attention.scores``.
        symbolic: The shape in letters, such as ("B", "H", "T", "S").
        shape: The shape that was seen.
        dtype: Of the tensor.
        bytes: Of the tensor.
        mean: None where there are no numbers (meta device, token ids, a stage that a kernel fused away).
        std: Population standard deviation.
        absmax: The largest absolute value.
        finite: Whether every value is; masked scores are left out (their -inf is on purpose).
        note: Why the figures are missing or partial: "visible entries only", "fused, not stored", ...
    """

    name: str
    symbolic: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    mean: float | None
    std: float | None
    absmax: float | None
    finite: bool | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWeights:
    """The attention weights of one head: ``weights[t][s]`` of the first sequence of the batch."""

    layer: int
    head: int
    weights: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardData:
    """The answer of ``forward``.

    Attributes:
        letters: What each letter of the symbolic shapes is worth here, such as {"B": 1, "T": 10}.
        input_shape: Of the ids (B, T) or of the vectors (B, T, D).
        output_shape: Of the logits (B, T, V) or of the stack's output (B, T, D).
        stages: In the order of the computation.
        head: The head that ``--head`` asked for, or None.
    """

    letters: dict[str, int]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    stages: tuple[StageRow, ...]
    head: HeadWeights | None
