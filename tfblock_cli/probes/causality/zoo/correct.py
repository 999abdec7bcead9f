"""Correct models, of which every probe must say so."""

from functools import partial

import torch
from torch import Tensor, nn

from tfblock_cli.probes.causality.zoo.parts import (
    Attention,
    Lambda,
    Net,
    Specimen,
    Specimens,
    after_attention,
    of,
    own,
)
from tfblock_cli.probes.causality.zoo.patterns import PACKED, PREFIX, WINDOW
from tfblock_cli.probes.causality.zoo.time_mixing import Conv, FFTConv, Recurrence
from tfblock_cli.spec.attention import Bidirectional


def causal_mean(x: Tensor) -> Tensor:
    """Of the tokens so far."""
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]


class OneBuffer(nn.Module):
    """Writes every output of a shape into the same memory, as captured graphs do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(Attention())
        self.outputs: dict[object, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        y: Tensor = self.net(x)
        if torch.is_grad_enabled():
            return y
        return self.outputs.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)


CORRECT: Specimens = (
    Specimen(name="masked attention", make=lambda: Net(Attention(), Attention())),
    Specimen(name="our decoder, eager", make=own),
    Specimen(name="our decoder, sdpa", make=partial(own, kernel="sdpa")),
    Specimen(
        name="our decoder, grouped queries and learned positions",
        make=partial(own, position="learned", attention={"n_heads": 4, "n_kv_heads": 2, "d_head": 2}),
    ),
    Specimen(
        name="sliding window, declared",
        make=partial(own, kernel="sdpa", pattern={"kind": "sliding_window", "window": 4}),
        declared=of(WINDOW, WINDOW),
    ),
    Specimen(
        name="prefix, declared",
        make=partial(own, kernel="sdpa", pattern={"kind": "prefix", "length": 4}),
        declared=of(PREFIX, PREFIX),
    ),
    Specimen(
        name="packed documents, declared",
        make=partial(own, pattern={"kind": "documents", "lengths": [5, 4]}),
        declared=of(PACKED, PACKED),
    ),
    Specimen(
        name="encoder, declared bidirectional",
        make=partial(own, pattern="bidirectional"),
        declared=of(Bidirectional(), Bidirectional()),
    ),
    Specimen(name="causal mean", make=lambda: Net(Lambda(causal_mean))),
    Specimen(name="left-padded convolution", make=lambda: Net(Conv(12, 11))),
    Specimen(name="left-padded convolution behind attention", make=lambda: Net(Attention(), Conv(4, 3))),
    Specimen(name="padded FFT convolution", make=lambda: Net(FFTConv()), noise=True),
    Specimen(name="token-choice gate", make=lambda: after_attention(lambda x: x * (x.argmax(-1, keepdim=True) > 2))),
    Specimen(name="recurrence", make=Recurrence),
    Specimen(name="dropout that follows the mode", make=lambda: nn.Sequential(Net(Attention()), nn.Dropout(0.5))),
    Specimen(name="one output buffer", make=OneBuffer),
)
