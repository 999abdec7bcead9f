"""A local Hugging Face model through the installed transformers: no network, no code of its own, safetensors only."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.probes.factory import RAISED, fault, said
from tfblock_cli.probes.subject import Subject
from tfblock_cli.probes.target import reader
from tfblock_cli.spec.experiment import Kernel
from tfblock_cli.spec.target import TargetSpec

CONFIG = "config.json"
CACHES = ("cache", "past_key_values", "cache_params")
"""Under which name a model takes its cache and gives it back; in older releases of attention, of state spaces."""
KERNELS: tuple[Kernel, ...] = ("sdpa", "eager")


@dataclass(slots=True)
class Past:
    """What the model gave back; None before the first tokens."""

    cache: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFace(Subject):
    """A causal language model of transformers.

    Attributes:
        cache_name: Under which it takes its cache; "" where it keeps none.
    """

    cache_name: str = ""

    def run(self, x: Tensor) -> Any:
        """Of whole sequences, without a cache."""
        return self.module(input_ids=x, use_cache=False)

    def new_cache(self, batch_size: int) -> Any:
        """The model makes its own with the first tokens."""
        return Past() if self.cache_name else None

    def step(self, x: Tensor, cache: Any) -> Tensor:
        """The output of tokens that follow those in the cache, which they extend."""
        output = self.module(input_ids=x, use_cache=True, **{self.cache_name: cache.cache})
        cache.cache = output[self.cache_name]
        return self.read(output)


def from_path(target: TargetSpec, seed: int) -> tuple[Subject, ...]:
    """The model under both attention kernels, or the one that it has, with the same weights in the same memory.

    Raises:
        BadInput: transformers is not installed, or there is no such model.
    """
    try:
        import transformers
    except ImportError as error:
        message = "needs transformers, which is not installed: pip install 'tfblock[hf]'"
        raise BadInput(Problem(f"target {target.factory}", message)) from error
    with _quiet(transformers):
        model, kernel = _model(transformers, target, seed)
        model.eval()
        subject = HuggingFace(
            module=model,
            vocab_size=target.vocab_size or int(model.config.get_text_config().vocab_size),
            kernel=kernel,
            embedding=_name(model, model.get_input_embeddings()),
            cache_name=_cache_name(model),
            single_steps=bool(getattr(model, "_is_stateful", False)),  # state spaces start anew with longer pieces
            read=reader(target.output_key),
        )
        twins = (_twin(subject, other) for other in KERNELS if other != kernel)
        return (subject, *(twin for twin in twins if twin))


def has_weights(path: str) -> bool:
    """Whether it is a checkpoint, not a config.json alone."""
    return Path(path).is_dir() and any(Path(path).glob("*.safetensors"))


def _model(transformers: Any, target: TargetSpec, seed: int) -> tuple[Any, Kernel]:
    """With weights from the checkpoint, or drawn from the seed."""
    path = Path(target.path)
    if not path.exists():
        raise fault(target, "there is no such file or folder here; nothing is ever downloaded")
    if path.is_dir() and not (path / CONFIG).is_file():
        raise fault(target, f"is a folder without {CONFIG}")
    if path.is_dir() and not has_weights(target.path) and any((*path.glob("*.bin"), *path.glob("*.pt*"))):
        rule = f"only safetensors are read, since other formats may run code; give its {CONFIG} for random weights"
        raise fault(target, f"has no weights in safetensors; {rule}")
    local = {"local_files_only": True, "trust_remote_code": False}
    raised: list[BaseException] = []
    for kernel in KERNELS:
        try:
            config = transformers.AutoConfig.from_pretrained(str(path), **local)
            _without_dropout(config)
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                if has_weights(target.path):
                    model = transformers.AutoModelForCausalLM.from_pretrained(
                        str(path),
                        config=config,
                        use_safetensors=True,
                        attn_implementation=kernel,
                        dtype="auto",
                        **local,
                    )
                else:
                    model = transformers.AutoModelForCausalLM.from_config(
                        config, attn_implementation=kernel, trust_remote_code=False
                    )
            return model, kernel
        except RAISED as error:  # without sdpa, eager is tried; what is told is the first complaint
            raised.append(error)
    raise fault(target, f"transformers {transformers.__version__} cannot make it: {said(raised[0])}") from raised[0]


def _twin(subject: HuggingFace, kernel: Kernel) -> HuggingFace | None:
    """The same weights in the same memory under another kernel; None where the model has no such kernel."""
    shared = {id(parameter): parameter for parameter in subject.module.parameters()}
    module: Any = copy.deepcopy(subject.module, shared)
    if not module._can_set_attn_implementation():
        return None
    try:
        module.set_attn_implementation(kernel)
    except (ValueError, ImportError):
        return None
    return replace(subject, module=module, kernel=kernel) if module.config._attn_implementation == kernel else None


def _without_dropout(config: Any) -> None:
    """Some models read their dropouts from the config when they run; what is checked is the model without."""
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and "drop" in name:
                setattr(part, name, 0.0)


def _name(model: nn.Module, wanted: Any) -> str:
    """Of a submodule; "" if it is none."""
    return next((name for name, module in model.named_modules() if module is wanted), "")


def _cache_name(model: Any) -> str:
    """Under which it gives back a cache that it also takes; "" where it does not."""
    taken = signature(model.forward).parameters
    try:
        with torch.no_grad():
            output = model(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=True)
    except RAISED:  # told where it is called without a cache
        return ""
    return next((name for name in CACHES if name in taken and output.get(name) is not None), "")


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without its remarks and progress bars: what matters here is told by us."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
