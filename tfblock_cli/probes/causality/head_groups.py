"""Head groups: key-value head s is read by the query heads s·H/K .. (s + 1)·H/K - 1, and by no other."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tfblock_cli.probes.causality.first_pair import first_input, where
from tfblock_cli.probes.causality.own_attention import attentions, contexts
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.verdict import Finding, skipped
from tfblock_cli.probes.change import size
from tfblock_cli.results.causality import Leak

Read = Mapping[tuple[int, int], set[int]]
"""By layer and query head: the key-value heads that it reads."""


def head_groups(session: Session) -> Finding:
    """Double the values of one key-value head: exactly its query heads change. K + 1 forward passes.

    Keys and values that are tiled instead of repeated give a sound mask and the wrong groups. A query head that does
    not read its own key-value head is no-flow, whatever it reads instead; one that reads another beside it, LEAK.
    """
    layers = attentions(session)
    if not layers:
        return skipped("only the heads of our own decoder are known")
    H, K, _ = layers[0].n_heads
    x = session.draw("input")
    session.progress.start(f"head groups, {session.mode_name}", 1 + K)
    before = contexts(session, x, lambda v_BKSE: v_BKSE)
    read: Read = {(layer, h): set() for layer in range(len(layers)) for h in range(H)}
    for s in range(K):
        for layer, (a_BHTE, b_BHTE) in enumerate(zip(before, contexts(session, x, _doubled(s)), strict=True)):
            for h in range(H):
                if not torch.equal(a_BHTE[:, h], b_BHTE[:, h]):
                    read[layer, h].add(s)
    beside = {at: found for at, found in read.items() if len(found) > 1 and at[1] * K // H in found}
    astray = {at: found for at, found in read.items() if at[1] * K // H not in found}
    if beside:
        leak = _leak(session, x, before, read, beside)
        return Finding(
            verdict="LEAK", worst=leak.magnitude, message=f"{_told(beside, H // K)} {where(leak)}", leak=leak
        )
    if astray:
        return Finding(verdict="no-flow", worst=0.0, message=_told(astray, H // K))
    message = f"of {H} query heads each reads its own one of {K} key-value heads"
    return Finding(verdict="clean", worst=0.0, message=message)


def _told(wrong: Read, group: int) -> str:
    (layer, h), found = next(iter(wrong.items()))
    heads = ", ".join(map(str, sorted(found))) or "none"
    return f"blocks.{layer}.attention: query head {h} reads the key-value heads {heads}, and its own is {h // group}"


def _leak(session: Session, x: Tensor, before: list[Tensor], read: Read, beside: Read) -> Leak:
    """The first output of the first such head that the other head's values change, and the first value that does."""
    (layer, h), found = next(iter(beside.items()))
    H, K, _ = attentions(session)[0].n_heads
    s = min(found - {h * K // H})
    a_BTE = before[layer][:, h]

    def changed_T(j: int) -> Tensor:
        b_BTE = contexts(session, x, _doubled(s, j + 1))[layer][:, h]
        return (a_BTE - b_BTE).abs().amax((0, 2)) / size(a_BTE)

    moved_T = changed_T(session.seq_len - 1)
    out = int(moved_T.nonzero()[0])
    return Leak(
        probe="head_groups",
        mode=session.mode_name,
        out=out,
        in_=first_input(0, session.seq_len, lambda j: bool(changed_T(j)[out])),
        magnitude=float(moved_T[out]),
        cuts=len(beside),
        cuts_total=len(read),
        counted="heads",
        stage=f"blocks.{layer}.attention",
        shape="another head",
    )


def _doubled(s: int, stop: int | None = None) -> Callable[[Tensor], Tensor]:
    """Values of which those of head s are twice as large, up to a position."""

    def values(v_BKSE: Tensor) -> Tensor:
        v_BKSE = v_BKSE.clone()
        v_BKSE[:, s, :stop] *= 2
        return v_BKSE

    return values
