"""Mask read-out: the exact attention weights of every layer and head, against the declared pattern."""

from collections.abc import Callable

import torch
from torch import Tensor

from tfblock_cli.probes.causality.cuts import every
from tfblock_cli.probes.causality.declared import visible_TT, words
from tfblock_cli.probes.causality.first_pair import shape_of
from tfblock_cli.probes.causality.gradient_map import RETRIES
from tfblock_cli.probes.causality.own_attention import attentions, contexts
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.verdict import Finding, other_shape, same_shape, skipped, worst_of
from tfblock_cli.results.causality import Leak

RARE = 0.01
"""Of the weights that are alive in some draw, the part that may be 0 in another: five times in a row is no chance."""


def mask_readout(session: Session) -> Finding:
    """Attention is linear in its values, so values that are 1 at one key read the weights of that key out.

    E keys at a time: T / E forward passes, with any kernel. It sees a window of one key too many in one head of one
    layer, a key that is hidden though it should not be, and a mask that comes after the softmax.
    """
    layers = attentions(session)
    if not layers:
        return skipped("only the attention of our own decoder can be read out")
    patterns = session.declared.layers
    if len(patterns) == 1:  # declared as a whole: what no layer may see, the model may not
        patterns *= len(layers)
    seen_LTT = torch.stack([visible_TT(pattern, session.seq_len) for pattern in patterns])
    weights_LHTT = _weights(session, "input")
    is_finite = bool(weights_LHTT.isfinite().all())
    hidden_LHTT = weights_LHTT.masked_fill(seen_LTT[:, None], 0.0)
    tolerance, worst = same_shape(session.dtype), float(hidden_LHTT.max())
    total = float((weights_LHTT.sum(-1) - 1).abs().max())
    nothing = _dead(session, weights_LHTT, seen_LTT)
    verdict = worst_of(
        tolerance.judge(worst),
        "LEAK" if total > other_shape(session.dtype).noise else "clean",
        "no-flow" if nothing else "clean",
        "clean" if is_finite else "inconclusive",
    )
    leak = None
    match verdict:
        case "LEAK" if tolerance.judge(worst) == "LEAK":
            leak, layer, head = _leak(session, hidden_LHTT, tolerance.noise)
            extra = int((hidden_LHTT > tolerance.noise).sum())
            message = (
                f"{leak.stage} head {head}: query {leak.out} gives {leak.magnitude:.1e} of its weight to "
                f"key {leak.in_}, which {words(patterns[layer])} hides; {extra} weights in all are where none may be"
            )
        case "LEAK":
            message = f"the weights of a query add up to 1 only within {total:.1e}"
        case "no-flow":
            message = nothing
        case "inconclusive":
            message = "a weight is nan or inf, which no comparison can judge"
        case "noise":
            message = f"hidden keys get {worst:.1e} of the weight: rounding"
        case _:
            L, H = weights_LHTT.shape[:2]
            message = f"the weights of all {L} x {H} heads are 0 where the pattern hides, and add up to 1"
    return Finding(verdict=verdict, worst=worst, limit=tolerance.noise, message=message, leak=leak)


def _weights(session: Session, name: str) -> Tensor:
    """The weights of every layer and head, (L, H, T, T), in float64 on the CPU. Heads that are missing count as 0."""
    x, T = session.draw(name), session.seq_len
    E = attentions(session)[0].qkv.out_features // sum(attentions(session)[0].n_heads)
    session.progress.start(f"mask read-out, {session.mode_name}", -(-T // E))
    pieces = [
        torch.stack([context_BHTE[0] for context_BHTE in contexts(session, x, _one_hot(start))])
        for start in range(0, T, E)
    ]
    return torch.cat(pieces, dim=-1)[..., :T].cpu().double()


def _one_hot(start: int) -> Callable[[Tensor], Tensor]:
    """Values (B, K, S, E) whose entry e is 1 at the key start + e and 0 at all others."""

    def values(v_BKSE: Tensor) -> Tensor:
        S, E = v_BKSE.shape[2:]
        one_hot_SE = torch.arange(S)[:, None] == start + torch.arange(E)
        return one_hot_SE.to(v_BKSE.device, v_BKSE.dtype).expand(v_BKSE.shape)

    return values


def _dead(session: Session, weights_LHTT: Tensor, seen_LTT: Tensor) -> str:
    """Which head of which layer misses what it may see, with any content; "" if none does.

    A weight may be below the smallest number by chance. Where that is rare, a weight that is 0 in every draw is none;
    where it is not, as with weights as they are and far too large, nothing can be said.
    """
    seen_LHTT = seen_LTT[:, None].expand(weights_LHTT.shape)
    if not bool(((weights_LHTT == 0) & seen_LHTT).any()):
        return ""
    draws = torch.stack([weights_LHTT, *(_weights(session, f"input.{retry}") for retry in range(RETRIES))])
    alive_LHTT = draws.amax(0) != 0
    by_chance = float((draws[:, alive_LHTT & seen_LHTT] == 0).double().mean())
    missing = (seen_LHTT & ~alive_LHTT).nonzero().tolist()
    if missing and by_chance <= RARE:
        layer, head, query, key = missing[0]
        return (
            f"blocks.{layer}.attention head {head}: query {query} gives no weight to key {key}, which it may see; "
            f"{len(missing)} such weights in all"
        )
    return ""


def _leak(session: Session, hidden_LHTT: Tensor, limit: float) -> tuple[Leak, int, int]:
    """The first pair of the first layer that leaks, its layer and its head."""
    layer = int((hidden_LHTT > limit).flatten(1).any(1).nonzero()[0])
    bad_HTT = hidden_LHTT[layer] > limit
    heads = bad_HTT.flatten(1).any(1)
    head = int(heads.nonzero()[0])
    future_TT = bad_HTT[head].triu(1)
    out, in_ = (int(n) for n in (future_TT if bool(future_TT.any()) else bad_HTT[head]).nonzero()[0])
    rows = {k: frozenset(int(i) for i in future_TT[:k, k:].any(1).nonzero().flatten()) for k in every(session.seq_len)}
    shape = "outside the window" if in_ < out else shape_of(rows, in_, session.seq_len)
    if not bool(heads.all()):
        shape += f", {int(heads.sum())} of {len(heads)} heads"
    leak = Leak(
        probe="mask_readout",
        mode=session.mode_name,
        out=out,
        in_=in_,
        magnitude=float(hidden_LHTT[layer, head, out].sum()),
        cuts=sum(map(bool, rows.values())),
        cuts_total=len(rows),
        stage=f"blocks.{layer}.attention",
        shape=shape,
    )
    return leak, layer, head
