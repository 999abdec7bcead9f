"""Gradient norms in a module that tfblock did not build, at the weights that it has: nothing is compared."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import hypot, isfinite, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes.factory import RAISED, said
from tfblock_cli.probes.float64 import for_float64
from tfblock_cli.probes.gradflow.gradients import euclidean_norms
from tfblock_cli.probes.gradflow.guards import MESSAGES
from tfblock_cli.probes.gradflow.layers import Layers, find_layers, has_clones
from tfblock_cli.probes.gradflow.losses import loss_of
from tfblock_cli.probes.prints import prints_to_stderr
from tfblock_cli.probes.room import HELPS_TARGET, require
from tfblock_cli.probes.subject import Subject, has_noise
from tfblock_cli.probes.target import from_target, of_module, tried
from tfblock_cli.results.gradflow import Row
from tfblock_cli.results.progress import NoProgress, Progress
from tfblock_cli.results.result import Check, Result
from tfblock_cli.results.target_gradflow import ParameterFacts, TargetGradflowData
from tfblock_cli.spec.target import TargetExperiment

NAMED = 5
"""Of the parameters without a gradient, those that a warning names."""
_BESIDE = "a copy that is run, and its gradients"


def run_target(
    experiment: TargetExperiment, *, needs_layers: bool = False, progress: Progress | None = None
) -> Result[TargetGradflowData]:
    """Measure the experiment's target. What its code prints goes to stderr: stdout is the report's.

    Args:
        experiment: What it is, what it takes, and how it is asked.
        needs_layers: Whether one without a list of layers is refused before it is run.
        progress: Told about every seed.

    Raises:
        BadInput: The device has no numbers; or the target cannot be made, has no layers, does not take what it was said
            to take, or lets no gradient through.
    """
    if experiment.device == "meta":
        raise BadInput(Problem("device", "there are no numbers on the device meta, and a gradient is one"))
    where = f"target {experiment.target.factory}"
    with prints_to_stderr():
        subject, *_ = from_target(experiment, beside=_beside_weights, what=f"its weights, {_BESIDE}")
        if needs_layers and not find_layers(subject.module).modules:
            message = (
                "no list of layers was found in it (nn.ModuleList or nn.Sequential of one class): none can be drawn"
            )
            raise BadInput(Problem(where, message))
        return _ask(subject, experiment, where, experiment.model_dump(), progress)


def run_module(
    module: nn.Module, experiment: TargetExperiment, *, progress: Progress | None = None
) -> Result[TargetGradflowData]:
    """Measure a module in hand; it comes back unchanged.

    Args:
        module: In the place of the experiment's factory.
        experiment: What it takes, and how it is asked.
        progress: Told about every seed.

    Raises:
        BadInput: There is no room for the gradients; the module does not take what it was said to take, or lets no
            gradient through.
    """
    target, where = experiment.target, type(module).__name__
    asked = experiment.model_dump()
    asked["target"]["factory"] = f"{type(module).__module__}.{where}"  # no factory: it was handed over
    subject = of_module(module, target.vocab_size, target.d_model, target.output_key)
    require(_beside_weights(subject), str(subject.device), f"{where}, {_BESIDE},", HELPS_TARGET)
    with prints_to_stderr():
        return _ask(subject, experiment, where, asked, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one backward pass leaves behind; norms by parameter name and by layer."""

    loss_name: str
    loss: float
    input: float | None
    parameters: Mapping[str, float]
    hidden: Mapping[int, float]
    rms: Mapping[int, float]

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of them."""
        there = () if self.input is None else (self.input,)
        return (self.loss, *there, *self.parameters.values(), *self.hidden.values(), *self.rms.values())


def _beside_weights(subject: Subject) -> int:
    """Bytes of the copy of the weights that is run, of its gradients, and of the one whose norm is taken in float64."""
    weights = [*subject.module.parameters()]
    cast = max((8 * weight.numel() for weight in weights if weight.dtype != torch.float64), default=0)
    return 2 * sum(weight.numel() * weight.element_size() for weight in weights) + cast


def _ask(
    subject: Subject, experiment: TargetExperiment, where: str, asked: Mapping[str, Any], progress: Progress | None
) -> Result[TargetGradflowData]:
    progress = progress or NoProgress()
    settings = experiment.gradflow
    seeds = tuple(range(experiment.seed, experiment.seed + settings.seeds))
    module, layers = subject.module, find_layers(subject.module)
    subject = tried(subject, experiment.input.seq_len, where)
    progress.start("gradflow", len(seeds))
    cells: dict[int, _Seen] = {}
    for seed in seeds:
        cells[seed] = _measure(subject, layers, experiment, seed, where)
        progress.advance()
    progress.stop()
    facts = tuple(_facts(module, layers, cells.values()))
    return Result(
        command="gradflow",
        data=TargetGradflowData(
            loss=cells[seeds[0]].loss_name,
            layers=layers.path,
            layer_type=layers.type_name,
            depth=len(layers.modules),
            seeds=seeds,
            parameters=facts,
            forwards=len(cells),
            vjps=len(cells),
            rows=tuple(row for seed, seen in cells.items() for row in _rows(seed, seen, layers)),
        ),
        checks=(_finite(cells),),
        warnings=tuple(_warnings(module, layers, facts)),
        experiment=asked,
    )


def _measure(subject: Subject, layers: Layers, experiment: TargetExperiment, seed: int, where: str) -> _Seen:
    """One forward and one backward pass in eval mode; the module keeps nothing of it."""
    module, shape = subject.module, (experiment.input.batch_size, experiment.input.seq_len)
    weights = {name: weight for name, weight in module.named_parameters() if weight.is_floating_point()}
    with _own_gradients(weights.values()), subject.lend(subject.dtype):
        torch.manual_seed(seed)  # should it draw in eval mode as well; lend puts the state back
        x = subject.draw(shape, generator(seed, "input"), subject.dtype)
        x.requires_grad_(not subject.vocab_size)
        for weight in weights.values():
            weight.requires_grad_()
        try:
            with _watched(layers.modules) as (hidden, rms):
                y = subject(x)
                name = _loss_name(experiment.gradflow.loss, subject, y, where)
                loss = loss_of(y, name, seed)
                if not loss.requires_grad:
                    message = "its output has no gradient: does it run under torch.no_grad, or detach?"
                    raise BadInput(Problem(where, message))
                loss.backward()  # type: ignore[no-untyped-call]
        except BadInput:
            raise
        except RAISED as error:
            raise BadInput(Problem(where, f"forward and backward it raised {said(error)}")) from error
        source, *norms = euclidean_norms(map(_dense, (x.grad, *(weight.grad for weight in weights.values()))))
        return _Seen(
            loss_name=name,
            loss=float(loss.detach()),
            input=None if subject.vocab_size else source,
            parameters=dict(zip(weights, norms, strict=True)),
            hidden=hidden,
            rms=rms,
        )


def _loss_name(asked: str, subject: Subject, y: Tensor, where: str) -> Any:
    if asked == "auto":
        predicts = y.dim() == 3 and y.shape[-1] == subject.vocab_size
        return "cross_entropy" if predicts else "random_projection"
    if asked == "cross_entropy" and y.dim() != 3:
        message = f"cross_entropy needs an output (B, T, V), not {tuple(y.shape)}; use random_projection"
        raise BadInput(Problem(where, message))
    return asked


def _dense(gradient: Tensor | None) -> Tensor | None:
    """An embedding may have a sparse gradient: entries that are not stored are zeros."""
    return gradient.coalesce().values() if gradient is not None and gradient.is_sparse else gradient


@contextmanager
def _own_gradients(weights: Iterable[nn.Parameter]) -> Iterator[None]:
    """None for a while; afterwards those that were there, the very tensors."""
    before = [(weight, weight.grad) for weight in weights]
    for weight, _ in before:
        weight.grad = None
    try:
        yield
    finally:
        for weight, gradient in before:
            weight.grad = gradient


@contextmanager
def _watched(layers: Sequence[nn.Module]) -> Iterator[tuple[dict[int, float], dict[int, float]]]:
    """By layer, the gradient norm and the rms of what it puts out, where that is, or begins with, a tensor.

    A module that stands in several places of the list is met place by place; one that is called more often than it
    stands there is seen at its last call.
    """
    hidden: dict[int, float] = {}
    rms: dict[int, float] = {}
    places: dict[nn.Module, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault(layer, []).append(index)
    left = {layer: [*indices] for layer, indices in places.items()}
    listening: dict[int, Any] = {}

    def keep(index: int, gradient: Tensor) -> None:
        (hidden[index],) = euclidean_norms([gradient])

    def see(layer: nn.Module, _: Any, output: Any) -> None:
        index = left[layer].pop(0) if len(left[layer]) > 1 else left[layer][0]
        stream = output[0] if isinstance(output, Sequence) and output else output
        if not isinstance(stream, Tensor) or not stream.is_floating_point():
            return
        (size,) = euclidean_norms([stream.detach()])
        rms[index] = size / sqrt(stream.numel())
        if index in listening:
            listening[index].remove()
        if stream.requires_grad:  # a hook sees it as it is now, even if the next layer adds to it in place
            listening[index] = stream.register_hook(partial(keep, index))  # type: ignore[no-untyped-call]

    handles = [layer.register_forward_hook(see) for layer in places]
    try:
        yield hidden, rms
    finally:
        for handle in handles:
            handle.remove()


def _facts(module: nn.Module, layers: Layers, cells: Iterable[_Seen]) -> Iterator[ParameterFacts]:
    seen = [cell.parameters for cell in cells]
    for name, parameter in module.named_parameters():
        layer, group = layers.place(name)
        size = float(torch.linalg.vector_norm(for_float64(parameter.detach())[0].double()))
        yield ParameterFacts(
            name=name,
            layer=layer,
            group=group,
            shape=tuple(parameter.shape),
            count=parameter.numel(),
            rms=size / sqrt(max(parameter.numel(), 1)),
            dead=all(norms.get(name, 0.0) == 0 for norms in seen),
        )


def _rows(seed: int, seen: _Seen, layers: Layers) -> Iterator[Row]:
    """In the long format of a comparison, with no placement."""
    groups: dict[tuple[int | None, str], list[float]] = {}
    for name, norm in seen.parameters.items():
        groups.setdefault(layers.place(name), []).append(norm)

    def row(group: str, metric: str, value: float, layer: int | None = None) -> Row:
        return Row(
            placement="",
            seed=seed,
            depth=len(layers.modules),
            stage="as-is",
            step=0,
            layer=layer,
            group=group,
            metric=metric,
            value=value,
        )

    yield row("model", "loss", seen.loss)
    yield row("model", "grad_norm", hypot(*seen.parameters.values()))
    if seen.input is not None:
        yield row("input", "grad_norm", seen.input)
    for (layer, group), norms in groups.items():
        if layer is None:
            yield row(group, "grad_norm", hypot(*norms))
    for index in range(len(layers.modules)):
        own = {group: norms for (layer, group), norms in groups.items() if layer == index}
        yield row("block", "grad_norm", hypot(*(norm for norms in own.values() for norm in norms)), index)
        for group, norms in own.items():
            yield row(group, "grad_norm", hypot(*norms), index)
        if index in seen.hidden:
            yield row("hidden", "grad_norm", seen.hidden[index], index)
        if index in seen.rms:
            yield row("residual", "rms", seen.rms[index], index)


def _finite(cells: Mapping[int, _Seen]) -> Check:
    """As the guard of a comparison: held, or not to be judged."""
    against = [seed for seed, seen in cells.items() if not all(map(isfinite, seen.numbers))]
    seeds = ", ".join(map(str, against))
    return Check(
        name="guard.non_finite_gradients",
        subject="",
        passed=None if against else True,
        value=len(against),
        op="==",
        limit=0,
        message=f"{MESSAGES['non_finite_gradients']} (seed {seeds})" if against else "",
    )


def _warnings(module: nn.Module, layers: Layers, facts: Sequence[ParameterFacts]) -> Iterator[str]:
    if has_noise(module):
        yield "it has dropout, which is noise where an effect should stand; it was switched off"
    if layers.have_matrices and has_clones(layers.modules):
        yield f"{MESSAGES['cloned_layers']} ({layers.path})"
    dead = [fact.name for fact in facts if fact.dead]
    if dead:
        more = f" and {len(dead) - NAMED} more" if len(dead) > NAMED else ""
        yield f"no gradient reaches {', '.join(dead[:NAMED])}{more}"
