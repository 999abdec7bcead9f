"""Truncation: f(x[:k]) equals f(x)[:k]. It alone sees what depends on the length, such as positions divided by T."""

from collections.abc import Sequence

from tfblock_cli.probes.causality.first_pair import Cut, Failures, first_input, where
from tfblock_cli.probes.causality.session import Session, change_T, size
from tfblock_cli.probes.causality.verdict import Finding, other_shape, skipped, too_coarse, worst_of
from tfblock_cli.results.causality import ProbeVerdict


def truncation(session: Session, cuts: Sequence[int]) -> Finding:
    """Leave x[k:] away: one forward pass per cut. Rounding differs between lengths, so equality has a tolerance."""
    if not any(bool(session.hidden(k).any()) for k in cuts):
        return skipped("every output may see the future, as it was declared, so it may change when that is left away")
    if coarse := too_coarse(session.rounding):
        return skipped(coarse)
    session.progress.start(f"truncation, {session.mode_name}", 1 + len(cuts))
    x = session.draw("input")
    y = session(x)
    largest, tolerance = size(y), other_shape(session.rounding)
    verdict: ProbeVerdict = "clean"
    worst, failures = 0.0, Failures(cuts)
    for k in cuts:
        moved_T = change_T(session(x[:, :k]), y[:, :k]) / largest * session.hidden(k).to(y.device)
        change = float(moved_T.max())
        found = tolerance.judge(change)
        verdict = worst_of(verdict, found)
        worst = max(worst, change)
        if found == "LEAK":
            failures.add(Cut(k, x[:, :k], moved_T, tolerance.noise))
    leak = None
    match verdict:
        case "LEAK":
            first = failures.first()
            alone = session(first.z)

            def moved(j: int) -> bool:
                longer = session(x[:, : j + 1])[:, : first.k]
                return float(change_T(longer, alone)[first.out]) / largest > first.limit

            leak = failures.leak("truncation", session, x, first_input(first.k, session.seq_len, moved))
            message = f"output {leak.out} is another one when input {leak.in_} is left away {where(leak)}"
        case "inconclusive":
            message = "the output holds nan or inf, which no comparison can judge"
        case "noise":
            message = f"a shorter sequence changes outputs by {worst:.1e} of the largest one: more than rounding should"
        case _:
            message = f"leaving x[k:] away changes the outputs before k by no more than rounding, at {len(cuts)} cuts"
    return Finding(
        verdict=verdict,
        worst=worst,
        limit=tolerance.noise,
        message=message,
        cuts=tuple(cuts),
        leak=leak,
    )
