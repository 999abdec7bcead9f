"""Head groups: key-value head s is read by the query heads s·H/K .. (s + 1)·H/K - 1, and by no other."""

from collections.abc import Callable

from torch import Tensor

from tfblock_cli.probes.causality.own_attention import attentions, contexts
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.verdict import Finding, skipped


def head_groups(session: Session) -> Finding:
    """Double the values of one key-value head: exactly its query heads change. K + 1 forward passes.

    Keys and values that are tiled instead of repeated give a sound mask and the wrong groups.
    """
    layers = attentions(session)
    if not layers:
        return skipped("only the heads of our own decoder are known")
    n_heads, n_kv_heads, _ = layers[0].n_heads
    group = n_heads // n_kv_heads
    x = session.draw("input")
    session.progress.start(f"head groups, {session.mode_name}", 1 + n_kv_heads)
    before = contexts(session, x, lambda v_BKSE: v_BKSE)
    for s in range(n_kv_heads):
        wanted = set(range(s * group, (s + 1) * group))
        for layer, (a_BHTE, b_BHTE) in enumerate(zip(before, contexts(session, x, _doubled(s)), strict=True)):
            changed = {h for h in range(n_heads) if bool((a_BHTE[:, h] != b_BHTE[:, h]).any())}
            if changed != wanted:
                message = (
                    f"blocks.{layer}.attention: key-value head {s} is read by the query heads {_listed(changed)}, "
                    f"not by {_listed(wanted)}"
                )
                return Finding(verdict="LEAK", worst=float(len(changed ^ wanted)), message=message)
    message = f"of {n_heads} query heads each reads its own one of {n_kv_heads} key-value heads"
    return Finding(verdict="clean", worst=0.0, message=message)


def _doubled(s: int) -> Callable[[Tensor], Tensor]:
    def values(v_BKSE: Tensor) -> Tensor:
        v_BKSE = v_BKSE.clone()
        v_BKSE[:, s] *= 2
        return v_BKSE

    return values


def _listed(heads: set[int]) -> str:
    return ", ".join(map(str, sorted(heads))) or "none"
