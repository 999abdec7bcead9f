"""Small experiments for the probes' tests, made from tables and not from files."""

from typing import Any

from tfblock_cli.spec.experiment import Experiment


def experiment(model: dict[str, Any] | None = None, **keys: Any) -> Experiment:
    """A model of width 16 with 2 heads; ``model`` and ``keys`` change what a test is about."""
    table = {"d_model": 16, "vocab_size": 11, "attention": {"n_heads": 2}} | (model or {})
    return Experiment.model_validate(
        {"dtype": "float64", "input": {"batch_size": 2, "seq_len": 5}} | keys | {"model": table}
    )
