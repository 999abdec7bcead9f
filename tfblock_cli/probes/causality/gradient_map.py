"""Gradient map: d output i / d input j is exactly 0 where i may not see j, and alive where it may."""

from typing import Any

import torch
from torch import Tensor

from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes.causality.cuts import every
from tfblock_cli.probes.causality.first_pair import Cut, Failures, where
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.suffix_cuts import with_suffix
from tfblock_cli.probes.causality.verdict import Finding, same_shape, skipped, worst_of
from tfblock_cli.probes.change import speaks_T
from tfblock_cli.results.causality import Leak

RETRIES = 4
"""More maps, of other content, where something seems dead: a path that is missing is missing for any content, while
attention so sharp that a weight is below the smallest number points elsewhere."""


def gradient_map(session: Session) -> Finding:
    """One forward pass and T backward passes, each from one output position with a random cotangent.

    Random, since a cotangent of ones behind a LayerNorm or before a softmax has no gradient at all. It sees what
    rounding hides from the cuts, windows that are too wide, and dead paths; it is blind behind detach, top-k and
    rounding.
    """
    if session.subject.vocab_size and not session.subject.embedding:
        return skipped("ids have no gradient, and they are looked up in no nn.Embedding whose output has one")
    x = session.draw("input")
    found = _influence(session, x)
    if found is None:
        return Finding(verdict="inconclusive", worst=None, message="no gradient reaches the input")
    influence_TT, told_T = found
    reach_TT, must_TT = session.reach, session.declared.must_TT(session.seq_len)
    for retry in range(RETRIES):
        if not _dead(influence_TT, must_TT & told_T[:, None]):
            break
        again = _influence(session, session.draw(f"input.{retry}"))
        if again is not None:
            influence_TT, told_T = influence_TT.maximum(again[0]), told_T | again[1]
    must_TT = must_TT & told_T[:, None]
    T = session.seq_len
    allowed = influence_TT[reach_TT & ~torch.eye(T, dtype=torch.bool)]
    alive = allowed[allowed > 0]
    median = float(alive.median()) if len(alive) else float(influence_TT.max()) or 1.0
    influence_TT = influence_TT / median
    hidden_TT = influence_TT.masked_fill(reach_TT, 0.0)
    tolerance, worst = same_shape(session.dtype), float(hidden_TT.max())
    nothing, is_finite = _dead(influence_TT, must_TT), bool(influence_TT.isfinite().all())
    verdict = worst_of(
        tolerance.judge(worst), "no-flow" if nothing else "clean", "clean" if is_finite else "inconclusive"
    )
    leak = None
    match verdict:
        case "LEAK":
            leak = _leak(session, x, hidden_TT, tolerance.noise)
            message = f"output {leak.out} has a gradient with respect to input {leak.in_} {where(leak)}"
        case "no-flow":
            message = nothing
        case "inconclusive":
            message = "a gradient is nan or inf, which no comparison can judge"
        case "noise":
            message = f"where no gradient may be it is {worst:.1e} of what it is elsewhere: rounding"
        case _:
            message = "no output has a gradient with respect to an input that it may not see; the others are reached"
            faded = int(((influence_TT == 0) & must_TT).sum())
            if faded:
                message += f", but for {faded} pairs whose attention weight is below the smallest number"
    return Finding(
        verdict=verdict,
        worst=worst,
        limit=tolerance.noise,
        message=message,
        cuts=every(T),
        leak=leak,
        influence=influence_TT,
    )


def _leak(session: Session, x: Tensor, hidden_TT: Tensor, limit: float) -> Leak:
    """The first pair: of the future, found as the other probes find it; of the past only where that is clean."""
    cuts = every(session.seq_len)
    failures = Failures(cuts)

    def cut(k: int) -> Cut:
        return Cut(k, with_suffix(session, x, k), hidden_TT[:k, k:].amax(1), limit)

    for k in cuts:
        if float(hidden_TT[:k, k:].max()) > limit:
            failures.add(cut(k))
    if not failures.is_empty:
        first = failures.first(session, cut)
        out = first.out
        in_ = out + 1 + int((hidden_TT[out, out + 1 :] > limit).nonzero()[0])
        return failures.leak("gradient_map", session, x, first, in_)
    out, in_ = (int(index) for index in (hidden_TT > limit).nonzero()[0])
    return Leak(
        probe="gradient_map",
        mode=session.mode_name,
        out=out,
        in_=in_,
        magnitude=float(hidden_TT[out, in_]),
        cuts=0,
        cuts_total=len(cuts),
        shape="outside the window",
    )


def _influence(session: Session, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """|d output i / d input j|, the largest entry under a random cotangent: (T, T), float64 on the CPU.

    And which outputs have any, (T,): an infinite entry says nothing, and gets a cotangent of 0.
    """
    T = session.seq_len
    session.progress.start(f"gradient map, {session.mode_name}", 1 + T)
    for parameter in session.subject.module.parameters():
        parameter.requires_grad_(False)  # only the input's gradient is wanted; lend gives the flags back
    y, leaf = _forward(session, x)
    if not y.requires_grad:
        return None
    random = generator(session.seed, "causality.cotangent")
    cotangent = torch.zeros_like(y)
    influence_TT = torch.zeros(T, T, dtype=torch.float64)
    for i in range(T):
        row = torch.randn(y[:, i].shape, generator=random, dtype=torch.float64)
        cotangent[:, i] = row.to(y.device, y.dtype).masked_fill(y.detach()[:, i].isinf(), 0.0)
        (gradient,) = torch.autograd.grad(y, leaf, cotangent, retain_graph=i < T - 1)
        cotangent[:, i] = 0
        influence_TT[i] = gradient.abs().movedim(1, 0).flatten(1).amax(1).cpu().double()
        session.vjps += 1
        session.progress.advance()
    return influence_TT, speaks_T(y.detach()).cpu()


def _forward(session: Session, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output with its graph, and its leaf: the vectors, or what the embedding makes of the ids."""
    if not session.subject.embedding:
        leaf = x.requires_grad_()
        return session.recorded(leaf), leaf
    leaves: list[Tensor] = []
    others: list[Tensor] = []

    def stand_in(module: object, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """One leaf for all calls with these ids; what other ids become, shifted ones say, stands elsewhere."""
        is_x = bool(args) and isinstance(args[0], Tensor) and torch.equal(args[0], x)
        if not (is_x and leaves):
            (leaves if is_x else others).append(output.detach().requires_grad_())
        return (leaves if is_x else others)[-1].clone()  # some models scale it in place, which a leaf forbids

    handle = session.subject.module.get_submodule(session.subject.embedding).register_forward_hook(stand_in)
    try:
        y = session.recorded(x)
    finally:
        handle.remove()
    return y, (leaves or others)[-1]


def _dead(influence_TT: Tensor, must_TT: Tensor) -> str:
    """What must be reached and is not: a distance, an output's past, an input; "" if nothing.

    Single pairs may be 0 where attention is so sharp that a weight is below the smallest number; whole diagonals,
    rows and columns are 0 because there is no path.

    Args:
        influence_TT: How much output i depends on input j.
        must_TT: Whether it has to.
    """
    T = len(influence_TT)
    alive, other_TT = (influence_TT != 0) & must_TT, must_TT & ~torch.eye(T, dtype=torch.bool)  # nan is not dead
    for offset in sorted(range(1 - T, T), key=lambda offset: (offset > 0, abs(offset))):
        if bool(must_TT.diagonal(offset).any()) and not bool(alive.diagonal(offset).any()):
            where = "before" if offset <= 0 else "behind"
            return f"no output depends on the input {abs(offset)} positions {where} it"
    for i in range(T):
        if bool(other_TT[i].any()) and not bool((alive & other_TT)[i].any()):
            return f"output {i} depends on no other input"
    for j in range(T):
        if bool(other_TT[:, j].any()) and not bool((alive & other_TT)[:, j].any()):
            return f"no other output depends on input {j}"
    return ""
