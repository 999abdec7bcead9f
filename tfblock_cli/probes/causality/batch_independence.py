"""Batch independence: does a sample's output depend on the other samples? That would pass for a leak elsewhere."""

from tfblock_cli.probes.causality.session import Session, change_T, size
from tfblock_cli.probes.causality.verdict import Finding, same_shape, worst_of

BATCH_SIZE = 3


def batch_independence(session: Session) -> Finding:
    """Replace one of three samples: the others, at their own places in the batch, must keep their bits."""
    x = session.draw("batch", BATCH_SIZE)
    session.progress.start(f"batch independence, {session.mode_name}", 1 + BATCH_SIZE)
    y = session(x)
    tolerance, scale = same_shape(session.dtype), size(y)
    worst, pair, silent = 0.0, (0, 0), []
    for b in range(BATCH_SIZE):
        z = x.clone()
        z[b] = session.redraw(x[b : b + 1], f"batch.{b}")[0]
        changed = session(z)
        for other in range(BATCH_SIZE):
            change = float(change_T(changed[other : other + 1], y[other : other + 1]).max()) / scale
            if other == b:
                silent += [b] * (change == 0)
            elif not change <= worst:  # a nan is the worst of all
                worst, pair = change, (other, b)
    verdict = worst_of(tolerance.judge(worst), "no-flow" if silent else "clean")
    match verdict:
        case "LEAK" | "noise":
            message = f"sample {pair[0]} changes by {worst:.1e} of the largest output when sample {pair[1]} is replaced"
        case "no-flow":
            message = f"sample {silent[0]} can be replaced and its output stays the same"
        case "inconclusive":
            message = "the output holds nan or inf, which no comparison can judge"
        case _:
            message = f"replacing one of {BATCH_SIZE} samples leaves every bit of the others"
    return Finding(verdict=verdict, worst=worst, limit=tolerance.noise, message=message)
