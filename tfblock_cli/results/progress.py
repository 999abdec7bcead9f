"""Progress: how a probe says how far it is, without knowing who listens."""

from typing import Protocol


class Progress(Protocol):
    """A count from 0 to ``total`` that somebody may show. A new ``start`` ends the count before it."""

    def start(self, description: str, total: int) -> None:
        """Begin to count ``total`` units of the work that ``description`` names."""

    def advance(self, n: int = 1) -> None:
        """Say that ``n`` more units are done."""

    def stop(self) -> None:
        """End the count, finished or not. Harmless when none is running."""


class NoProgress:
    """Nobody listens."""

    def start(self, description: str, total: int) -> None:
        """Ignore it."""

    def advance(self, n: int = 1) -> None:
        """Ignore it."""

    def stop(self) -> None:
        """Ignore it."""
