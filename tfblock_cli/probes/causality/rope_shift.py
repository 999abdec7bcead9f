"""RoPE shift: only distances matter. All positions + 1000 give the same outputs, twice the distances give others."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from tfblock_cli.modules.chunk import Chunk
from tfblock_cli.modules.decoder import Decoder
from tfblock_cli.modules.tables import Tables
from tfblock_cli.probes.causality.first_pair import where
from tfblock_cli.probes.causality.own_attention import attentions, weights_LHTT
from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.stage import Pass, first_difference
from tfblock_cli.probes.causality.verdict import Finding, Tolerance, other_shape, skipped
from tfblock_cli.probes.change import change_T, size
from tfblock_cli.results.causality import Leak
from tfblock_cli.spec.position import RoPE

SHIFT = 1000
ANGLES = Tolerance(1e-9, 1e-8)
"""Of a float64: an angle of 1000 is known to 1e-13, and the softmax multiplies what the scores lose."""


class _Stretched(Tables):
    """A layer's own tables, in which every distance is twice as long."""

    def __init__(self, own: Tables) -> None:
        super().__init__(own.length)
        self.own = own

    def turn_TE(self, rope: RoPE, d_head: int, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Of the positions 2 start, 2 start + 2, ..."""
        cos_TE, sin_TE = self.own.turn_TE(rope, d_head, 2 * start, 2 * stop, like)
        return cos_TE[::2], sin_TE[::2]


def rope_shift(session: Session) -> Finding:
    """Three forward passes: as it is, shifted, stretched.

    A query and a key that are turned by different angles show when shifted, unused positions when stretched.
    """
    decoder = session.subject.module
    if not isinstance(decoder, Decoder) or not isinstance(decoder.spec.position, RoPE):
        return skipped("only a decoder of ours with rope")
    x = session.draw("input")
    session.progress.start(f"rope shift, {session.mode_name}", 3)
    y = session(x)
    with _shifted(decoder):
        moved = float(change_T(session(x), y, size(y)).max())
    with _stretched(session):
        stretched = float(change_T(session(x), y, size(y)).max())
    tolerance = ANGLES if y.element_size() == 8 else other_shape(y.dtype)
    verdict = tolerance.judge(moved)
    message = f"all positions + {SHIFT} change outputs by {moved:.1e}, twice the distances by {stretched:.1e}"
    leak = None
    if verdict == "LEAK":
        leak = _leak(session, x, decoder, tolerance.noise)
        message += f"; the weight of input {leak.in_} in output {leak.out} is another one {where(leak)}"
    elif verdict == "clean" and stretched <= tolerance.noise and session.seq_len > 2:
        verdict, message = "no-flow", f"no position is used: {message}"
    return Finding(verdict=verdict, worst=moved, limit=tolerance.noise, message=message, leak=leak)


def _leak(session: Session, x: Tensor, decoder: Decoder, limit: float) -> Leak:
    """The first query and key whose weight is another one where both stand further back.

    No output sees what it may not but where it stands. Where all weights agree, the first output that changes stands
    for both.
    """
    y, before_LHTT = session(x), weights_LHTT(session, x)
    with _shifted(decoder):
        moved_T, after_LHTT = change_T(session(x), y, size(y)), weights_LHTT(session, x)
    change_TT = (after_LHTT - before_LHTT).abs().amax((0, 1))
    wrong = (change_TT > limit).nonzero().tolist()
    first = int((moved_T > limit).nonzero()[0])
    out, in_ = wrong[0] if wrong else (first, first)

    def shifted() -> Tensor:
        with _shifted(decoder):
            return session(x)

    rows = slice(0, session.seq_len)
    one, other = (Pass(run, session.seq_len, rows) for run in (partial(session, x), shifted))
    return Leak(
        probe="rope_shift",
        mode=session.mode_name,
        out=out,
        in_=in_,
        magnitude=float(change_TT[out, in_]) if wrong else float(moved_T[out]),
        cuts=int((moved_T > limit).sum()),
        cuts_total=session.seq_len,
        counted="outputs",
        stage=first_difference(session, one, other, limit),
        shape="absolute position",
    )


@contextmanager
def _shifted(decoder: Decoder) -> Iterator[None]:
    def later(module: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
        stream, chunk = args
        assert isinstance(chunk, Chunk)
        return stream, replace(chunk, start=SHIFT)

    handles = [block.register_forward_pre_hook(later) for block in decoder.blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _stretched(session: Session) -> Iterator[None]:
    layers = attentions(session)
    before = [attention.tables for attention in layers]
    try:
        for attention in layers:
            attention.tables = _Stretched(attention.tables)
        yield
    finally:
        for attention, own in zip(layers, before, strict=True):
            attention.tables = own
