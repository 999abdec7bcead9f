"""Session: a subject in one mode, asked through a meter that counts what it costs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes.causality.declared import CAUSAL, Declared
from tfblock_cli.probes.subject import Subject
from tfblock_cli.results.progress import Progress


@dataclass(frozen=True, slots=True)
class Mode:
    """How a model runs: in train or eval mode, with or without recording for a backward pass.

    Some kernels are chosen by it, so a model can be right in one mode and leak in another.
    """

    training: bool
    grad: bool

    def name(self, kernel: str) -> str:
        """As reports have it, with the kernel."""
        words = "train" if self.training else "eval, grad" if self.grad else "eval"
        return f"{words} {kernel}".rstrip()


EVAL = Mode(training=False, grad=False)
EVAL_GRAD = Mode(training=False, grad=True)
TRAIN = Mode(training=True, grad=True)


@dataclass(slots=True, kw_only=True)
class Session:
    """Calls a subject, draws its content from a seed, and counts.

    Attributes:
        declared: Which outputs may see which inputs.
        batch_size: B, of what is drawn unless told otherwise.
        forwards: Forward passes so far; a step with a cache is one.
        vjps: Backward passes so far.
        reach: Whether output i may depend on input j, (T, T).
    """

    subject: Subject
    mode: Mode
    dtype: torch.dtype
    seq_len: int
    seed: int
    progress: Progress
    declared: Declared = CAUSAL
    batch_size: int = 1
    forwards: int = field(default=0, init=False)
    vjps: int = field(default=0, init=False)
    reach: Tensor = field(init=False)
    _furthest: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.reach = self.declared.reach_TT(self.seq_len)
        self._furthest = (self.reach * torch.arange(self.seq_len)).amax(1)

    def hidden(self, k: int) -> Tensor:
        """Which of the outputs before k may not see any input from k on: (k,), bool."""
        return self._furthest[:k] < k

    def first_hidden(self, out: int) -> int:
        """The first input from which on an output may see none; T where it may see all."""
        return int(self._furthest[out]) + 1

    @property
    def mode_name(self) -> str:
        """As reports have it."""
        return self.mode.name(self.subject.kernel)

    @property
    def rounding(self) -> torch.dtype:
        """The coarser of the dtype that is asked for and the one that the subject rounds to on its way."""
        return max(self.dtype, self.subject.narrowest, key=lambda dtype: torch.finfo(dtype).eps)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Put the subject into the session's mode and dtype, for a while."""
        with self.subject.lend(self.dtype, training=self.mode.training), torch.set_grad_enabled(self.mode.grad):
            yield

    def __call__(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """One forward pass. The graph that the mode may have recorded is dropped.

        Args:
            x: The input.
            padding: Tokens at the left of each sequence that mean nothing, (B,); of a subject that can be told.
        """
        if padding is None:
            return self.recorded(x).detach().clone()  # some models write every output into one buffer
        self.forwards += 1
        y = self.subject.padded(x, padding)
        self.progress.advance()
        return y.detach()

    def step(self, x: Tensor, cache: Any, padding: Tensor | None = None) -> Tensor:
        """One forward pass of tokens that follow those in the cache; padding is told with the first ones."""
        self.forwards += 1
        y = self.subject.step(x, cache, padding)
        self.progress.advance()
        return y.detach()

    def recorded(self, x: Tensor) -> Tensor:
        """One forward pass, with the graph."""
        self.forwards += 1
        y = self.subject(x)
        self.progress.advance()
        return y

    def draw(self, name: str, batch_size: int = 0) -> Tensor:
        """Content (B, T) or (B, T, D) that depends on the seed and the name alone; the session's B unless given."""
        random = generator(self.seed, f"causality.{name}")
        return self.subject.draw((batch_size or self.batch_size, self.seq_len), random, self.dtype)

    def redraw(self, x: Tensor, name: str, scale: float = 1.0) -> Tensor:
        """Other content than x's at every position, which depends on the seed and the name alone."""
        return self.subject.redraw(x, generator(self.seed, f"causality.{name}"), scale)
