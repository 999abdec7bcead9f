"""Subject: a module that a probe may ask, how to feed it, and which output to read. It comes back unchanged."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from tfblock_cli.modules.decoder import Decoder, build
from tfblock_cli.spec.attention import Documents
from tfblock_cli.spec.experiment import Experiment, Kernel

ARGUMENTS = ("attention_mask", "position_ids")
"""By which a module is told about padding, in the convention of transformers."""


def the_output(output: Any) -> Tensor:
    """What a module returns, where that is the tensor to read.

    Raises:
        TypeError: It returned something else.
    """
    if not isinstance(output, Tensor):
        raise TypeError(f"the module returns {type(output).__name__}, not a tensor")
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A module from ids (B, T) or vectors (B, T, D) to one output per position (B, T, ...).

    Attributes:
        module: What is asked.
        vocab_size: V: it takes ids below V; 0: it takes vectors.
        d_model: D, the width of those vectors.
        kernel: How its attention runs; "" where it has no such choice.
        embedding: The submodule whose output stands for the ids where a gradient is wanted; "" for vectors.
        read: The tensor (B, T, ...) in what the module returns.
        narrowest: What it rounds to on its way, whatever dtype it is asked in.
        single_steps: Whether behind a cache it takes one token at a time only.
        chunks: Numbers of tokens behind which it computes otherwise, by name: chunks, blocks, windows.
        windows: Those among them that its attention reaches back, in some layers.
        told: By which arguments it is told about padding: attention_mask (B, T), 0 on padding and 1 elsewhere, and
            position_ids (B, T), which count the others from 0.
        mask_dtype: Of the attention_mask.
        untold: Why it cannot be told about padding, where that is known.
    """

    module: nn.Module
    vocab_size: int = 0
    d_model: int = 0
    kernel: str = ""
    embedding: str = ""
    read: Callable[[Any], Tensor] = the_output
    narrowest: torch.dtype = torch.float64
    single_steps: bool = False
    chunks: Mapping[str, int] = field(default_factory=dict)
    windows: tuple[int, ...] = ()
    told: tuple[str, ...] = ()
    mask_dtype: torch.dtype = torch.bool
    untold: str = ""

    def __call__(self, x: Tensor) -> Tensor:
        """The output at every position.

        Raises:
            ValueError: It does not have one row per position.
        """
        y = self.read(self.run(x))
        if y.shape[:2] != x.shape[:2]:
            raise ValueError(f"an input of {tuple(x.shape[:2])} (B, T) gives an output of {tuple(y.shape)}")
        return y

    def run(self, x: Tensor, **more: Any) -> Any:
        """What the module returns."""
        return self.module(x, **more)

    @property
    def takes_padding(self) -> bool:
        """Whether it can be told how much of a sequence is padding."""
        return isinstance(self.module, Decoder) or "attention_mask" in self.told

    @property
    def tells_positions(self) -> bool:
        """Whether it can be told at which position a token stands behind padding."""
        return isinstance(self.module, Decoder) or "position_ids" in self.told

    def padded(self, x: Tensor, padding_B: Tensor) -> Tensor:
        """The output of sequences of which so many tokens at the left mean nothing."""
        return self.read(self.run(x, **self.about(padding_B, 0, x.shape[1])))

    def about(self, padding_B: Tensor, start: int, stop: int) -> dict[str, Any]:
        """What it is told about padding when it is given the tokens from start to stop, those before being cached."""
        if isinstance(self.module, Decoder):
            return {} if start else {"padding": padding_B}
        n = torch.arange(stop)
        padding_B1 = padding_B[:, None]
        arguments = {
            "attention_mask": (n >= padding_B1).to(self.device, self.mask_dtype),
            "position_ids": (n[start:] - padding_B1).clamp(min=0).to(self.device),
        }
        return {name: arguments[name] for name in self.told}

    def packed(self, documents: Documents) -> Self:
        """It, told where documents start; itself where it knows that or needs no telling.

        Raises:
            BadInput: It cannot be told.
        """
        return self

    def new_cache(self, batch_size: int) -> Any:
        """An empty key-value cache; None where the module keeps none.

        Raises:
            ValueError: A pattern of our decoder allows none.
        """
        return self.module.new_cache(batch_size) if isinstance(self.module, Decoder) else None

    def step(self, x: Tensor, cache: Any, padding_B: Tensor | None = None) -> Tensor:
        """The output of tokens that follow those in the cache, which they extend.

        Args:
            x: (B, t) or (B, t, D).
            cache: Of those before.
            padding_B: Tokens at the left of each sequence that mean nothing; told with the first ones.
        """
        more = {} if padding_B is None else self.about(padding_B, 0, x.shape[1])
        return self.read(self.module(x, cache=cache, **more))

    @property
    def _like(self) -> Tensor:
        """Any floating-point weight; a module without weights computes in float32 on the CPU."""
        tensors = chain(self.module.parameters(), self.module.buffers())  # asked often: no list of them all
        return next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0, dtype=torch.float32))

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self._like.device

    def draw(
        self, shape_BT: tuple[int, int], random: torch.Generator, dtype: torch.dtype, scale: float = 1.0
    ) -> Tensor:
        """Fresh content: ids drawn evenly, or vectors from N(0, scale²), the same numbers in every dtype."""
        if self.vocab_size:
            return torch.randint(self.vocab_size, shape_BT, generator=random).to(self.device)
        vectors = torch.randn((*shape_BT, self.d_model), generator=random, dtype=torch.float64) * scale
        return vectors.to(self.device, dtype)

    def redraw(self, x: Tensor, random: torch.Generator, scale: float = 1.0) -> Tensor:
        """Fresh content in the place of ``x``: every id differs from the old one, every vector is a new one."""
        if self.vocab_size:
            steps = torch.randint(1, self.vocab_size, tuple(x.shape), generator=random)
            return (x + steps.to(x.device)) % self.vocab_size
        return self.draw((x.shape[0], x.shape[1]), random, x.dtype, scale)

    @contextmanager
    def lend(self, dtype: torch.dtype, *, training: bool = False) -> Iterator[None]:
        """The module in a dtype and a mode, in train mode with dropout and jitter 0, for a while.

        Afterwards its weights, buffers, modes, noises and grad flags and torch's random state are the very ones
        that they were. Weights are swapped, not cast back: bits that another dtype cannot hold are not lost, and a
        module that writes into its own while it runs writes into a copy.
        """
        accelerators = [self.device] if self.device.type == "cuda" else []  # the CPU's random state is always kept
        with torch.random.fork_rng(devices=accelerators), _restored(self.module):
            as_it_is = dtype == self.dtype  # a module with weights in several dtypes runs in all of them
            for parameter in self.module.parameters():
                parameter.data = parameter.data.clone() if as_it_is else _cast(parameter.data, dtype)
            for module in self.module.modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = buffer.clone() if as_it_is else _cast(buffer, dtype)
            self.module.train(training)  # which some modules override
            if training:  # in eval mode there must be no need to
                for module in self.module.modules():
                    for name in noise_names(module):
                        setattr(module, name, 0.0)
            yield


def from_experiment(experiment: Experiment) -> Subject:
    """The experiment's decoder as a subject."""
    model = experiment.model
    return Subject(
        module=build(experiment),
        vocab_size=model.vocab_size,
        d_model=model.d_model,
        kernel=experiment.kernel,
        embedding="embed" if model.vocab_size else "",
    )


def with_kernel(subject: Subject, kernel: Kernel) -> Subject:
    """The same decoder, with the same weights in the same memory, under the other kernel.

    Args:
        subject: One that ``from_experiment`` made.
        kernel: How the attention of the new one runs.
    """
    decoder = subject.module
    assert isinstance(decoder, Decoder)
    with torch.device("meta"):
        twin = Decoder(decoder.spec, kernel)
    twin.load_state_dict(decoder.state_dict(), assign=True)
    if decoder.spec.tie_embeddings:  # assigning made two parameters of the one
        twin.head.weight = twin.embed.weight
    return replace(subject, module=twin.eval(), kernel=kernel)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype, copy=True) if tensor.is_floating_point() else tensor.clone()


def _is_noise(name: str, value: Any) -> bool:
    """Whether it is a share of what is random in training: attention_dropout, resid_pdrop, router_jitter_noise, ..."""
    return isinstance(value, float) and 0 < value < 1 and ("drop" in name or "jitter" in name)


def noise_names(module: nn.Module) -> list[str]:
    """The attributes of a module that are the size of its noise in training."""
    names = ["p"] if isinstance(module, nn.modules.dropout._DropoutNd) else []
    return names + [name for name, value in vars(module).items() if _is_noise(name, value)]


def has_noise(root: nn.Module) -> bool:
    """Whether anything in a module is random in training."""
    return any(getattr(module, name) for module in root.modules() for name in noise_names(module))


@contextmanager
def _restored(root: nn.Module) -> Iterator[None]:
    """Put back what ``lend`` changes, whatever happens in between."""
    modules, mode = list(root.modules()), root.training
    weights = [(parameter, parameter.data, parameter.requires_grad) for parameter in root.parameters()]
    states = [
        (module, module.training, dict(module._buffers), {name: getattr(module, name) for name in noise_names(module)})
        for module in modules
    ]
    try:
        yield
    finally:
        root.train(mode)
        for parameter, data, requires_grad in weights:
            parameter.data = data
            parameter.requires_grad_(requires_grad)
        for module, training, buffers, noises in states:
            module.training = training
            module._buffers.update(buffers)
            for name, value in noises.items():
                setattr(module, name, value)
