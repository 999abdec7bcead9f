"""Padding: what stands at the left of a sequence and means nothing changes nothing."""

import torch

from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.probes.causality.session import Session, change_T, size
from tfblock_cli.probes.causality.verdict import Finding, other_shape, same_shape, skipped, too_coarse, worst_of


def padding(session: Session) -> Finding:
    """Three sequences with other amounts of padding: replacing it changes no bit behind it.

    And each sequence gives the outputs that it gives alone. Outputs of the padding itself mean nothing, but have to be
    finite.
    """
    if not isinstance(session.subject.module, Decoder):
        return skipped("only the padding of our own decoder is known")
    if session.declared.mutual is None:
        return skipped("every output may see every input, as it was declared")
    if coarse := too_coarse(session.rounding):
        return skipped(coarse)
    T = session.seq_len
    amounts = sorted({0, min(3, T - 1), T // 2})
    padding_B = torch.tensor(amounts)
    x = session.draw("padding", len(amounts))
    session.progress.start(f"padding, {session.mode_name}", 2 + len(amounts))
    y = session(x, padding=padding_B)
    if not bool(y.isfinite().all()):
        return Finding(verdict="inconclusive", worst=None, message="the output holds nan or inf")
    z = session.redraw(x, "padding.other")
    for b, amount in enumerate(amounts):
        z[b, amount:] = x[b, amount:]
    other = session(z, padding=padding_B)
    largest, bits, rounding = size(y), same_shape(session.dtype), other_shape(session.dtype)
    content = max(_change(other, y, b, n) for b, n in enumerate(amounts)) / largest
    alone = max(
        float(change_T(session(x[b : b + 1, n:]), y[b : b + 1, n:]).max()) / largest for b, n in enumerate(amounts)
    )
    verdict = worst_of(bits.judge(content), rounding.judge(alone))
    if bits.judge(content) != "clean":
        return Finding(
            verdict=verdict,
            worst=content,
            limit=bits.noise,
            message=f"outputs change by {content:.1e} when the padding is replaced",
        )
    message = "outputs keep every bit when the padding is replaced, and are those of the sequence alone"
    if verdict != "clean":
        message = f"a padded sequence gives outputs that differ by {alone:.1e} from those that it gives alone"
    return Finding(verdict=verdict, worst=alone, limit=rounding.noise, message=message)


def _change(a: torch.Tensor, b: torch.Tensor, sample: int, start: int) -> float:
    return float(change_T(a[sample : sample + 1, start:], b[sample : sample + 1, start:]).max())
