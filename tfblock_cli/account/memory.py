"""Bytes: weights, gradients, optimizer, activations and cache, from the spec alone."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from tfblock_cli.account.weights import groups, total
from tfblock_cli.results.params import Memory
from tfblock_cli.spec.attention import Bidirectional, Causal
from tfblock_cli.spec.experiment import BYTES, Experiment
from tfblock_cli.spec.model import BlockSpec
from tfblock_cli.spec.norm_placement import Branch, Function
from tfblock_cli.spec.position import RoPE
from tfblock_cli.spec.size import INPUT, Letters, Saved, StageSpec, Weight


class _Tensor:
    """A tensor of the stream without its numbers: what counts is which one it is.

    Sums, and products with a number, are new tensors that keep neither operand for the backward pass.
    """

    def __add__(self, other: object) -> "_Tensor":
        return _Tensor()

    __mul__ = __rmul__ = __truediv__ = __add__


class _Tape:
    """What autograd keeps, each tensor once, while a placement's formula runs on a ``_Tensor``."""

    def __init__(self) -> None:
        self._kept: dict[_Tensor | tuple[_Tensor, str], int] = {}

    @property
    def bytes(self) -> int:
        """Of all that was kept."""
        return sum(self._kept.values())

    def passing(self, saved: Iterable[Saved]) -> Function:
        """A function that keeps these tensors for its backward pass."""
        sizes = {tensor.name: tensor.bytes for tensor in saved}

        def visit(x: _Tensor) -> _Tensor:
            out = _Tensor()
            self._kept.update({x if name == INPUT else (out, name): size for name, size in sizes.items()})
            return out

        return visit

    def branches(self, block: BlockSpec, letters: Letters, width: int, *, fused: bool) -> tuple[Branch, Branch]:
        """Attention and FFN of a block, as its placement sees them."""
        stream = (letters.B, letters.T, letters.D)
        turned = isinstance(block.position, RoPE)
        parts = (block.attention.saved(letters, width, turned=turned, fused=fused), block.ffn.saved(letters, width))
        attention, ffn = (
            Branch(
                f=self.passing(saved),
                norms=tuple(self.passing(block.norm.saved(stream, width)) for _ in norms),
                out=lambda x: x,
                scale=self.passing([Saved(name=INPUT, shape=stream, width=width)]),
            )
            for saved, norms in zip(parts, block.norm_placement.norm_names(), strict=True)
        )
        return attention, ffn


def activations(experiment: Experiment) -> int:
    """Bytes of the tensors that autograd keeps for one backward pass through all blocks.

    Every storage once. The input of the first block counts where it is kept; parameters and the tables of masks and
    angles (made once for all blocks) do not, nor what the final norm, the head and the loss keep. As torch does it
    on the CPU without dropout, to the byte; fused norms of other devices keep less.
    """
    model, letters = experiment.model, _letters(experiment)
    tape, x = _Tape(), _Tensor()
    for block, layers in groups(model):
        attention, ffn = tape.branches(block, letters, BYTES[experiment.dtype], fused=experiment.kernel == "sdpa")
        for index in layers:
            x = block.norm_placement.block(x, attention, ffn, index + 1, block.n_layers)
    return tape.bytes


def memory(experiment: Experiment) -> Memory:
    """The bytes of training and of serving the experiment's model at its (B, T)."""
    width, model, shape = BYTES[experiment.dtype], experiment.model, experiment.input
    weights = width * total(model)
    kv_width = kv_elements = 0  # of one token, and of a sequence of max_seq_len tokens
    for block, layers in groups(model):
        token = 2 * len(layers) * block.attention.n_kv_heads * block.attention.d_head
        kv_width += token
        kv_elements += token * min(block.attention.pattern.reach or model.max_seq_len, model.max_seq_len)
    return Memory(
        dtype=experiment.dtype,
        bytes_per_element=width,
        weights=weights,
        gradients=weights,
        adamw=2 * weights,
        logits=width * shape.batch_size * shape.seq_len * model.vocab_size,
        activations=activations(experiment),
        kv_cache_per_token=width * kv_width,
        kv_cache=width * kv_elements * shape.batch_size,
    )


def forward_bytes(experiment: Experiment) -> int:
    """No more bytes than these are in use at once while the model is built, run once and looked at stage by stage.

    Statistics are taken in float64, and a stage is let go before the next one comes, so one block decides.
    """
    widest = max(_elements(stage) for stage in _stored_stages(experiment))
    statistics = 3 * FLOAT64 * widest  # the values, and two steps of a formula on them
    run = _tables(experiment) + _largest_block(experiment) + _ends(experiment) + statistics
    drawing = _drawing(_largest_weight(experiment))
    return BYTES[experiment.dtype] * total(experiment.model) + max(drawing, run) + SMALL


def backward_bytes(experiment: Experiment) -> int:
    """No more bytes than these are in use at once while a model is built and run forward and backward.

    Weights, gradients, what autograd keeps, one block at work, and the stream behind every block with its gradient.
    Dropout is off.
    """
    width, weights = BYTES[experiment.dtype], total(experiment.model)
    streams = (2 * width + 3 * FLOAT64) * (experiment.model.n_layers + 1) * _stream(experiment)
    run = _tables(experiment) + activations(experiment) + streams
    run += 2 * _largest_block(experiment) + 2 * _ends(experiment)
    largest = _largest_weight(experiment)
    run += width * (weights + largest)  # gradients, and one that is being added to its place
    return width * weights + max(_drawing(largest), run) + SMALL


def comparison_bytes(experiments: Sequence[Experiment]) -> int:
    """The same while models of one depth are kept, and run one after the other, that share the weights they can.

    Beside the one at work there are the norms of every model, what it put out, and one set of weights for all that
    share them.
    """
    width = BYTES[experiments[0].dtype]
    shared = {experiment.model.shared_weights: experiment.model for experiment in experiments}
    totals = [*map(total, shared.values())]
    norms = sum(
        len(layers) * sum(map(_elements, block.norm_weights()))
        for experiment in experiments
        for block, layers in groups(experiment.model)
    )
    outputs = sum(map(_stream, experiments))
    beside = sum(totals) - max(totals) + norms + outputs
    return max(map(backward_bytes, experiments)) + width * beside


FLOAT64 = 8
SMALL = 2**20
"""Scalars, statistics and whatever else is too small to be counted one by one."""


def _letters(experiment: Experiment) -> Letters:
    return experiment.model.letters(experiment.input.batch_size, experiment.input.seq_len)


def _elements(tensor: StageSpec | Weight) -> int:
    return prod(map(int, tensor.shape))


def _stream(experiment: Experiment) -> int:
    """Elements of the residual stream (B, T, D)."""
    return experiment.input.batch_size * experiment.input.seq_len * experiment.model.d_model


def _largest_weight(experiment: Experiment) -> int:
    """Elements of the largest parameter."""
    tensors = [*experiment.model.outer_weights()]
    for block, _ in groups(experiment.model):
        tensors += block.weights()
    return max(int(tensor.count) for tensor in tensors)


def _drawing(elements: int) -> int:
    """A tensor is drawn in float64, scaled into a second one and then cast."""
    return 2 * FLOAT64 * elements


def _stored(stages: Iterable[StageSpec], experiment: Experiment) -> Iterator[StageSpec]:
    return (stage for stage in stages if not (stage.fused and experiment.kernel == "sdpa"))


def _stored_stages(experiment: Experiment) -> Iterator[StageSpec]:
    """The stages of one block of each group and those outside the blocks, as far as the kernel stores them."""
    letters = _letters(experiment)
    for block, _ in groups(experiment.model):
        yield from _stored(block.stages(letters), experiment)
    yield from experiment.model.outer_stages(letters)


def _largest_block(experiment: Experiment) -> int:
    """A block at work: every stage, and what it would keep for the steps in between."""
    letters, width = _letters(experiment), BYTES[experiment.dtype]
    sizes = []
    for block, (first, *_) in groups(experiment.model):
        tape = _Tape()
        attention, ffn = tape.branches(block, letters, width, fused=experiment.kernel == "sdpa")
        block.norm_placement.block(_Tensor(), attention, ffn, first + 1, block.n_layers)
        sizes.append(tape.bytes + width * sum(map(_elements, _stored(block.stages(letters), experiment))))
    return max(sizes)


def _ends(experiment: Experiment) -> int:
    """Before and behind the blocks: the input in float64, the stream, the final norm, the logits and their softmax."""
    elements = sum(map(_elements, experiment.model.outer_stages(_letters(experiment))))
    return 2 * max(BYTES[experiment.dtype], 4) * elements + 2 * FLOAT64 * _stream(experiment)


def _tables(experiment: Experiment) -> int:
    """Angles, for each rope; and the visible pairs of each pattern that a kernel asks for, while they are compared."""
    T = experiment.input.seq_len
    blocks = [block for block, _ in groups(experiment.model)]
    angles = {block.attention.d_head for block in blocks if isinstance(block.position, RoPE)}
    patterns = {block.attention.pattern for block in blocks}
    if experiment.kernel == "sdpa":
        patterns = {pattern for pattern in patterns if not isinstance(pattern, Causal | Bidirectional)}
    return sum(4 * FLOAT64 * T * d_head for d_head in angles) + 3 * T * T * len(patterns)
