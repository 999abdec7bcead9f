"""The Python API: eleven names, imported when they are used."""

import copy

import pytest
import torch
from torch import Tensor, nn

import tfblock_cli
from tfblock_cli.errors import BadInput
from tfblock_cli.spec.experiment import Experiment

COMMANDS = {"load", "build", "params", "forward", "causality", "gradflow", "Decoder", "Block"}
NAMES = COMMANDS | {"check_causality", "check_gradients", "assert_causal"}
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


class Theirs(nn.Module):
    """Somebody's model: a causal mean with dropout, and on demand a leak of a given size."""

    def __init__(self, leak: float = 0.0) -> None:
        super().__init__()
        self.leak = leak
        self.embed, self.dropout, self.head = nn.Embedding(30, 6), nn.Dropout(0.5), nn.Linear(6, 30)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.dropout(self.embed(ids))
        counts = torch.arange(1, ids.shape[1] + 1, dtype=x.dtype)[:, None]
        logits: Tensor = self.head(x.cumsum(1) / counts + self.leak * x.mean(1, keepdim=True))
        return logits


IDS = torch.zeros(1, 6, dtype=torch.long)


def test_assert_causal_and_its_negative_control():
    tfblock_cli.assert_causal(Theirs(), IDS)
    with pytest.raises(AssertionError, match="Theirs is not causal") as failure:
        tfblock_cli.assert_causal(Theirs(1e-9), IDS)
    assert "output 0 depends on input 1" in str(failure.value)
    assert "full upper triangle" in str(failure.value)


def test_assert_causal_does_not_pass_what_cannot_be_told():
    with pytest.raises(AssertionError, match="the output holds nan"):
        tfblock_cli.assert_causal(Theirs(float("nan")), IDS)
    with pytest.raises(AssertionError, match="a single token has no future"):
        tfblock_cli.assert_causal(Theirs(), IDS[:, :1])


def test_assert_causal_strict_fails_on_rounding():
    class Convolution(nn.Module):
        """Causal, by a padded Fourier transform: it mixes all positions, so that roundings of the future stay."""

        def forward(self, x: Tensor) -> Tensor:
            T = x.shape[1]
            filter_T1 = 0.7 ** torch.arange(T, dtype=x.dtype)[:, None]
            spectrum = torch.fft.rfft(x, 2 * T, dim=1) * torch.fft.rfft(filter_T1, 2 * T, dim=0)
            y: Tensor = torch.fft.irfft(spectrum, 2 * T, dim=1)
            return y[:, :T]

    x = torch.zeros(1, 6, 3)
    tfblock_cli.assert_causal(Convolution(), x)
    with pytest.raises(AssertionError, match="noise"):
        tfblock_cli.assert_causal(Convolution(), x, strict=True)


def test_the_model_comes_back_as_it_was():
    model = Theirs().train()
    model.embed.eval()
    model.head.weight.requires_grad_(False)
    model.head.bias.grad = torch.ones(30)
    hook = model.head.register_forward_hook(lambda *_: None)
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    flags = copy.deepcopy({name: parameter.requires_grad for name, parameter in model.named_parameters()})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    for weights in ("as-is", "rescaled"):
        tfblock_cli.assert_causal(model, IDS, weights=weights, dtypes=["float64", "bfloat16"])
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert (model.training, model.embed.training, model.dropout.p) == (True, False, 0.5)
    assert flags == {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert torch.equal(model.head.bias.grad, torch.ones(30))
    assert list(model.head._forward_hooks) == [hook.id]
    assert not model.embed._forward_hooks
    assert not model.embed._forward_pre_hooks
    for name, tensor in model.state_dict().items():
        address, value = before[name]
        assert tensor.data_ptr() == address, name
        assert torch.equal(tensor, value), name


def test_check_causality_says_what_was_asked():
    result = tfblock_cli.check_causality(Theirs(), vocab_size=30, seq_len=5, seed=3)
    assert result.verdict == "pass"
    assert result.experiment["name"] == "Theirs"
    assert result.experiment["seed"] == 3
    assert result.experiment["target"]["vocab_size"] == 30
    assert {row.seq_len for row in result.data.probes} == {5, 37}
    window = tfblock_cli.check_causality(Theirs(), vocab_size=30, declare="window=3")
    assert window.verdict == "fail"
    assert "sliding_window" in window.data.declared


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "what does it take?"),
        ({"vocab_size": 31}, "IndexError"),
        ({"d_model": 6}, "called with vectors"),
        ({"vocab_size": 30, "declare": "windw=3"}, "causality.declare: expected one of"),
        ({"vocab_size": 30, "seq_len": -1}, "input.seq_len"),
        ({"vocab_size": 30, "dtypes": ["float31"]}, "causality.dtypes"),
        ({"vocab_size": 30, "output_key": "hidden"}, "there is no 'hidden'"),
    ],
)
def test_check_causality_refuses_what_makes_no_question(options, message):
    with pytest.raises(BadInput) as complaint:
        tfblock_cli.check_causality(Theirs(), **options)
    assert message in str(complaint.value)


def test_causality_of_a_file_that_names_code_needs_trust(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "colleague.py").write_text("from tests.test_api import Theirs\n")
    (tmp_path / "x.toml").write_text("[target]\nfactory = 'colleague:Theirs'\nvocab_size = 30\n")
    with pytest.raises(BadInput, match="--trust"):
        tfblock_cli.causality("x.toml")
    assert tfblock_cli.causality("x.toml", trust=True).verdict == "pass"
    with pytest.raises(BadInput, match="by tfblock causality and tfblock gradflow"):
        tfblock_cli.load("x.toml")


def test_check_gradients_of_a_module_in_hand():
    stack = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    before = copy.deepcopy(stack.state_dict())
    result = tfblock_cli.check_gradients(stack, torch.zeros(2, 5, 8), seeds=2, seed=4)
    assert (result.verdict, result.data.depth, result.data.seeds) == ("pass", 3, (4, 5))
    assert result.experiment["input"] == {"batch_size": 2, "seq_len": 5}
    assert result.experiment["target"]["factory"] == "torch.nn.modules.container.Sequential"
    assert all(torch.equal(tensor, before[name]) for name, tensor in stack.state_dict().items())
    longer = tfblock_cli.check_gradients(stack, d_model=8, seq_len=7)
    assert longer.experiment["input"] == {"batch_size": 1, "seq_len": 7}
    with pytest.raises(BadInput, match="loss"):
        tfblock_cli.check_gradients(stack, d_model=8, loss="sum")


def test_gradflow_of_a_target_in_a_file_needs_trust(tmp_path):
    (tmp_path / "gru.toml").write_text(
        "[target]\nfactory = 'torch.nn:GRU'\nkwargs = { input_size = 8, hidden_size = 4, batch_first = true }\n"
        "d_model = 8\n"
    )
    with pytest.raises(BadInput, match="names code to run"):
        tfblock_cli.gradflow(tmp_path / "gru.toml")
    data = tfblock_cli.gradflow(tmp_path / "gru.toml", trust=True).data
    assert {row.group for row in data.rows} >= {"weight_ih_l0", "weight_hh_l0", "input"}
