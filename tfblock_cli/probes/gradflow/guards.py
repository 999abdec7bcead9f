"""Guards: reasons for which a comparison cannot answer, measured where that is possible."""

from collections.abc import Iterator, Mapping
from typing import get_args

from tfblock_cli.probes.gradflow.cell import Seen
from tfblock_cli.results.gradflow import Guard
from tfblock_cli.results.result import Check
from tfblock_cli.spec import settings
from tfblock_cli.spec.experiment import Experiment

HONEST = 1e-3
"""An honest loss sends about as much gradient into the last norm as it takes out of it; a degenerate one rounding."""
FLOOR = 0.9
"""Below this mean square, which should be 1, a norm's output is more than 5 % too small: where eps outweighs the
variance it multiplies by 1 / sqrt(eps), and does not normalise. Smaller faults are lost among the seeds.
"""

Cells = Mapping[tuple[str, int, int], Seen]
"""(placement, depth, seed) to what was seen."""
MESSAGES: Mapping[str, str] = {
    "degenerate_loss": "the last norm lets nothing of the loss's gradient through: what is left is rounding noise",
    "cloned_layers": "layers have identical weights, so their gradients add up in step",
    "dropout": "dropout is noise where the placement's effect should stand; it was switched off",
    "no_final_norm": "the stream is un-normalised and no final norm follows, so output sizes are compared",
    "non_finite_gradients": "a loss, a gradient or a stream is nan or inf",
    "eps_floor": "what a sub-layer puts out is as small as the norm's eps, so the norm does not normalise it",
}
REMEDIES: Mapping[str, str] = {
    "degenerate_loss": "use another loss, or a larger d_model",
    "cloned_layers": "set initialization.clone_layers = false",
    "dropout": "set dropout = 0",
    "no_final_norm": 'set final_norm = "auto"',
    "non_finite_gradients": "use a shallower stack, smaller weights or a wider dtype",
    "eps_floor": "use a smaller norm.eps or larger initial weights",
}


def guards(experiment: Experiment, cells: Cells, variants: Mapping[str, Experiment]) -> Iterator[Guard]:
    """Every guard, in the order of the settings; ``variants`` are the experiments of the placements."""
    for name in get_args(settings.Guard):
        against = [kind for kind, variant in variants.items() if _speaks(name, kind, variant, cells)]
        yield Guard(
            name=name,
            placements=tuple(against),
            allowed=name in experiment.gradflow.allow,
            message=MESSAGES[name] if against else "",
        )


def _speaks(name: settings.Guard, kind: str, variant: Experiment, cells: Cells) -> bool:
    seen = [seen for (placement, _, _), seen in cells.items() if placement == kind]
    match name:
        case "degenerate_loss":
            return any(cell.degeneracy < HONEST for cell in seen)
        case "cloned_layers":
            return any(cell.cloned for cell in seen)
        case "dropout":
            return variant.model.dropout > 0
        case "no_final_norm":
            return variant.model.norm_placement.final_norm and not variant.model.has_final_norm
        case "non_finite_gradients":
            return not all(cell.is_finite for cell in seen)
        case "eps_floor":
            return any(cell.floor < FLOOR for cell in seen)


def checks(found: tuple[Guard, ...]) -> Iterator[Check]:
    """One per guard that is not allowed: held, or not to be judged."""
    for guard in found:
        if not guard.allowed:
            yield Check(
                name=f"guard.{guard.name}",
                subject=", ".join(guard.placements),
                passed=None if guard.placements else True,
                value=len(guard.placements),
                op="==",
                limit=0,
                message=f"{guard.message}; {remedy(guard)}" if guard.placements else "",
            )


def remedy(guard: Guard) -> str:
    """What to do about it."""
    return f'{REMEDIES[guard.name]}, or allow = ["{guard.name}"]'


def warnings(found: tuple[Guard, ...]) -> Iterator[str]:
    """One per guard that speaks and is allowed."""
    for guard in found:
        if guard.allowed and guard.placements:
            yield f"{guard.name} ({', '.join(guard.placements)}): {guard.message}; allowed by the experiment"
