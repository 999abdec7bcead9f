"""Every shipped experiment that fits is clean, in float64 and in bfloat16; in 16 bits a mask-less twin still leaks."""

import pytest

from tfblock_cli.loading import load, shipped
from tfblock_cli.probes import causality

SMALL = [name for name in shipped() if name not in ("gpt2", "depth_slopes", "pre_vs_post")]  # those take long
DTYPES = 'causality.dtypes=["float64", "bfloat16"]'


@pytest.mark.parametrize("name", SMALL)
def test_it_is_clean(name):
    result = causality.run(load(name, sets=[DTYPES, "model.n_layers=4", "gradflow={}"]).experiment)
    assert {row.verdict for row in result.data.probes} <= {"clean", "skipped"}
    assert {"float64", "bfloat16"} <= {row.dtype for row in result.data.probes if row.verdict == "clean"}
    assert result.verdict == "pass"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_excuse_no_leak(dtype):
    sets = [f"dtype={dtype}", "model.attention.pattern=bidirectional"]
    result = causality.run(load("tiny_transformer", sets=sets).experiment)
    assert {row.dtype for row in result.data.probes if row.verdict == "LEAK"} == {"float64", dtype}
    assert result.verdict == "fail"


def test_lengths_are_not_compared_in_sixteen_bits():
    result = causality.run(load("tiny_transformer", sets=["dtype=bfloat16"]).experiment)
    told = {row.verdict for row in result.data.probes if row.dtype == "bfloat16" and row.name == "truncation"}
    assert told == {"skipped"}
    assert result.verdict == "pass"
