"""Preflight: does the same input give the same bits, now and after another input? Nothing can be compared otherwise."""

import torch

from tfblock_cli.probes.causality.session import Session, change_T, size
from tfblock_cli.probes.causality.verdict import Finding


def preflight(session: Session) -> Finding:
    """f(x) twice, then f(x') and f(x) again: four forward passes."""
    x = session.draw("input")
    other = session.redraw(x, "other")
    session.progress.start(f"preflight, {session.mode_name}", 4)
    first, second = session(x), session(x)
    session(other)
    third = session(x)
    if not bool(first.isfinite().all()):
        return Finding(
            verdict="inconclusive", worst=None, message="the output holds nan or inf, which no comparison can judge"
        )
    for again, when, why in (
        (second, "in a second call", "something random is on, such as a dropout that ignores the mode"),
        (third, "after another input", "the module keeps state between calls"),
    ):
        if not torch.equal(first, again):
            change = float(change_T(first, again).max()) / size(first)
            return Finding(
                verdict="inconclusive",
                worst=change,
                message=f"not deterministic: the same input gives another output {when}; {why}",
            )
    return Finding(verdict="clean", worst=0.0, message="equal inputs give equal bits, also after another input")
