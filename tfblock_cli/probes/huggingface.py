"""A local Hugging Face model through the installed transformers: no network, no code of its own, safetensors only."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from tfblock_cli.errors import BadInput, Problem
from tfblock_cli.probes.factory import RAISED, fault, said
from tfblock_cli.probes.output import reader
from tfblock_cli.probes.room import HELPS_TARGET, require
from tfblock_cli.probes.subject import ARGUMENTS, Subject
from tfblock_cli.spec.attention import Documents
from tfblock_cli.spec.experiment import Kernel
from tfblock_cli.spec.target import TargetSpec

CONFIG = "config.json"
CACHES = ("cache", "past_key_values", "cache_params")
"""Under which name a model takes its cache and gives it back; in older releases of attention, of state spaces."""
WINDOWS = (
    "attention_chunk_size",  # llama4
    "attention_window_size",  # recurrent_gemma
    "keep_window_size",  # doge
    "local_attention",  # modernbert
    "local_attention_window_len",  # blt
    "local_attn_chunk_length",  # reformer
    "sliding_window",  # mistral and 60 others
    "sliding_window_size",  # inkling
    "window_size",  # gpt_neo
)
"""Keys of configs: how far attention reaches back, in some layers. From all causal models of transformers 5.24.0."""
CHUNKS = (
    "block_size",  # big_bird, minimax
    "chunk_size",  # mamba2, nemotron_h, xlstm, zamba2
    "compress_rates",  # deepseek_v4
    "index_block_size",  # minimax_m3
    "index_topk",  # deepseek_v32: every token is chosen as long as there are no more
    "lsh_attn_chunk_length",  # reformer
    "mamba_chunk_size",  # bamba, falcon_h1, granitemoehybrid
    "max_inference_chunksize",  # xlstm
)
"""Other numbers of tokens behind which a model computes otherwise. Chunks that only save memory, such as
chunk_size_feed_forward, and those of audio and images are not among them."""
UNUSED = ("rwkv",)
"""Model types that take an attention_mask and say that they do not use it."""
KERNELS: tuple[Kernel, ...] = ("sdpa", "eager")


@dataclass(slots=True)
class Past:
    """What the model gave back; None before the first tokens.

    Attributes:
        cache: Its own.
        seen: How many tokens it holds.
        padding: (B,), how many of them mean nothing.
    """

    cache: Any = None
    seen: int = 0
    padding: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFace(Subject):
    """A causal language model of transformers.

    Attributes:
        cache_name: Under which it takes its cache; "" where it keeps none.
        documents: What is packed into each sequence, if it is told.
    """

    cache_name: str = ""
    documents: Documents | None = None

    def run(self, x: Tensor, **more: Any) -> Any:
        """Of whole sequences, without a cache."""
        if self.documents:
            more["position_ids"] = _positions(self.documents, x.shape[1]).expand(len(x), -1).to(self.device)
        return self.module(input_ids=x, use_cache=False, **more)

    def packed(self, documents: Documents) -> Self:
        """It, told where documents start: by positions that start anew, without an attention_mask and a cache.

        Raises:
            BadInput: It takes no position_ids.
        """
        if "position_ids" not in self.told:
            message = "it takes no position_ids, by which transformers tells a model where a document starts"
            raise BadInput(Problem("causality.declare", f"documents: {message}"))
        untold = "documents are told by position_ids alone, without an attention_mask"
        return replace(self, documents=documents, told=(), untold=untold, cache_name="")

    def new_cache(self, batch_size: int) -> Any:
        """The model makes its own with the first tokens."""
        return Past() if self.cache_name else None

    def step(self, x: Tensor, cache: Any, padding_B: Tensor | None = None) -> Tensor:
        """The output of tokens that follow those in the cache, which they extend."""
        if padding_B is not None:
            cache.padding = padding_B
        start = cache.seen
        cache.seen += x.shape[1]
        told_once = self.single_steps and not self.tells_positions  # a state space, whose state holds no padding
        more = {} if cache.padding is None or (start and told_once) else self.about(cache.padding, start, cache.seen)
        output = self.module(input_ids=x, use_cache=True, **{self.cache_name: cache.cache}, **more)
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
            chunks={"chunk": target.chunk} if target.chunk else _numbers(model.config, WINDOWS + CHUNKS),
            windows=tuple(_numbers(model.config, WINDOWS).values()),
            told=_told(model),
            mask_dtype=torch.long,
            untold=_untold(model),
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
            what = f"the target {target.factory}, its weights alone,"
            require(_bytes(transformers, target, config), "cpu", what, HELPS_TARGET)
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
        except BadInput:
            raise
        except RAISED as error:  # without sdpa, eager is tried; what is told is what it complains of
            raised.append(error)
    raise fault(target, f"transformers {transformers.__version__} cannot make it: {said(raised[-1])}") from raised[-1]


def _bytes(transformers: Any, target: TargetSpec, config: Any) -> int:
    """Of its weights, before they are there; 0 where that cannot be told."""
    if has_weights(target.path):
        return sum(file.stat().st_size for file in Path(target.path).glob("*.safetensors"))
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), trust_remote_code=False)
    except RAISED:  # some compute while they are made, which has no numbers there
        return 0
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


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
    for part in _parts(config):
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and "drop" in name:  # jitter is a threshold in eval mode as well
                setattr(part, name, 0.0)


def _positions(documents: Documents, seq_len: int) -> Tensor:
    """Of each token in its own document, (1, T)."""
    n = torch.arange(seq_len)
    own_TT = torch.as_tensor(documents.allows(n[:, None], n[None, :]))
    return (n - own_TT.int().argmax(1))[None]  # of several largest the first: where the document starts


def _parts(config: Any) -> list[Any]:
    """The config and that of its language model, which may be the same."""
    text = config.get_text_config()
    return [config] if text is config else [config, text]


def _numbers(config: Any, names: tuple[str, ...]) -> dict[str, int]:
    """Those that stand under these keys."""
    found: dict[str, int] = {}
    for part in _parts(config):
        for name in names:
            value = getattr(part, name, None)
            value = list(value.values()) if isinstance(value, dict) else value
            several = value if isinstance(value, list | tuple) else [value]
            numbers = [number for number in several if type(number) is int and number > 1]
            found |= {name if len(numbers) == 1 else f"{name}[{n}]": number for n, number in enumerate(numbers)}
    return found


def _told(model: Any) -> tuple[str, ...]:
    """The arguments by which it is told about padding."""
    taken = signature(model.forward).parameters
    return () if _untold(model) else tuple(name for name in ARGUMENTS if name in taken)


def _untold(model: Any) -> str:
    """Why it cannot be told; "" where it can."""
    if ARGUMENTS[0] not in signature(model.forward).parameters:
        return f"it takes no {ARGUMENTS[0]}, by which it could be told what is padding"
    kind = model.config.model_type
    return f"{kind} documents that it does not use its {ARGUMENTS[0]}" if kind in UNUSED else ""


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
