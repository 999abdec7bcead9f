"""FLOPs of a forward pass: 2 per multiply-add, matrix multiplications only, whatever the kernel or the device."""

from dataclasses import dataclass

from tfblock_cli.account.weights import groups
from tfblock_cli.results.params import Flops, StageFlops
from tfblock_cli.spec.model import ModelSpec
from tfblock_cli.spec.size import StageSpec


@dataclass
class _Row:
    formula: str
    dense: int = 0
    visible: int = 0


def flops(model: ModelSpec, batch_size: int, seq_len: int) -> Flops:
    """The exact counts for B sequences of T tokens, with the full attention square and with visible pairs only."""
    letters = model.letters(batch_size, seq_len)
    rows: dict[str, _Row] = {}

    def add(stage: StageSpec, layers: int, pairs: int) -> None:
        if stage.inner is not None:
            row = rows.setdefault(stage.name, _Row(stage.flops_formula))
            row.dense += layers * stage.flops
            row.visible += layers * (stage.flops * pairs // seq_len**2 if stage.over_pairs else stage.flops)

    for block, layers in groups(model):
        pairs = block.attention.pattern.visible_pairs(seq_len)
        for stage in block.stages(letters):
            add(stage, len(layers), pairs)
    for stage in model.outer_stages(letters):
        add(stage, 1, 0)
    dense = sum(row.dense for row in rows.values())
    visible = sum(row.visible for row in rows.values())
    return Flops(
        batch_size=batch_size,
        seq_len=seq_len,
        dense=dense,
        visible=visible,
        backward_dense=2 * dense,
        backward_visible=2 * visible,
        train_dense=3 * dense,
        train_visible=3 * visible,
        per_token_dense=dense // (batch_size * seq_len),
        stages=tuple(
            StageFlops(name=name, formula=row.formula, dense=row.dense, visible=row.visible)
            for name, row in rows.items()
        ),
    )
