"""The subject comes back unchanged, and its content is what the probes rely on."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.probes.causality.asking import attention, findings
from tests.probes.models import experiment
from tfblock_cli.modules.initialization import generator
from tfblock_cli.probes.causality.zoo.parts import D, Net
from tfblock_cli.probes.causality.zoo.time_mixing import BatchNorm
from tfblock_cli.probes.subject import Subject, from_experiment, with_kernel


def subject(**keys) -> Subject:
    return Subject(module=nn.Linear(D, D), d_model=D, **keys)


def odd_model() -> nn.Sequential:
    """Everything that could be lost: mixed modes and flags, dropout, running statistics, a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(Net(attention(), BatchNorm()), nn.Dropout(0.3), nn.Linear(D, D))
    dropout, linear = parts(model)
    model.eval()
    dropout.train()
    linear.weight.requires_grad_(False)
    linear.bias.grad = torch.ones(D)
    return model


def parts(model: nn.Sequential) -> tuple[nn.Dropout, nn.Linear]:
    _, dropout, linear = model
    assert isinstance(dropout, nn.Dropout)
    assert isinstance(linear, nn.Linear)
    return dropout, linear


def test_the_model_comes_back_unchanged():
    model = odd_model()
    dropout, linear = parts(model)
    before = copy.deepcopy(model.state_dict())
    addresses = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    torch.manual_seed(7)
    findings(model)
    random = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(random, torch.rand(3))
    assert modes == [module.training for module in model.modules()]
    assert flags == [parameter.requires_grad for parameter in model.parameters()]
    assert addresses == {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name]), name
    assert dropout.p == 0.3
    assert linear.bias.grad is not None
    assert torch.equal(linear.bias.grad, torch.ones(D))
    assert all(not module._forward_hooks for module in model.modules())


def test_it_comes_back_when_the_probe_raises():
    model = odd_model()
    dropout, linear = parts(model)
    given = Subject(module=model, d_model=D)
    weight = linear.weight.data_ptr()

    def interrupted() -> None:
        with given.lend(torch.float64, training=True):
            assert linear.weight.dtype == torch.float64
            assert all(module.training for module in model.modules())
            assert dropout.p == 0
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (linear.weight.data_ptr(), linear.weight.dtype) == (weight, torch.float32)
    assert (model.training, dropout.training, dropout.p) == (False, True, 0.3)


def test_a_16_bit_weight_keeps_its_bits():
    model = nn.Linear(D, D).to(torch.bfloat16)
    before = model.weight.clone()
    with Subject(module=model, d_model=D).lend(torch.float64):
        model.weight.data += 1e-9  # more than the way back through bfloat16 could hold
    assert model.weight.dtype == torch.bfloat16
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("vocab_size", [2, 3, 50])
def test_every_redrawn_id_differs(vocab_size):
    ids = subject(vocab_size=vocab_size)
    x = ids.draw((3, 40), generator(0, "x"), torch.float64)
    z = ids.redraw(x, generator(0, "z"))
    assert bool((x != z).all())
    assert 0 <= int(z.min()) <= int(z.max()) < vocab_size
    assert len(set(z.flatten().tolist())) > min(vocab_size, 20) - 1  # not one and the same step for all


def test_redrawn_vectors_are_fresh_and_scaled():
    vectors = subject()
    x = vectors.draw((3, 400), generator(0, "x"), torch.float64)
    z = vectors.redraw(x, generator(0, "z"), 30.0)
    assert float(x.std()) == pytest.approx(1, rel=0.05)
    assert float(z.std()) == pytest.approx(30, rel=0.05)
    assert abs(float((x * z).mean())) < 1.5  # no trace of the old content


def test_the_same_numbers_in_every_dtype():
    vectors = subject()
    exact = vectors.draw((1, 5), generator(0, "x"), torch.float64)
    assert torch.equal(vectors.draw((1, 5), generator(0, "x"), torch.float32), exact.float())


def test_the_other_kernel_shares_the_weights():
    asked = experiment({"tie_embeddings": True}, kernel="sdpa")
    sdpa = from_experiment(asked)
    eager = with_kernel(sdpa, "eager")
    weights = dict(sdpa.module.named_parameters())
    assert weights.keys() == dict(eager.module.named_parameters()).keys()
    assert all(weights[name].data_ptr() == weight.data_ptr() for name, weight in eager.module.named_parameters())
    x = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        assert torch.allclose(sdpa(x), eager(x), rtol=0, atol=1e-12)
    assert (sdpa.kernel, eager.kernel) == ("sdpa", "eager")


def test_an_output_without_rows_is_refused():
    class Pooled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    with pytest.raises(ValueError, match="output"):
        Subject(module=Pooled(), d_model=D)(torch.zeros(2, 5, D))


def test_an_output_that_is_no_tensor_is_refused_and_can_be_read():
    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
            return super().forward(x), None

    with pytest.raises(TypeError, match="tuple"):
        Subject(module=Pair(D, D), d_model=D)(torch.zeros(2, 5, D))
    assert Subject(module=Pair(D, D), d_model=D, read=lambda out: out[0])(torch.zeros(2, 5, D)).shape == (2, 5, D)


def test_ids_reach_a_foreign_model_through_its_embedding():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, D), Net(attention()))
    data = findings(model, vocab_size=11, embedding="0")
    assert {row.verdict for row in data.probes} == {"clean", "skipped"}
    leaky = nn.Sequential(nn.Embedding(11, D), Net(attention(lambda h, q, k: k <= q + 1)))
    leaks = {leak.probe: leak for leak in findings(leaky, vocab_size=11, embedding="0").leaks}
    assert {"suffix_cuts", "gradient_map", "truncation"} == set(leaks)
    assert {(leak.out, leak.in_, leak.stage, leak.shape) for leak in leaks.values()} == {
        (0, 1, "1.mixes.0", "next token")
    }


class Noisy(nn.Module):
    """Multiplies by noise of the size of an attribute, in train mode or always."""

    def __init__(self, name: str, *, always: bool) -> None:
        super().__init__()
        self.name, self.always = name, always
        setattr(self, name, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        noise = getattr(self, self.name) * torch.rand_like(x) if self.training or self.always else 0.0
        return x * (1 + noise)


@pytest.mark.parametrize("name", ["attention_dropout", "router_jitter_noise"])
def test_noise_is_off_in_train_mode_and_never_has_to_be_in_eval_mode(name):
    data = findings(nn.Sequential(Net(attention()), Noisy(name, always=False)))
    assert {row.verdict for row in data.probes} <= {"clean", "skipped"}
    data = findings(nn.Sequential(Net(attention()), Noisy(name, always=True)))
    assert {row.mode: row.verdict for row in data.probes if row.name == "preflight"} == {
        "eval": "inconclusive",
        "train": "clean",
    }
