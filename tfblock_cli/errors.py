"""What can go wrong in the user's hands, told in the user's words.

Raised anywhere, caught in one place: ``tfblock_cli.__main__.main``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of the input: where it stands, what is wrong, what would be right.

    Attributes:
        where: The file, flag or key in the user's words, such as ``x.toml: model.d_model`` or ``--heads``.
        message: The value, the rule it breaks and, where there is one, the closest known name.
    """

    where: str
    message: str

    def __str__(self) -> str:
        line = f"{self.where}: {self.message}" if self.where else self.message
        return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)


class BadInput(Exception):  # noqa: N818 - it names what the user handed over, not an error of ours
    """The experiment, a flag or the machine does not allow this run: exit code 2, nothing saved.

    Attributes:
        problems: Every fault at once, in the order in which the user would meet them.
    """

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class NotSaved(Exception):  # noqa: N818
    """A result could not be written: exit code 3, whatever the verdict was."""
