"""Mask read-out: the exact attention weights of every layer and head, against the declared pattern."""

import torch
from torch import Tensor

from tfblock_cli.probes.causality.cuts import every
from tfblock_cli.probes.causality.declared import visible_TT, words
from tfblock_cli.probes.causality.first_pair import first_input, shape_of
from tfblock_cli.probes.causality.gradient_map import RETRIES
from tfblock_cli.probes.causality.own_attention import attentions, weights_LHTT
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.verdict import Finding, other_shape, same_shape, skipped, worst_of
from tfblock_cli.results.causality import Leak

RARE = 0.01
"""Of the weights that are alive in some draw, the part that may be 0 in another: five times in a row is no chance."""


def mask_readout(session: Session) -> Finding:
    """The weight of every key in every query, head and layer, read out in T / E forward passes, with any kernel.

    It sees a window of one key too many in one head of one layer, a key that is hidden though it should not be, and a
    mask that comes after the softmax.
    """
    layers = attentions(session)
    if not layers:
        return skipped("only the attention of our own decoder can be read out")
    patterns = session.declared.layers
    if len(patterns) == 1:  # declared as a whole: what no layer may see, the model may not
        patterns *= len(layers)
    seen_LTT = torch.stack([visible_TT(pattern, session.seq_len) for pattern in patterns])
    x = session.draw("input")
    read_LHTT = weights_LHTT(session, x)
    is_finite = bool(read_LHTT.isfinite().all())
    hidden_LHTT = read_LHTT.masked_fill(seen_LTT[:, None], 0.0)
    tolerance, worst = same_shape(session.dtype), float(hidden_LHTT.max())
    nothing = _dead(session, read_LHTT, seen_LTT)
    lost, lost_to = _lost(session, x, read_LHTT)
    verdict = worst_of(
        tolerance.judge(worst),
        "LEAK" if lost_to else "clean",
        "no-flow" if nothing or lost else "clean",
        "clean" if is_finite else "inconclusive",
    )
    leak, limit = None, tolerance.noise
    match verdict:
        case "LEAK" if tolerance.judge(worst) == "LEAK":
            leak, layer, head = _leak(session, hidden_LHTT, tolerance.noise)
            extra = int((hidden_LHTT > tolerance.noise).sum())
            message = (
                f"{leak.stage} head {head}: query {leak.out} gives {leak.magnitude:.1e} of its weight to "
                f"key {leak.in_}, which {words(patterns[layer])} hides; {extra} weights in all are where none may be"
            )
        case "LEAK":
            assert lost_to is not None
            leak, message, worst, limit = lost_to, lost, lost_to.magnitude, other_shape(session.dtype).noise
        case "no-flow":
            message = lost or nothing
        case "inconclusive":
            message = "a weight is nan or inf, which no comparison can judge"
        case "noise":
            message = f"hidden keys get {worst:.1e} of the weight: rounding"
        case _:
            L, H = read_LHTT.shape[:2]
            message = f"the weights of all {L} x {H} heads are 0 where the pattern hides, and add up to 1"
    return Finding(verdict=verdict, worst=worst, limit=limit, message=message, leak=leak)


def _dead(session: Session, read_LHTT: Tensor, seen_LTT: Tensor) -> str:
    """Which head of which layer misses what it may see, with any content; "" if none does.

    A weight may be below the smallest number by chance. Where that is rare, a weight that is 0 in every draw is none;
    where it is not, as with weights as they are and far too large, nothing can be said.
    """
    seen_LHTT = seen_LTT[:, None].expand(read_LHTT.shape)
    if not bool(((read_LHTT == 0) & seen_LHTT).any()):
        return ""
    again = (weights_LHTT(session, session.draw(f"input.{retry}")) for retry in range(RETRIES))
    draws = torch.stack([read_LHTT, *again])
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


def _lost(session: Session, x: Tensor, read_LHTT: Tensor) -> tuple[str, Leak | None]:
    """Which query's weights do not add up to 1, "" if all do; and the later input that takes some, if one does.

    Behind a softmax that the mask comes after, what a hidden key gets is taken from the others.
    """
    off_LHT = (read_LHTT.sum(-1) - 1).abs()
    wrong_LTH = (off_LHT > other_shape(session.dtype).noise).movedim(1, 2)
    if not bool(wrong_LTH.any()):
        return "", None
    layer, out, head = (int(n) for n in wrong_LTH.nonzero()[0])
    stage, T = f"blocks.{layer}.attention", session.seq_len
    lost = (
        f"{stage} head {head}: the weights of query {out} add up to {float(read_LHTT[layer, head, out].sum()):.3g}, "
        "not to 1"
    )
    other = session.redraw(x, "weights")

    def moved(j: int) -> bool:
        z = torch.cat((x[:, : out + 1], other[:, out + 1 : j + 1], x[:, j + 1 :]), dim=1)
        return not torch.equal(weights_LHTT(session, z)[layer, head, out], read_LHTT[layer, head, out])

    if out == T - 1 or not moved(T - 1):
        return lost, None
    in_ = first_input(out + 1, T, moved)
    leak = Leak(
        probe="mask_readout",
        mode=session.mode_name,
        out=out,
        in_=in_,
        magnitude=float(off_LHT[layer, head, out]),
        cuts=int(wrong_LTH.sum()),
        cuts_total=wrong_LTH.numel(),
        counted="queries",
        stage=stage,
        shape="weights that are lost",
    )
    return f"{lost}, and change when input {in_} is replaced", leak


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
