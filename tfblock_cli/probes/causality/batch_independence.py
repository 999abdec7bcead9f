"""Batch independence: does a sample's output depend on the other samples? That would pass for a leak elsewhere."""

from dataclasses import replace
from functools import partial

from torch import Tensor

from tfblock_cli.probes.causality.first_pair import first_input, where
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.stage import Pass, first_difference
from tfblock_cli.probes.causality.verdict import Finding, Tally, same_shape, worst_of
from tfblock_cli.probes.change import change_T, size
from tfblock_cli.results.causality import Leak

BATCH_SIZE = 3
"""At least; of more the first, one in the middle and the last are replaced."""


def batch_independence(session: Session) -> Finding:
    """Replace one of three samples or more: the others, at their own places in the batch, must keep their bits."""
    B = max(BATCH_SIZE, session.batch_size)
    x = session.draw("batch", B)
    session.progress.start(f"batch independence, {session.mode_name}", 1 + BATCH_SIZE)
    y = session(x)
    tally, largest = Tally(same_shape(session.dtype)), size(y)
    pair, silent, leak = (0, 0), [], None
    for b in (0, B // 2, B - 1):
        z = x.clone()
        z[b] = session.redraw(x[b : b + 1], f"batch.{b}")[0]
        changed = session(z)
        for other in range(B):
            moved_T = change_T(changed[other : other + 1], y[other : other + 1], largest)
            change = float(moved_T.max())
            if other == b:
                silent += [b] * (change == 0)
                continue
            if not change <= tally.worst:  # a nan is the worst of all
                pair = other, b
            if tally.add(change) == "LEAK" and leak is None:
                leak = _leak(session, x, z, y, (other, b), moved_T)
    verdict = worst_of(tally.verdict, "no-flow" if silent else "clean")
    match verdict:
        case "LEAK" | "noise":
            message = (
                f"sample {pair[0]} changes by {tally.worst:.1e} of the largest output when sample {pair[1]} is replaced"
            )
        case "no-flow":
            message = f"sample {silent[0]} can be replaced and its output stays the same"
        case "inconclusive":
            message = "the output holds nan, which no comparison can judge"
        case _:
            message = f"replacing one of {B} samples leaves every bit of the others"
    if leak is not None:
        leak = replace(leak, cuts=tally.leaks, cuts_total=tally.tried)
        message += f"; the first pair is output {leak.out} and input {leak.in_} {where(leak)}"
    return Finding(verdict=verdict, worst=tally.worst, limit=tally.tolerance.noise, message=message, leak=leak)


def _leak(session: Session, x: Tensor, z: Tensor, y: Tensor, pair: tuple[int, int], moved_T: Tensor) -> Leak:
    """The first output of the one sample that changes, and the first input of the other that is enough for it."""
    other, b = pair
    limit, T = same_shape(session.dtype).noise, session.seq_len
    out = int((moved_T > limit).nonzero()[0])

    def moved(j: int) -> bool:
        tokens = x.clone()
        tokens[b, : j + 1] = z[b, : j + 1]
        return float(change_T(session(tokens)[other : other + 1], y[other : other + 1], size(y))[out]) > limit

    one, two = (Pass(partial(session, tokens), T, slice(0, T), other) for tokens in (x, z))
    return Leak(
        probe="batch_independence",
        mode=session.mode_name,
        out=out,
        in_=first_input(0, T, moved),
        magnitude=float(moved_T[out]),
        cuts=0,
        cuts_total=0,
        counted="pairs of samples",
        stage=first_difference(session, one, two, limit),
        shape="another sample",
    )
