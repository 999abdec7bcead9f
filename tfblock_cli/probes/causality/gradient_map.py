"""Gradient map: d output i / d input j is exactly 0 for i < j, and reaches every past input."""

import torch
from torch import Tensor

from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes.causality.cuts import every
from tfblock_cli.probes.causality.first_pair import Cut, Failures, where
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.suffix_cuts import with_suffix
from tfblock_cli.probes.causality.verdict import Finding, same_shape, worst_of

RETRIES = 4
"""More maps, of other content, where something seems dead: a path that is missing is missing for any content, while
attention so sharp that a weight is below the smallest number points elsewhere."""


def gradient_map(session: Session) -> Finding:
    """One forward pass and T backward passes, each from one output position with a random cotangent.

    Random, since a cotangent of ones behind a LayerNorm or before a softmax has no gradient at all. It sees what
    rounding hides from the cuts, and dead paths into the past; it is blind behind detach, top-k and rounding.
    """
    x = session.draw("input")
    influence_TT = _influence(session, x)
    if influence_TT is None:
        return Finding(verdict="inconclusive", worst=None, message="no gradient reaches the input")
    for retry in range(RETRIES):
        if not _dead(influence_TT):
            break
        again_TT = _influence(session, session.draw(f"input.{retry}"))
        influence_TT = influence_TT if again_TT is None else influence_TT.maximum(again_TT)
    past = influence_TT.tril(-1)
    alive = past[past > 0]
    median = float(alive.median()) if len(alive) else float(influence_TT.max()) or 1.0
    future = influence_TT.triu(1) / median
    tolerance, worst = same_shape(session.dtype), float(future.max())
    dead, is_finite = _dead(influence_TT), bool(influence_TT.isfinite().all())
    verdict = worst_of(tolerance.judge(worst), "no-flow" if dead else "clean", "clean" if is_finite else "inconclusive")
    leak = None
    match verdict:
        case "LEAK":
            failures = Failures(every(session.seq_len))
            for k in every(session.seq_len):
                moved = future[:k, k:].amax(1)
                if float(moved.max()) > tolerance.noise:
                    z = with_suffix(session, x, k)
                    failures.add(Cut(k, z, moved, tolerance.noise))
            out = failures.first().out
            in_ = int((future[out] > tolerance.noise).nonzero().min())
            leak = failures.leak("gradient_map", session, x, in_)
            message = f"output {leak.out} has a gradient with respect to input {leak.in_} {where(leak)}"
        case "no-flow":
            message = dead
        case "inconclusive":
            message = "a gradient is nan or inf, which no comparison can judge"
        case "noise":
            message = f"the gradient of the future is {worst:.1e} of that of the past: rounding"
        case _:
            message = "no output has a gradient with respect to a later input; every past input is reached"
            faded = int((influence_TT == 0).tril().sum())
            if faded:
                message += f", but for {faded} pairs whose attention weight is below the smallest number"
    return Finding(
        verdict=verdict,
        worst=worst,
        limit=tolerance.noise,
        message=message,
        cuts=every(session.seq_len),
        leak=leak,
    )


def _influence(session: Session, x: Tensor) -> Tensor | None:
    """|d output i / d input j|, the largest entry under a random cotangent: (T, T), float64 on the CPU."""
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
        cotangent[:, i] = row.to(y.device, y.dtype)
        (gradient,) = torch.autograd.grad(y, leaf, cotangent, retain_graph=i < T - 1)
        cotangent[:, i] = 0
        influence_TT[i] = gradient.abs().movedim(1, 0).flatten(1).amax(1).cpu().double()
        session.vjps += 1
        session.progress.advance()
    return influence_TT


def _forward(session: Session, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output with its graph, and its leaf: the vectors, or what the embedding makes of the ids."""
    if not session.subject.embedding:
        leaf = x.requires_grad_()
        return session.recorded(leaf), leaf
    leaves: list[Tensor] = []

    def stand_in(module: object, args: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    handle = session.subject.module.get_submodule(session.subject.embedding).register_forward_hook(stand_in)
    try:
        y = session.recorded(x)
    finally:
        handle.remove()
    return y, leaves[-1]


def _dead(influence_TT: Tensor) -> str:
    """What must be reached and is not: a distance, an output's past, an input; "" if nothing.

    Single pairs may be 0 where attention is so sharp that a weight is below the smallest number; whole diagonals,
    rows and columns are 0 because there is no path.
    """
    T = len(influence_TT)
    alive = influence_TT != 0  # nan is not dead
    for distance in range(T):
        if not bool(alive.diagonal(-distance).any()):
            return f"no output depends on the input {distance} positions before it"
    for i in range(1, T):
        if not bool(alive[i, :i].any()):
            return f"output {i} depends on no input before it"
    for j in range(T - 1):
        if not bool(alive[j + 1 :, j].any()):
            return f"no later output depends on input {j}"
    return ""
