"""Tiny random configs of transformers' causal model types, checked for leaks: no false alarm is demanded.

    python benchmarks/huggingface.py [TYPE ...] [--seq 37]

Needs the extra ``hf``. Under transformers 5.24.0 every type of the list passes; under 5.10.4, in an environment of
its own, RoFormer and BigBird as decoders leak, and so does Zamba2 once the input is longer than its chunk of 16.
A type that transformers cannot make so small, or that takes longer than the limit, is said to be skipped. Types that
are not of the list can be named, too: cpmant fails, since it reads its whole input in both directions by design, and
blt, whose patcher reads the padding.
"""

import argparse
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any

import torch

from tfblock_cli.probes import causality
from tfblock_cli.spec.target import TargetExperiment

TYPES = [
    "apertus",
    "arcee",
    "biogpt",
    "bloom",
    "cohere",
    "cohere2",
    "codegen",
    "ctrl",
    "diffllama",
    "ernie4_5",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_neox_japanese",
    "gptj",
    "granite",
    "granitemoe",
    "helium",
    "hunyuan_v1_dense",
    "jamba",
    "jetmoe",
    "lfm2",
    "llama",
    "mamba",
    "ministral",
    "mistral",
    "mixtral",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
    "roformer",
    "big_bird",
    "zamba2",
    "dory",
]
# Every name that one family or another has for a size; a config takes those that it knows.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size",), 99),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rotary_dim": 8,
    "state_size": 8,
    "num_experts": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "is_decoder": True,
    "dim_ff": 64,
    "dim_head": 8,
}
_BYTES: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
OF_A_TYPE: dict[str, dict[str, Any]] = {
    "zamba2": {
        "layer_types": ["mamba", "hybrid"],
        "hybrid_layer_ids": [1],
        "n_mamba_heads": 4,
        "mamba_d_state": 8,
        "chunk_size": 16,
        "num_mem_blocks": 1,
        "num_key_value_heads": 4,
        "attention_head_dim": 16,
        "kv_channels": 8,
    },
    "blt": {
        "vocab_size": 260,
        "encoder_hash_byte_group_size": [3, 4],
        "encoder_hash_byte_group_vocab": 101,
        "patcher_config": _BYTES,
        "encoder_config": {**_BYTES, "hidden_size_global": 32, "cross_attn_k": 2},
        "decoder_config": {**_BYTES, "hidden_size_global": 32, "cross_attn_k": 2},
        "global_config": {key: value for key, value in _BYTES.items() if key != "vocab_size"},
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "dory": {
        "num_hidden_layers": 3,
        "n_input_layers": 1,
        "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    },
}
LIMIT = 60
"""CPU seconds that one type may take."""


class TooLongError(BaseException):
    """The limit has passed. No Exception: the probes take those for answers of the model."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TooLongError inside once so many seconds have passed."""

    def stop(*_: object) -> None:
        raise TooLongError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def check(model_type: str, seq_len: int, folder: str) -> str:
    """The verdict on one type, and of what is not clean the probe and what it says."""
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    known = config_class()
    keys = {key: value for key, value in SMALL.items() if hasattr(known, key)}
    layer_types = vars(known).get("layer_types")  # some only compute it
    if layer_types:  # two layers, of two kinds where there are two
        keys["layer_types"] = [*dict.fromkeys(layer_types), layer_types[0]][:2]
    config_class(**keys | OF_A_TYPE.get(model_type, {})).save_pretrained(folder)
    table = {
        "target": {"factory": f"hf:{folder}"},
        "input": {"seq_len": seq_len},
        "causality": {"dtypes": ["float64"]},
    }
    result = causality.run_target(TargetExperiment.model_validate(table))
    unclean = [f"{row.name} ({row.mode}): {row.message}" for row in result.data.probes if row.verdict != "clean"]
    return " | ".join([result.verdict, *unclean[:3]])


def main() -> None:
    """Print one line per type."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", default=TYPES)
    parser.add_argument("--seq", type=int, default=37)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seen: Counter[str] = Counter()
    for model_type in arguments.types:
        start = process_time()
        with tempfile.TemporaryDirectory() as folder:
            try:
                with limited(LIMIT):
                    found = check(model_type, arguments.seq, folder)
            except TooLongError:
                found = f"skipped: took more than {LIMIT} CPU seconds"
            except Exception as error:  # whatever a foreign config or model may raise
                found = f"skipped: {type(error).__name__} {' '.join(str(error).split())[:100]}"
        print(f"{model_type:20} {process_time() - start:5.1f} CPU s  {found}", flush=True)
        seen[found.split()[0].rstrip(":")] += 1
    counts = ", ".join(f"{count} {verdict}" for verdict, count in seen.most_common())
    print(f"{sum(seen.values())} types, {process_time():.0f} CPU s: {counts}")


if __name__ == "__main__":
    main()
