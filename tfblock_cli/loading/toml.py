"""Back to TOML, and the fingerprint of an experiment."""

from collections.abc import Mapping
from typing import Any

from tfblock_cli.spec.target import AnyExperiment


def to_toml(table: Mapping[str, Any]) -> str:
    """The table as TOML, which has no null: a key whose value is None is left out."""
    from tomli_w import dumps

    return dumps(_without_none(table))


def resolved_toml(experiment: AnyExperiment) -> str:
    """The experiment as TOML with every default written out; reading it gives an equal experiment."""
    return to_toml(experiment.model_dump())


def sha256(experiment: AnyExperiment) -> str:
    """Of the resolved experiment as JSON with sorted keys and no spaces."""
    import hashlib
    import json

    text = json.dumps(experiment.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value
