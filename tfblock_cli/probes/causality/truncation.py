"""Truncation: f(x[:k]) equals f(x)[:k]. It alone sees what depends on the length, such as positions divided by T."""

from collections.abc import Sequence

from tfblock_cli.probes.causality.first_pair import Cut, Failures, first_input, where
from tfblock_cli.probes.causality.rounding import reference
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.verdict import Finding, Tally, skipped
from tfblock_cli.probes.change import change_T, size


def truncation(session: Session, cuts: Sequence[int]) -> Finding:
    """Leave x[k:] away: one forward pass per cut. Rounding differs between lengths, so equality has a tolerance."""
    if not any(bool(session.hidden(k).any()) for k in cuts):
        return skipped("every output may see the future, as it was declared, so it may change when that is left away")
    x = session.draw("input")
    right = reference(session, x)
    if isinstance(right, str):
        return skipped(right)
    session.progress.start(f"truncation, {session.mode_name}", len(cuts))
    largest, limit, tally = size(right.y), right.tolerance.noise, Tally(right.tolerance)
    failures = Failures(cuts)

    def cut(k: int) -> Cut:
        moved_T = change_T(session(x[:, :k]), right.y[:, :k], largest)
        return Cut(k, x[:, :k], moved_T * session.hidden(k).to(x.device), limit)

    for k in cuts:
        one = cut(k)
        if tally.add(float(one.moved.max())) == "LEAK":
            failures.add(one)
    leak = None
    match tally.verdict:
        case "LEAK":
            first = failures.first(session, cut)
            alone = session(first.z)

            def moved(j: int) -> bool:
                longer = session(x[:, : j + 1])[:, : first.k]
                return float(change_T(longer, alone, largest)[first.out]) > first.limit

            leak = failures.leak("truncation", session, x, first, first_input(first.k, session.seq_len, moved))
            message = f"output {leak.out} is another one when input {leak.in_} is left away {where(leak)}"
        case "inconclusive":
            message = "the output holds nan, which no comparison can judge"
        case "noise":
            message = (
                f"a shorter sequence changes outputs by {tally.worst:.1e} of the largest one: more than rounding should"
            )
        case _:
            message = f"leaving x[k:] away changes the outputs before k by no more than rounding, at {len(cuts)} cuts"
    return Finding(verdict=tally.verdict, worst=tally.worst, limit=limit, message=message, cuts=tuple(cuts), leak=leak)
