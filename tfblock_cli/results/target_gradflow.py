"""What ``gradflow`` answers about a target: gradient norms in somebody else's model, at the weights that it has."""

from dataclasses import dataclass

from tfblock_cli.results.gradflow import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """One parameter of the target.

    Attributes:
        name: As in ``named_parameters()``.
        layer: The layer that it belongs to; None outside the layers.
        group: Its name within the layer; outside, the path of the module that has it.
        shape: Its shape.
        count: Its entries.
        rms: The root mean square of its entries.
        dead: Whether no seed gave it a gradient, or every seed one of zeros.
    """

    name: str
    layer: int | None
    group: str
    shape: tuple[int, ...]
    count: int
    rms: float
    dead: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGradflowData:
    """The answer of ``gradflow`` about a target: there is nothing to compare, so there is no summary and no ratio.

    The rows have placement "", stage "as-is" and, beside those of a comparison, the group of every parameter.

    Attributes:
        loss: The one that was taken.
        layers: The path of the list that was taken for the layers; "" where there is none.
        layer_type: The class of its items.
        depth: How many there are.
        seeds: Of the inputs.
        parameters: Every one, in the order of ``named_parameters()``.
        forwards: Forward passes; the first call, which shows whether it runs at all, is not counted.
        vjps: Backward passes.
        rows: Every number that was measured.
    """

    loss: str
    layers: str
    layer_type: str
    depth: int
    seeds: tuple[int, ...]
    parameters: tuple[ParameterFacts, ...]
    forwards: int
    vjps: int
    rows: tuple[Row, ...]
