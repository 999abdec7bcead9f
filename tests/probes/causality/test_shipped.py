"""A small copy of every shipped experiment is clean, in float64 and bfloat16, in which lengths and caches count too.

At their own sizes: ``python benchmarks/causality.py shipped``.
"""

import pytest

from tests.probes.causality.asking import row
from tests.probes.models import experiment
from tfblock_cli.loading import load, shipped
from tfblock_cli.probes import causality
from tfblock_cli.probes.causality.shrink import shrunk
from tfblock_cli.spec.experiment import Experiment

T = 7


def small(name: str) -> Experiment:
    """Its kinds, patterns and ratios, at two layers where those are alike, and for 7 tokens at most."""
    table = load(name).experiment.model_dump()
    model = shrunk(load(name).experiment.model)
    table["model"] = model.model_dump() | {"n_layers": model.n_layers if model.layers else 2, "max_seq_len": T}
    dtypes = {"dtypes": ["float64", "bfloat16"], "shrink": False}
    return Experiment.model_validate(
        {key: table[key] for key in ("name", "seed", "kernel", "model")}
        | {"dtype": "bfloat16", "input": {"seq_len": T}, "causality": table["causality"] | dtypes}
    )


@pytest.mark.parametrize("name", shipped())
def test_it_is_clean_in_64_and_in_16_bits(name):
    result = causality.run(small(name))
    assert {row.verdict for row in result.data.probes} <= {"clean", "skipped"}
    for dtype in ("float64", "bfloat16"):
        clean = {row.name for row in result.data.probes if row.verdict == "clean" and row.dtype == dtype}
        assert clean >= {"preflight", "suffix_cuts", "truncation", "incremental"}
    assert result.verdict == "pass"


def test_what_lengths_and_caches_may_change_in_sixteen_bits_is_measured():
    """It is a few roundings of the dtype, and less than what one input does."""
    data = causality.run(experiment({"max_seq_len": T}, dtype="bfloat16", input={"seq_len": T})).data
    for name in ("truncation", "incremental"):
        found = next(found for found in data.probes if found.name == name and found.dtype == "bfloat16")
        assert found.verdict == "clean"
        assert 0 < row(data, name).limit < 1e-9 < 2**-9 < found.limit < 0.2


def test_where_rounding_is_as_large_as_what_one_input_does_nothing_is_claimed():
    """Attention so weak that an input changes less than bfloat16 rounds."""
    model = {"max_seq_len": T, "initialization": {"kind": "normal", "std": 0.001}}
    asked = experiment(model, dtype="bfloat16", input={"seq_len": T}, causality={"weights": "as-is"})
    told = {found.name: found for found in causality.run(asked).data.probes if found.dtype == "bfloat16"}
    for name in ("truncation", "incremental"):
        assert told[name].verdict == "skipped"
        assert "what one input does" in told[name].message
