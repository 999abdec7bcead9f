"""What modules of other people do, and what has once been called clean, leaking or unchanged wrongly."""

import copy

import pytest
import torch
from torch import Tensor, nn

import tfblock_cli as tfblock
from tfblock_cli.errors import BadInput
from tfblock_cli.probes.change import size

V, D, T = 20, 8, 8


class Causal(nn.Module):
    """The mean of what has come so far."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V)

    def mix(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.mix(self.embed(ids)))
        return logits


def verdict(model, **options):
    return tfblock.check_causality(model, torch.zeros(1, T, dtype=torch.long), **options).verdict


@pytest.mark.parametrize("fill", [-1e30, torch.finfo(torch.float32).min])
def test_the_logits_of_a_padded_vocabulary_hide_no_leak(fill):
    class Padded(Causal):
        def forward(self, ids):
            return super().forward(ids).index_fill(-1, torch.arange(V - 3, V), fill)

    class Leaking(Padded):
        def mix(self, x):
            return super().mix(x) + 0.1 * x.mean(1, keepdim=True).detach()

    assert verdict(Padded()) == "pass"
    assert verdict(Leaking()) == "fail"


def test_the_size_of_an_output_is_that_of_what_varies():
    y = torch.tensor([[[1.0, -1e30, 2.0], [3.0, -1e30, -4.0]]])
    assert size(y) == 4.0
    assert size(torch.full((1, 3, 2), 7.0)) == 7.0  # nothing varies
    assert size(torch.zeros(1, 3, 2)) == 1.0
    assert size(torch.tensor([[1.0, 5.0]])) == 5.0  # (B, T)


def test_ids_that_are_looked_up_twice_are_one_input():
    class Twice(Causal):
        def forward(self, ids):
            return self.head(self.mix(self.embed(ids)) + self.embed(ids))

    class NextOnes(Causal):
        def forward(self, ids):
            return {"logits": super().forward(ids), "next": self.embed(ids.roll(-1, 1))}

    assert verdict(Twice()) == "pass"
    assert verdict(NextOnes()) == "pass"
    assert verdict(NextOnes(), output_key="next") == "fail"


def test_weights_in_several_dtypes_are_run_as_they_are():
    class Mixed(Causal):
        def __init__(self):
            super().__init__()
            self.embed.to(torch.bfloat16)

        def mix(self, x):
            return super().mix(x.float())

    assert verdict(Mixed(), dtypes=["bfloat16"]) == "pass"


def test_an_overridden_train_is_obeyed():
    class Frozen(Causal):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(D)
            self.train(False)

        def train(self, mode=True):
            return super().train(False)

        def mix(self, x):
            return super().mix(self.norm(x.transpose(1, 2)).transpose(1, 2))

    assert verdict(Frozen()) == "pass"


def test_a_share_is_noise_and_a_factor_is_not():
    class Scaled(Causal):
        logit_drop_scale = 1.0

        def __init__(self):
            super().__init__()
            self.logit_drop_scale = 1.0

        def forward(self, ids):
            return self.logit_drop_scale * super().forward(ids)

    assert verdict(Scaled()) == "pass"


def test_weights_that_a_module_writes_are_given_back():
    class Writing(Causal):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(V, D, max_norm=0.5)
            self.average = nn.Parameter(torch.zeros(()), requires_grad=False)

        def forward(self, ids):
            with torch.no_grad():
                self.average.add_(1.0)
            return super().forward(ids)

    model = Writing()
    before = copy.deepcopy(model.state_dict())
    verdict(model)
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_what_cannot_be_looked_into_is_told():
    scripted = nn.Sequential(nn.Embedding(V, D), nn.Linear(D, V))
    with pytest.warns(DeprecationWarning, match="jit"):
        compiled = torch.jit.script(scripted)
    with pytest.raises(BadInput, match="is TorchScript"):
        verdict(compiled)
    with torch.inference_mode():
        frozen = Causal()
    with pytest.raises(BadInput, match=r"made under torch\.inference_mode"):
        verdict(frozen)
    model = Causal()
    model.register_buffer("table", torch.empty(3, device="meta"))
    with pytest.raises(BadInput, match="table is on the device meta"):
        verdict(model)


def test_a_module_that_leaves_the_program_in_one_mode_is_a_finding():
    class Leaving(Causal):
        def forward(self, ids):
            if self.training:
                raise SystemExit(1)
            return super().forward(ids)

    assert verdict(Leaving().eval()) == "inconclusive"


def test_the_report_says_what_dropout_and_larger_batches_may_hide():
    class Dropping(Causal):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.1)

    ids = torch.zeros(1, T, dtype=torch.long)
    plain, dropping = (tfblock.check_causality(model, ids).data.not_proven for model in (Causal(), Dropping()))
    assert "larger batches than 3" in plain
    assert not any("dropout" in words for words in plain)
    assert any("only while dropout or jitter is on" in words for words in dropping)


def test_an_attribute_of_a_tensor_is_no_output():
    with pytest.raises(BadInput, match="there is no 'logit'"):
        verdict(Causal(), output_key="logit")


def test_a_decoder_that_shifts_its_input_is_asked_with_one_token_more():
    class Shifted(Causal):
        """Output t sees the tokens before t alone."""

        def mix(self, x):
            return super().mix(torch.cat((torch.ones_like(x[:, :1]), x[:, :-1]), 1))

    class Leaking(Shifted):
        def mix(self, x):
            return super().mix(x) + 1e-3 * x.mean(1, keepdim=True).detach()

    class Unshifted(nn.Module):
        """As docs/causality.md has it."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(nn.functional.pad(ids, (0, 1)))[:, 1:]

    assert verdict(Shifted()) == "fail"  # no output sees its own input
    assert verdict(Unshifted(Shifted()), vocab_size=V) == "pass"
    assert verdict(Unshifted(Leaking()), vocab_size=V) == "fail"
    assert verdict(Unshifted(Causal()), vocab_size=V) == "fail"  # it has forgotten to shift
