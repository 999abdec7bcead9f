"""What stage ``train`` of ``gradflow`` answers: how every training run went."""

from dataclasses import dataclass
from typing import NamedTuple


class Condition(NamedTuple):
    """What a run was made under, its placement and its seed apart."""

    depth: int
    lr: float
    warmup: int

    @property
    def words(self) -> str:
        """As the user may read it."""
        return f"{self.depth} layers, lr {self.lr:g}, warmup {self.warmup}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training run.

    Attributes:
        placement: The norm placement's kind.
        depth: Number of blocks L.
        lr: The learning rate behind the warmup.
        warmup: Steps over which it grew from 0.
        seed: Of the weights and of the order of the text.
        verdict: LEARNS, SLOW, STUCK, COLLAPSED or DIVERGED; "" where the run did not come to an end of its own.
        held_out_loss: After the last step, in nats.
        cosine: Between different tokens, on the held-out text.
        update_ratio: Of the last step.
        error: Why it did not come to an end; "" if it did.
    """

    placement: str
    depth: int
    lr: float
    warmup: int
    seed: int
    verdict: str
    held_out_loss: float
    cosine: float
    update_ratio: float
    error: str

    @property
    def condition(self) -> Condition:
        """Depth, learning rate and warmup."""
        return Condition(self.depth, self.lr, self.warmup)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What was trained on, how, and how every run went. The curves are rows of the stage "train".

    Attributes:
        text: "python_docs", "markov" or a path.
        text_sha256: Of the text in UTF-8.
        characters: How many it has.
        symbols: How many different ones.
        unigram_entropy: Of how frequent each character is, in nats.
        unigram_loss: Of a network that knows how frequent each is in the training text, on the held-out text, in nats.
        bigram_entropy: Of a character when the one before it is known, in nats: of "markov" no network comes below it.
        held_out_characters: How many are predicted to judge a run.
        optimizer: Its kind.
        steps: Of every run.
        batch_size: Sequences per step.
        seq_len: Characters per sequence.
        margin: See train.verdict.
        trials: Every run.
    """

    text: str
    text_sha256: str
    characters: int
    symbols: int
    unigram_entropy: float
    unigram_loss: float
    bigram_entropy: float
    held_out_characters: int
    optimizer: str
    steps: int
    batch_size: int
    seq_len: int
    margin: float
    trials: tuple[Trial, ...]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Every depth, learning rate and warmup, in the order in which they were asked for."""
        return tuple(dict.fromkeys(trial.condition for trial in self.trials))
