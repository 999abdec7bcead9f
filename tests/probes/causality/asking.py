"""Asking the protocol about a module, and finding a row in what it says."""

from typing import Any

from torch import nn

from tfblock_cli.probes.causality.check import check
from tfblock_cli.probes.causality.declared import CAUSAL, Declared
from tfblock_cli.probes.causality.zoo.parts import Attention, D, T, Visible, causal
from tfblock_cli.probes.subject import Subject
from tfblock_cli.results.causality import CausalityData, ProbeRow


def attention(visible: Visible = causal) -> Attention:
    """Attention with any mask."""
    return Attention(visible)


def findings(module: nn.Module, seq_len: int = T, declared: Declared = CAUSAL, **subject: Any) -> CausalityData:
    """The whole protocol on a module that takes vectors of width D unless told otherwise."""
    subject = {"d_model": D, **subject}
    return check([Subject(module=module, **subject)], declared=declared, seq_len=seq_len)


def row(data: CausalityData, name: str, mode: str = "") -> ProbeRow:
    """The first row of a probe, or the one of a mode."""
    return next(row for row in data.probes if row.name == name and row.mode.startswith(mode))


def verdicts(data: CausalityData) -> dict[str, str]:
    """By probe, mode and dtype; what was skipped is left out."""
    return {f"{row.name} {row.mode} {row.dtype}": row.verdict for row in data.probes if row.verdict != "skipped"}
