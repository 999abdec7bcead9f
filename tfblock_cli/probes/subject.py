"""Subject: a module that a probe may ask, how to feed it, and which output to read. It comes back unchanged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tfblock_cli.modules.decoder import Decoder, build
from tfblock_cli.spec.experiment import Experiment, Kernel


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
    """

    module: nn.Module
    vocab_size: int = 0
    d_model: int = 0
    kernel: str = ""
    embedding: str = ""
    read: Callable[[Any], Tensor] = the_output
    narrowest: torch.dtype = torch.float64
    single_steps: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """The output at every position.

        Raises:
            ValueError: It does not have one row per position.
        """
        y = self.read(self.run(x))
        if y.shape[:2] != x.shape[:2]:
            raise ValueError(f"an input of {tuple(x.shape[:2])} (B, T) gives an output of {tuple(y.shape)}")
        return y

    def run(self, x: Tensor) -> Any:
        """What the module returns."""
        return self.module(x)

    def new_cache(self, batch_size: int) -> Any:
        """An empty key-value cache; None where the module keeps none.

        Raises:
            ValueError: A pattern of our decoder allows none.
        """
        return self.module.new_cache(batch_size) if isinstance(self.module, Decoder) else None

    def step(self, x: Tensor, cache: Any) -> Tensor:
        """The output of tokens that follow those in the cache, which they extend."""
        return self.read(self.module(x, cache=cache))

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
        """The module in a dtype and a mode, dropout 0, for a while.

        Afterwards its weights, buffers, modes, dropouts and grad flags and torch's random state are the very ones
        that they were. Weights are swapped, not cast back: bits that another dtype cannot hold are not lost.
        """
        accelerators = [self.device] if self.device.type == "cuda" else []  # the CPU's random state is always kept
        with torch.random.fork_rng(devices=accelerators), _restored(self.module):
            for parameter in self.module.parameters():
                if parameter.dtype != dtype:
                    parameter.data = _cast(parameter.data, dtype)
            for module in self.module.modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None:  # a copy in any case: in train mode some norms write into theirs
                        module._buffers[name] = _cast(buffer, dtype) if buffer.dtype != dtype else buffer.clone()
                for name in _dropouts(module):
                    setattr(module, name, 0.0)
                module.training = training
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
    return tensor.to(dtype) if tensor.is_floating_point() else tensor.clone()


def _dropouts(module: nn.Module) -> list[str]:
    """The attributes of a module that hold a probability of dropout: dropout, attention_dropout, resid_pdrop, ..."""
    names = ["p"] if isinstance(module, nn.modules.dropout._DropoutNd) else []
    return names + [name for name, value in vars(module).items() if isinstance(value, float) and "drop" in name]


@contextmanager
def _restored(root: nn.Module) -> Iterator[None]:
    """Put back what ``lend`` changes, whatever happens in between."""
    modules = list(root.modules())
    weights = [(parameter, parameter.data, parameter.requires_grad) for parameter in root.parameters()]
    states = [
        (module, module.training, dict(module._buffers), {name: getattr(module, name) for name in _dropouts(module)})
        for module in modules
    ]
    try:
        yield
    finally:
        for parameter, data, requires_grad in weights:
            parameter.data = data
            parameter.requires_grad_(requires_grad)
        for module, training, buffers, dropouts in states:
            module.training = training
            module._buffers.update(buffers)
            for name, probability in dropouts.items():
                setattr(module, name, probability)
