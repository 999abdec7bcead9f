"""The Python API: eight names, imported when they are used."""

import pytest

import tfblock_cli
from tfblock_cli.errors import BadInput
from tfblock_cli.spec.experiment import Experiment

NAMES = {"load", "build", "params", "forward", "causality", "gradflow", "Decoder", "Block"}
SMALL = ("model.d_model=8", "model.n_layers=1", "model.attention.n_heads=2", "model.ffn.d_ff=16", "input.seq_len=4")


@pytest.fixture
def small() -> Experiment:
    return tfblock_cli.load("tiny_transformer", set=SMALL)


def test_these_names_and_no_others():
    assert set(tfblock_cli.__all__) == NAMES
    assert set(dir(tfblock_cli)) == NAMES | {"__version__"}
    for name in NAMES:
        assert callable(getattr(tfblock_cli, name))
    with pytest.raises(AttributeError, match="fordward"):
        tfblock_cli.fordward  # noqa: B018


def test_every_public_name_says_what_it_is():
    for name in NAMES:
        assert getattr(tfblock_cli, name).__doc__


def test_load_sets_keys(small):
    assert (small.model.d_model, small.model.n_layers, small.input.seq_len) == (8, 1, 4)


def test_load_complains_about_everything_at_once():
    with pytest.raises(BadInput) as complaint:
        tfblock_cli.load("tiny_transformer", set=["model.dropout=2", "seed=-1"])
    assert len(complaint.value.problems) == 2


def test_load_passes_warnings_on():
    with pytest.warns(UserWarning, match="d_ff"):
        tfblock_cli.load("tiny_transformer", set=["model.d_model=64"])


def test_params_takes_a_name_or_an_experiment(small):
    assert tfblock_cli.params("gpt2").data.total == 124_439_808
    assert tfblock_cli.params(small, verify=True).verdict == "pass"


def test_build_gives_a_decoder_that_runs(small):
    import torch

    decoder = tfblock_cli.build(small)
    assert isinstance(decoder, tfblock_cli.Decoder)
    assert isinstance(decoder.blocks[0], tfblock_cli.Block)
    assert decoder(torch.zeros((1, 4), dtype=torch.int64)).shape == (1, 4, 256)


def test_forward_assumes_the_eager_kernel_unless_told_otherwise(small):
    by_name = tfblock_cli.forward("tiny_transformer")
    assert by_name.experiment["kernel"] == "eager"
    assert by_name.data.output_shape == (1, 10, 256)
    assert tfblock_cli.forward(small).experiment["kernel"] == "sdpa"


def test_causality_and_its_negative_control(small):
    assert tfblock_cli.causality(small).verdict == "pass"
    unmasked = tfblock_cli.load("tiny_transformer", set=[*SMALL, "model.attention.pattern=bidirectional"])
    assert tfblock_cli.causality(unmasked).verdict == "fail"


def test_gradflow():
    asked = tfblock_cli.load("tiny_transformer", set=[*SMALL, "gradflow.seeds=1", "gradflow.depths=[2]"])
    assert {row.depth for row in tfblock_cli.gradflow(asked).data.rows} == {2}
