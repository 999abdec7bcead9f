"""The text that is learned: what carries it, what is held out of it, and how much there is to be learned."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from itertools import pairwise
from math import log
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.probes.factory import did_you_mean
from tfblock_cli.spec.train import TEXTS

BLOCK = 1000
"""Characters; the first of every ten blocks is held out, so that both parts are alike."""
SEQUENCES = 64
"""Of held-out text that judge a run, spread evenly over it."""
LARGEST = 100_000_000
"""Characters of a user's file: the ids of more would not fit beside a model."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text as ids: a character is its rank among those that occur.

    Attributes:
        sha256: Of the text in UTF-8.
        characters: How many it has.
        symbols: How many different ones.
        unigram_entropy: Of how frequent each one is, in nats.
        bigram_entropy: Of one when the one before it is known, in nats.
        training: The ids (N,) that batches are cut from.
        held_out: The ids (M,) that none is cut from.
    """

    sha256: str
    characters: int
    symbols: int
    unigram_entropy: float
    bigram_entropy: float
    training: Tensor
    held_out: Tensor

    def batch(self, size: int, seq_len: int, random: torch.Generator) -> Tensor:
        """Sequences from anywhere in the training text, each with the character that follows it: (B, T + 1)."""
        starts_B = torch.randint(len(self.training) - seq_len, (size,), generator=random)
        return _cut(self.training, starts_B, seq_len)

    def unigram_loss(self, seq_len: int) -> float:
        """Of the judged characters, for a network that knows how frequent each is in the training text, in nats.

        Every character is counted once more than it is there, so that none is impossible.
        """
        counts_V = torch.bincount(self.training, minlength=self.symbols).double() + 1
        nats_V = counts_V.sum().log() - counts_V.log()
        return float(nats_V[self.judged(seq_len)[:, 1:]].mean())

    def judged(self, seq_len: int) -> Tensor:
        """The held-out sequences, the same for every run: (64, T + 1), fewer in a short text."""
        room = len(self.held_out) - seq_len
        starts_B = torch.arange(min(SEQUENCES, room)) * room // min(SEQUENCES, room)
        return _cut(self.held_out, starts_B, seq_len)


def _cut(ids: Tensor, starts_B: Tensor, seq_len: int) -> Tensor:
    return ids[starts_B[:, None] + torch.arange(seq_len + 1)]


def read(name: str) -> Text:
    """The text of ``[gradflow.train] text``: a word or a path.

    Raises:
        BadInput: There is no such file, or it is no UTF-8 text.
    """
    match name:
        case "python_docs":
            return of(_python_docs())
        case "markov":
            return of(markov(), bigram_entropy=MARKOV_ENTROPY)
        case path:
            return of(_file(path))


@lru_cache(2)
def of(text: str, *, bigram_entropy: float | None = None) -> Text:
    """Ids, parts and entropies of a text; ``bigram_entropy`` where it is known and need not be estimated."""
    rank = {character: i for i, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([rank[character] for character in text])
    is_held_out = torch.arange(len(ids)) // BLOCK % 10 == 0
    unigram = entropy(Counter(text))
    pairs = entropy(Counter(pairwise(text)))
    return Text(
        sha256=sha256(text.encode()).hexdigest(),
        characters=len(text),
        symbols=len(rank),
        unigram_entropy=unigram,
        bigram_entropy=max(pairs - unigram, 0.0) if bigram_entropy is None else bigram_entropy,
        training=ids[~is_held_out],
        held_out=ids[is_held_out],
    )


def entropy(counts: Counter[str] | Counter[tuple[str, str]]) -> float:
    """-sum p log p over the relative frequencies, in nats."""
    total = counts.total()
    return sum(-count / total * log(count / total) for count in counts.values())


def _python_docs() -> str:
    """The help topics that ``help()`` shows; their number and wording depend on the version of Python."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        message = "this Python comes without its help topics; use text = 'markov' or a file"
        raise BadInput(Problem("gradflow.train.text", message)) from None
    return "\n".join(topics[name] for name in sorted(topics))


ALPHABET = "".join(map(chr, range(48, 112)))
"""The 64 states of the Markov source, from 0 to o."""
NEXT: Sequence[int] = (8, 4, 2, 2)
"""How often, of 16 times, each of a state's four successors comes next."""
MARKOV_ENTROPY = sum(-times / 16 * log(times / 16) for times in NEXT)
"""Of the next character when the last one is known: 1.75 bits, 1.213 nats."""


@cache
def markov(length: int = 200_000, seed: int = 0) -> str:
    """A walk over 64 states, each with four successors of its own, which come next with 1/2, 1/4, 1/8 and 1/8.

    The same on every machine: ``random()`` is the one method of Python's generator that no version may change.
    """
    random = Random(seed).random
    shuffled = [sorted(ALPHABET, key=lambda _: random()) for _ in ALPHABET]
    after = {
        state: "".join(successor * times for successor, times in zip(others, NEXT, strict=False))
        for state, others in zip(ALPHABET, shuffled, strict=True)
    }
    state, walk = ALPHABET[0], []
    for _ in range(length):
        walk.append(state)
        state = after[state][int(16 * random())]
    return "".join(walk)


def _file(path: str) -> str:
    where = f"gradflow.train.text = {path!r}"
    try:
        raw = Path(path).read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(Problem(where, "is not UTF-8 text")) from None
    except (OSError, ValueError) as error:  # ValueError: a character that no path has
        reason = error.strerror if isinstance(error, OSError) else error
        hint = did_you_mean(Path(path).name, [*TEXTS]) or "; give a text file, 'python_docs' or 'markov'"
        raise BadInput(Problem(where, f"cannot be read: {reason}{hint}")) from None
    if len(text) > LARGEST:
        raise BadInput(Problem(where, f"has {len(text):,} characters; up to {LARGEST:,} are read"))
    return text.replace("\r\n", "\n")
