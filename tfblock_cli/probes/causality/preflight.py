"""Preflight: does the same input give the same bits, now and after another input? Nothing can be compared otherwise."""

import torch

from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.verdict import Finding
from tfblock_cli.probes.change import change_T, size


def preflight(session: Session) -> Finding:
    """f(x) twice, then f(x') and f(x) again: four forward passes."""
    x = session.draw("input")
    other = session.redraw(x, "other")
    session.progress.start(f"preflight, {session.mode_name}", 4)
    first, second = session(x), session(x)
    session(other)
    third = session(x)
    if bool(first.isnan().any()) or bool(first.isinf().all()):
        what = "holds nan" if bool(first.isnan().any()) else "is nothing but inf"
        return Finding(verdict="inconclusive", worst=None, message=f"the output {what}, which no comparison can judge")
    for again, when, why in (
        (second, "in a second call", "something random is on, such as a dropout that ignores the mode"),
        (third, "after another input", "the module keeps state between calls"),
    ):
        if not torch.equal(first, again):
            change = float(change_T(first, again, size(first)).max())
            return Finding(
                verdict="inconclusive",
                worst=change,
                message=f"not deterministic: the same input gives another output {when}; {why}",
            )
    message, infinite = "equal inputs give equal bits, also after another input", int(first.isinf().sum())
    if infinite:
        message += f"; {infinite} of {first.numel()} entries of the output are infinite: those that stay so say nothing"
    return Finding(verdict="clean", worst=0.0, message=message)
