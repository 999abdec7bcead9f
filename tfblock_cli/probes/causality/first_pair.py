"""The first leaking pair: which output, which input, where in the model, and what the leak looks like."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tfblock_cli.probes.causality.session import Session
from tfblock_cli.probes.causality.stage import first_stage
from tfblock_cli.results.causality import Leak


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that failed.

    Attributes:
        k: The cut.
        z: The input whose outputs before k differ from those of x: x[:k] with another future, or with none.
        moved: The change of the outputs before k, (k,), relative to the largest output.
        limit: The largest one that is none.
    """

    k: int
    z: Tensor
    moved: Tensor
    limit: float

    @property
    def rows(self) -> frozenset[int]:
        """The outputs that changed."""
        return frozenset(int(i) for i in (self.moved > self.limit).nonzero().flatten())

    @property
    def out(self) -> int:
        """The first of them."""
        return min(self.rows)


CLOSER = 8
"""Cuts that may be tried besides, where the first one that failed lies too far behind its first output."""


@dataclass(slots=True)
class Failures:
    """The cuts that failed: of each the outputs that changed, of the smallest everything.

    What is kept does not grow with the number of cuts but for one set of indices each.
    """

    cuts: Sequence[int]
    _rows: dict[int, frozenset[int]] = field(default_factory=dict, init=False)
    _first: Cut | None = field(default=None, init=False)

    def add(self, cut: Cut) -> None:
        """One more, in any order, any cut more than once."""
        self._rows[cut.k] = self._rows.get(cut.k, frozenset()) | cut.rows
        if self._first is None or cut.k < self._first.k:
            self._first = cut

    @property
    def is_empty(self) -> bool:
        """Whether no cut has failed."""
        return self._first is None

    def first(self, session: Session, cut: Callable[[int], Cut]) -> Cut:
        """The one with the smallest k; where cuts were left out, the one between its first output and what that sees.

        Args:
            session: It knows which inputs an output may see.
            cut: Tries one cut more.
        """
        first = self._first
        assert first is not None
        for _ in range(CLOSER):
            k = session.first_hidden(first.out)
            if k >= first.k or not (closer := cut(k)).rows or closer.out > first.out:
                break
            first = closer  # a nearer input may have moved an earlier output as well
        return first

    def leak(self, probe: str, session: Session, x: Tensor, first: Cut, in_: int) -> Leak:
        """The report of the first pair; costs two forward passes to find the stage."""
        rows = {k: self._rows.get(k, frozenset()) for k in self.cuts}
        return Leak(
            probe=probe,
            mode=session.mode_name,
            out=first.out,
            in_=in_,
            magnitude=float(first.moved[first.out]),
            cuts=len(self._rows),
            cuts_total=len(self.cuts),
            stage=first_stage(session, x, first.z, first.k, first.limit),
            shape=shape_of(rows, in_, x.shape[1]),
        )


def where(leak: Leak) -> str:
    """What it looks like and where it comes in, in words."""
    return f"({leak.shape}{f'; first at {leak.stage}' if leak.stage else ''})"


def first_input(k: int, seq_len: int, moved: Callable[[int], bool]) -> int:
    """The smallest j for which changing the inputs k..j is enough, by bisection: log2 T forward passes."""
    low, high = k, seq_len - 1
    while low < high:
        middle = (low + high) // 2
        if moved(middle):
            high = middle
        else:
            low = middle + 1
    return low


def shape_of(rows: Mapping[int, frozenset[int]], in_: int, seq_len: int) -> str:
    """What the failing cuts have in common.

    Args:
        rows: For every cut that was tried, the outputs before it that changed.
        in_: The input of the first pair.
        seq_len: T.
    """
    everything = {k: frozenset(range(k)) for k in rows}
    if rows == everything and in_ == min(rows):
        return "full upper triangle"
    if rows == everything and in_ == seq_len - 1:
        return "last column"
    if all(changed == {k - 1} for k, changed in rows.items()):
        return "next token"
    for b in range(2, seq_len):
        if all(changed == frozenset(range(k // b * b, k)) for k, changed in rows.items()):
            return f"within blocks of {b}"
    if all(changed == (everything[k] if k <= in_ else frozenset()) for k, changed in rows.items()):
        return "one column"
    return "one row" if len(frozenset().union(*rows.values())) == 1 else "other"
