"""The terminal, the only package that imports Rich. One way in: ``render`` turns a result into its screen."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, assert_never

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment

from tfblock_cli.report.terminal.console import PIPE_WIDTH, to_plain
from tfblock_cli.report.terminal.parts import closing, heading
from tfblock_cli.results.result import Result


def render(result: Result[Any], *, all_layers: bool = False) -> RenderableType:
    """The screen of a result: heading, figures, warnings, checks and, last, the verdict.

    ``all_layers``: with what ``gradflow`` saw of every layer.
    """
    return _Trimmed(Group(heading(result), _figures(result, all_layers), closing(result)))


def to_text(result: Result[Any], width: int = PIPE_WIDTH, *, all_layers: bool = False) -> str:
    """The same screen without colour. It holds no times, so that two runs of one experiment read alike."""
    return to_plain(render(result, all_layers=all_layers), width)


def explain(metric: str) -> RenderableType:
    """What a metric of ``gradflow`` is.

    Raises:
        KeyError: There is none of that name.
    """
    from tfblock_cli.report.terminal import gradflow

    return _Trimmed(gradflow.explain(metric))


def _figures(result: Result[Any], all_layers: bool) -> RenderableType:
    # Imported here: ``params`` has to start fast and needs neither charts nor the other commands' results.
    match result.command:
        case "params":
            from tfblock_cli.report.terminal import params

            return params.screen(result.data, result.experiment)
        case "forward":
            from tfblock_cli.report.terminal import forward

            return forward.screen(result.data)
        case "causality":
            from tfblock_cli.report.terminal import causality

            said = {check.message for check in result.checks if check.passed is not True}
            return causality.screen(result.data, said)
        case "gradflow":
            from tfblock_cli.report.terminal import gradflow, target_gradflow
            from tfblock_cli.results.target_gradflow import TargetGradflowData

            if isinstance(result.data, TargetGradflowData):
                return target_gradflow.screen(result.data)
            return gradflow.screen(result.data, {check.name for check in result.checks}, all_layers=all_layers)
        case _:
            assert_never(result.command)


@dataclass(frozen=True, slots=True)
class _Trimmed:
    """A renderable without the blanks with which Rich pads its lines: they would end up in every log."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for line in console.render_lines(self.content, options, pad=False):
            while line and not line[-1].text.rstrip():
                line.pop()
            if line:
                last = line.pop()
                line.append(Segment(last.text.rstrip(), last.style))
            yield from line
            yield Segment.line()
