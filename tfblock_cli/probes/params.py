"""How many parameters, FLOPs and bytes? Answered from the spec; torch is imported to verify the answer only."""

from tfblock_cli.account import flops, memory, weights
from tfblock_cli.results.params import ParamsData, Verification
from tfblock_cli.results.result import Check, Result
from tfblock_cli.spec.experiment import Experiment


def run(experiment: Experiment, *, verify: bool = False) -> Result[ParamsData]:
    """Count; with ``verify`` also build the model on the meta device and compare name by name."""
    model = experiment.model
    components = weights.components(model)
    counts = {component.name: component.count for component in components}
    total = sum(counts.values())
    verified = _verify(experiment) if verify else None
    return Result(
        command="params",
        data=ParamsData(
            total=total,
            total_without_embeddings=total - counts.get("embedding", 0) - counts.get("position", 0),
            total_without_positions=total - counts.get("position", 0),
            by_path=total + (counts["embedding"] if model.tie_embeddings else 0),
            active=total,
            components=components,
            per_layer=weights.layer_groups(model),
            flops=flops.flops(model, experiment.input.batch_size, experiment.input.seq_len),
            memory=memory.memory(experiment),
            verified=verified,
        ),
        checks=(_check(verified),) if verified else (),
        experiment=experiment.model_dump(),
    )


def _verify(experiment: Experiment) -> Verification:
    from tfblock_cli.modules.decoder import build

    built = build(experiment.model_copy(update={"device": "meta"}))
    found = {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}
    counted = {weight.name: tuple(map(int, weight.shape)) for weight in experiment.model.weights()}
    differences = [f"{name}: counted {counted[name]}, but the model has none" for name in counted.keys() - found.keys()]
    differences += [f"{name}: the model has {found[name]}, but it was not counted" for name in found.keys() - counted]
    differences += [
        f"{name}: counted {counted[name]}, but the model has {found[name]}"
        for name in counted.keys() & found.keys()
        if counted[name] != found[name]
    ]
    return Verification(
        tensors=len(found),
        parameters=sum(parameter.numel() for parameter in built.parameters()),
        differences=tuple(sorted(differences)),
    )


def _check(verified: Verification) -> Check:
    differences = len(verified.differences)
    return Check(
        name="account_equals_model",
        subject="named_parameters",
        passed=not differences,
        value=differences,
        op="==",
        limit=0,
        message="; ".join(verified.differences)
        or f"{verified.tensors} tensors of the built model, {verified.parameters} parameters, agree name by name",
    )
