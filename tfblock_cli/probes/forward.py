"""Which shapes and which statistics at every stage? One forward pass, seen from outside by hooks."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from tfblock_cli.account.memory import forward_bytes
from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.modules.decoder import build
from tfblock_cli.modules.stage import record
from tfblock_cli.probes.float64 import for_float64
from tfblock_cli.probes.inputs import random_input
from tfblock_cli.probes.room import require
from tfblock_cli.results.forward import ForwardData, HeadWeights, StageRow
from tfblock_cli.results.progress import NoProgress, Progress
from tfblock_cli.results.result import Check, Result
from tfblock_cli.spec.experiment import DType, Experiment
from tfblock_cli.spec.size import StageSpec

ROW_SUM_ERROR: dict[DType, float] = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 5e-2, "float16": 5e-3}
"""How far the sum of some thousand rounded weights may be from 1 in each dtype."""


def run(
    experiment: Experiment, *, head: tuple[int, int] | None = None, progress: Progress | None = None
) -> Result[ForwardData]:
    """Feed one random input and look at every stage.

    Args:
        experiment: On the device "meta" there are shapes and no numbers.
        head: Layer and head whose attention weights are wanted.
        progress: Told about every stage.

    Raises:
        BadInput: The head does not exist, its weights are never stored, or the memory does not suffice.
    """
    _expect(experiment, head)
    require(forward_bytes(experiment), experiment.device, f"a forward pass of {experiment.name}")
    decoder, x = build(experiment), random_input(experiment)
    stages = _Stages(experiment, head)
    progress = progress or NoProgress()
    progress.start("forward", len(stages.stored))

    def see(name: str, value: Tensor) -> None:
        stages.see(name, value)
        progress.advance()

    with torch.no_grad(), record(decoder, stages.stored, see):
        output = decoder(x)
    progress.stop()
    rows = stages.rows()
    return Result(
        command="forward",
        data=ForwardData(
            letters=stages.letters(),
            input_shape=tuple(x.shape),
            output_shape=tuple(output.shape),
            stages=rows,
            head=stages.head_weights,
        ),
        checks=(_output_shape(experiment, x, output), stages.shape_check(), *stages.value_checks()),
        warnings=() if experiment.kernel == "eager" else (FUSED,),
        experiment=experiment.model_dump(),
    )


FUSED = "the sdpa kernel never stores scores and weights: --kernel eager shows and checks them"


def _expect(experiment: Experiment, head: tuple[int, int] | None) -> None:
    """Raise BadInput unless the head is there to be seen."""
    if head is None:
        return
    layer, number = head
    blocks = experiment.model.blocks()
    if not 0 <= layer < len(blocks):
        raise BadInput(Problem("--head", f"there is no layer {layer}: the model has layers 0 to {len(blocks) - 1}"))
    heads = blocks[layer].attention.n_heads
    if not 0 <= number < heads:
        raise BadInput(Problem("--head", f"there is no head {number}: layer {layer} has heads 0 to {heads - 1}"))
    if experiment.kernel != "eager":
        raise BadInput(Problem("--head", f"the {experiment.kernel} kernel stores no weights; use --kernel eager"))
    if experiment.device == "meta":
        raise BadInput(Problem("--head", "there are no numbers on the device meta"))


class _Stages:
    """The stages that the spec promises, and what was seen of each."""

    def __init__(self, experiment: Experiment, head: tuple[int, int] | None) -> None:
        shape = experiment.input
        self.experiment = experiment
        self.has_numbers = experiment.device != "meta"
        self.patterns = [block.attention.pattern for block in experiment.model.blocks()]
        self.specs = {
            stage.name: stage
            for stage in experiment.model.stages(experiment.model.letters(shape.batch_size, shape.seq_len))
        }
        self.stored = [name for name, stage in self.specs.items() if not self._is_fused(stage)]
        self.head = head
        self.head_weights: HeadWeights | None = None
        self._seen: dict[str, StageRow] = {}
        self._attention_checks: list[Check] = []

    def _is_fused(self, stage: StageSpec) -> bool:
        return stage.fused and self.experiment.kernel == "sdpa"

    def see(self, name: str, value: Tensor) -> None:
        """Take down one stage; attention weights are checked here, so that no layer's need be kept."""
        stage = self.specs[name]
        visible, note = None, ""
        if self.has_numbers and (stage.masked or name.endswith("attention.weights")):
            visible = self._visible(name, value)
        if stage.masked and visible is not None:
            entries, note = value[..., visible], "visible entries only"
        else:
            entries = value
        self._seen[name] = _row(stage, value, entries if self.has_numbers else None, note)
        if visible is not None and not stage.masked:
            self._attention_checks += self._check_weights(name, value, visible)
            self._keep_head(name, value)

    def _visible(self, name: str, value: Tensor) -> Tensor:
        """The declared pattern of the layer that a stage belongs to, evaluated afresh: (T, S)."""
        pattern = self.patterns[int(name.split(".")[1])]
        query, key = (torch.arange(size, device=value.device) for size in value.shape[-2:])
        visible = pattern.allows(query[:, None], key[None, :])
        return torch.as_tensor(visible).expand(value.shape[-2:])

    def _check_weights(self, name: str, weights_BHTS: Tensor, visible_TS: Tensor) -> Iterator[Check]:
        exact = for_float64(weights_BHTS)[0].double()
        error = float((exact.sum(-1) - 1).abs().max())
        limit = ROW_SUM_ERROR[self.experiment.dtype]
        yield Check(
            name="attention_rows_sum_to_one",
            subject=name,
            passed=error <= limit,
            value=error,
            op="<=",
            limit=limit,
            message=f"the weights of a query add up to 1 within {error:.1e}",
        )
        hidden = exact.masked_fill(visible_TS, 0.0).abs()
        leaked = float(hidden.max())
        yield Check(
            name="attention_outside_pattern",
            subject=name,
            passed=leaked == 0,
            value=leaked,
            op="==",
            limit=0.0,
            message=f"the largest weight on a key that the pattern hides is {leaked:.1e}",
        )

    def _keep_head(self, name: str, weights_BHTS: Tensor) -> None:
        if self.head is not None and name == f"blocks.{self.head[0]}.attention.weights":
            layer, head = self.head
            weights_TS = for_float64(weights_BHTS[0, head])[0].double().tolist()
            self.head_weights = HeadWeights(layer=layer, head=head, weights=tuple(map(tuple, weights_TS)))

    def rows(self) -> tuple[StageRow, ...]:
        """Every stage in the order of the computation; those that a kernel fuses away, too."""
        return tuple(self._seen.get(name) or self._missing(stage) for name, stage in self.specs.items())

    def _missing(self, stage: StageSpec) -> StageRow:
        note = "fused, not stored" if self._is_fused(stage) else "never seen"
        return _empty_row(stage, tuple(map(int, stage.shape)), self.experiment.dtype, 0, note)

    def letters(self) -> dict[str, int]:
        """The letters of the symbolic shapes; one that differs between layers is left out."""
        worth: dict[str, set[int]] = {}
        for stage in self.specs.values():
            for size in stage.shape:
                if len(size.symbol) == 1:
                    worth.setdefault(size.symbol, set()).add(int(size))
        return {letter: sizes.pop() for letter, sizes in worth.items() if len(sizes) == 1}

    def shape_check(self) -> Check:
        """Every stage has the shape that the spec promises, and none was left out."""
        wrong = [
            f"{name}: promised {tuple(map(int, self.specs[name].shape))}, "
            + (f"seen {self._seen[name].shape}" if name in self._seen else "never seen")
            for name in self.stored
            if name not in self._seen or self._seen[name].shape != tuple(map(int, self.specs[name].shape))
        ]
        return Check(
            name="stage_shapes",
            subject="all stages",
            passed=not wrong,
            value=len(wrong),
            op="==",
            limit=0,
            message="; ".join(wrong) or f"{len(self.stored)} stages have the shapes that the spec promises",
        )

    def value_checks(self) -> Iterable[Check]:
        """What can be said of the numbers; nothing on the device meta."""
        if not self.has_numbers:
            return ()
        broken = [row.name for row in self._seen.values() if row.finite is False]
        finite = Check(
            name="finite",
            subject="all stages",
            passed=not broken,
            value=len(broken),
            op="==",
            limit=0,
            message=f"nan or inf first at {broken[0]}, then at {len(broken) - 1} more" if broken else "no nan, no inf",
        )
        return (finite, *self._attention_checks)


def _row(stage: StageSpec, value: Tensor, entries: Tensor | None, note: str) -> StageRow:
    """One stage; ``entries`` are the numbers that count, None where there are none."""
    dtype = str(value.dtype).removeprefix("torch.")
    bytes_ = value.numel() * value.element_size()
    if entries is None:
        return _empty_row(stage, tuple(value.shape), dtype, bytes_, note)
    exact = for_float64(entries)[0].double()
    return StageRow(
        name=stage.name,
        symbolic=_symbols(stage),
        shape=tuple(value.shape),
        dtype=dtype,
        bytes=bytes_,
        mean=float(exact.mean()),
        std=float(exact.std(correction=0)),
        absmax=float(exact.abs().max()),
        finite=bool(exact.isfinite().all()),
        note=note,
    )


def _empty_row(stage: StageSpec, shape: tuple[int, ...], dtype: str, bytes_: int, note: str) -> StageRow:
    return StageRow(
        name=stage.name,
        symbolic=_symbols(stage),
        shape=shape,
        dtype=dtype,
        bytes=bytes_,
        mean=None,
        std=None,
        absmax=None,
        finite=None,
        note=note,
    )


def _symbols(stage: StageSpec) -> tuple[str, ...]:
    return tuple(size.symbol for size in stage.shape)


def _output_shape(experiment: Experiment, x: Tensor, output: Tensor) -> Check:
    vocab_size = experiment.model.vocab_size
    wanted = (*x.shape, vocab_size) if vocab_size else tuple(x.shape)
    return Check(
        name="output_shape",
        subject="head" if vocab_size else "stack",
        passed=tuple(output.shape) == wanted,
        value=str(tuple(output.shape)),
        op="==",
        limit=str(wanted),
        message=f"{tuple(x.shape)} to {tuple(output.shape)}",
    )
