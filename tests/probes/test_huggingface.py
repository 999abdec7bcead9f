"""Local Hugging Face models as targets. Runs where transformers is installed (the extra hf)."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from tfblock_cli.errors import BadInput
from tfblock_cli.probes import causality
from tfblock_cli.probes.causality.check import check
from tfblock_cli.probes.causality.declared import CAUSAL, Declared
from tfblock_cli.probes.causality.target import run_target
from tfblock_cli.probes.causality.weights import rescaled
from tfblock_cli.probes.target import from_target, narrowest, tried
from tfblock_cli.results.causality import CausalityData, ProbeRow
from tfblock_cli.spec.attention import Documents, SlidingWindow
from tfblock_cli.spec.target import TargetExperiment

transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")  # of transformers and what it imports; ours are tested elsewhere

LLAMA = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "attention_dropout": 0.5,
}
GPT2 = {"vocab_size": 61, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "attn_pdrop": 0.5}
SLIDING = {**LLAMA, "sliding_window": 5}


def write(folder, kind: str, keys: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    transformers.CONFIG_MAPPING[kind](**keys).save_pretrained(folder)
    return f"hf:{folder / 'config.json'}"


def experiment(factory: str, seq_len: int = 9, **causality: Any) -> TargetExperiment:
    table = {"target": {"factory": factory}, "input": {"seq_len": seq_len}, "causality": causality}
    return TargetExperiment.model_validate(table)


def probed(factory: str, *only: str, declared: Declared = CAUSAL) -> CausalityData:
    """Some probes of the first kernel alone, at a small length: the whole protocol takes ten times as long."""
    subject = tried(from_target(experiment(factory))[0], 14, factory)
    subject = replace(subject, narrowest=narrowest(subject, 14))
    with rescaled(subject.module, seed=0):
        return check([subject], declared=declared, seq_len=14, dtypes=(torch.float64,), only=only)


def row(data: CausalityData, name: str) -> ProbeRow:
    return next(row for row in data.probes if row.name == name)


def verdict(data: CausalityData, name: str) -> str:
    return row(data, name).verdict


def complaint(factory: str) -> str:
    with pytest.raises(BadInput) as caught:
        from_target(experiment(factory))
    return str(caught.value)


def test_a_config_is_causal_under_both_kernels_with_its_cache(tmp_path):
    result = run_target(experiment(write(tmp_path, "llama", LLAMA), dtypes=["float64"]))
    assert result.verdict == "pass"
    asked = {(row.name, row.mode): row.verdict for row in result.data.probes}
    for kernel in ("sdpa", "eager"):
        assert asked["incremental", f"eval {kernel}"] == "clean"
        assert asked["padding", f"eval {kernel}"] == "clean"
        assert asked["suffix_cuts", f"train {kernel}"] == "clean"


def test_a_window_is_what_was_declared_and_no_wider(tmp_path):
    factory = write(tmp_path, "mistral", SLIDING)
    reach = 2 * (5 - 1) + 1
    for window, found in ((reach, "clean"), (reach - 1, "LEAK"), (reach + 1, "no-flow")):
        declared = Declared((SlidingWindow(window=window),))
        assert verdict(probed(factory, "gradient_map", declared=declared), "gradient_map") == found, window


def test_a_window_that_is_not_declared_is_read_from_the_config_and_exceeded(tmp_path):
    factory = write(tmp_path, "mistral", {**LLAMA, "num_hidden_layers": 1, "sliding_window": 21})
    result = run_target(experiment(factory, dtypes=["float64"]))
    assert result.verdict == "pass"  # no output must see what is 21 positions before it
    assert result.data.probes[0].seq_len == 47
    assert "every cut was tried at T=47, which exceeds sliding_window 21" in result.data.notes
    assert "it has a window of 21: how far back it has to see" in result.data.notes[0]


def test_chunks_are_those_of_the_config_unless_told_otherwise():
    from tfblock_cli.probes.huggingface import CHUNKS, WINDOWS, _numbers

    def numbers(kind: str, **keys: Any) -> dict[str, int]:
        return _numbers(transformers.CONFIG_MAPPING[kind](**keys), WINDOWS + CHUNKS)

    assert numbers("llama") == {}
    assert numbers("zamba2", chunk_size=16) == {"chunk_size": 16}
    assert numbers("bamba") == {"mamba_chunk_size": 256}
    assert numbers("mistral", sliding_window=None) == {}
    assert numbers("reformer", lsh_attn_chunk_length=32) == {"local_attn_chunk_length": 64, "lsh_attn_chunk_length": 32}


def test_a_chunk_that_is_told_goes_before_that_of_the_config(tmp_path):
    factory = write(tmp_path, "mistral", SLIDING)
    told = {"target": {"factory": factory, "chunk": 30}}
    (subject, _) = from_target(TargetExperiment.model_validate(told))
    assert subject.chunks == {"chunk": 30}
    assert from_target(experiment(factory))[0].chunks == {"sliding_window": 5}


def test_padding_that_the_mask_does_not_hide_leaks(tmp_path, monkeypatch):
    from transformers.models.llama import modeling_llama

    factory = write(tmp_path, "llama", LLAMA)
    assert verdict(probed(factory, "padding"), "padding") == "clean"
    mask = vars(modeling_llama)["create_causal_mask"]
    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **given: mask(**given | {"attention_mask": None}))
    assert verdict(probed(factory, "padding"), "padding") == "LEAK"


def test_positions_that_cannot_be_told_are_no_fault_and_a_mask_that_is_not_used_is_not_asked(tmp_path):
    bart = {"vocab_size": 61, "d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    found = row(probed(write(tmp_path / "bart", "bart", bart), "padding"), "padding")
    assert found.verdict == "clean"
    assert "pad it on the right" in found.message
    rwkv = {"vocab_size": 61, "hidden_size": 8, "num_hidden_layers": 2, "context_length": 64}
    found = row(probed(write(tmp_path / "rwkv", "rwkv", rwkv), "padding"), "padding")
    assert found.verdict == "skipped"
    assert found.message == "rwkv documents that it does not use its attention_mask"


def test_documents_are_told_by_positions_that_start_anew(tmp_path, monkeypatch):
    packed = Documents(lengths=(5, 3))
    (subject, _) = from_target(experiment(write(tmp_path, "llama", LLAMA)))
    subject = subject.packed(packed)
    declared = Declared((packed,))
    only = ("documents", "suffix_cuts", "gradient_map", "padding")
    data = check([subject], declared=declared, seq_len=14, dtypes=(torch.float64,), only=only)
    assert {row.name: row.verdict for row in data.probes if row.mode == "eval sdpa"} == {
        "preflight": "clean",
        "suffix_cuts": "clean",
        "documents": "clean",
        "padding": "skipped",
    }
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)
    data = check([subject], declared=declared, seq_len=14, dtypes=(torch.float64,), only=("documents",))
    assert verdict(data, "documents") == "LEAK"


def test_documents_cannot_be_told_without_positions(tmp_path):
    keys = {"vocab_size": 61, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4}
    with pytest.raises(BadInput, match=r"causality\.declare: documents: it takes no position_ids"):
        run_target(experiment(write(tmp_path, "mamba", keys), declare="documents=5,3"))


def test_what_would_not_fit_into_memory_is_not_made(tmp_path):
    keys = LLAMA | {"hidden_size": 2**16, "intermediate_size": 2**18, "num_hidden_layers": 40}
    assert "its weights alone, needs up to" in complaint(write(tmp_path, "llama", keys))


def test_an_encoder_that_ignores_that_it_is_a_decoder_leaks(tmp_path, monkeypatch):
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda *args, **kwargs: None)
    monkeypatch.setattr(modeling_llama.LlamaAttention, "is_causal", False, raising=False)
    init = modeling_llama.LlamaAttention.__init__

    def not_causal(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.is_causal = False

    monkeypatch.setattr(modeling_llama.LlamaAttention, "__init__", not_causal)
    data = probed(write(tmp_path, "llama", LLAMA), "suffix_cuts")
    assert verdict(data, "suffix_cuts") == "LEAK"
    assert (data.leaks[0].out, data.leaks[0].in_) == (0, 1)
    assert "self_attn" in str(data.leaks[0].stage)


def test_the_first_weights_come_from_the_seed_and_both_kernels_share_them(tmp_path):
    factory = write(tmp_path, "llama", LLAMA)
    sdpa, eager = from_target(experiment(factory))
    again, _ = from_target(experiment(factory))
    assert (sdpa.kernel, eager.kernel) == ("sdpa", "eager")
    for subject in (sdpa, eager):
        module: Any = subject.module
        assert module.config._attn_implementation == subject.kernel
    for one, other, repeated in zip(*(subject.module.parameters() for subject in (sdpa, eager, again)), strict=True):
        assert one is other
        assert torch.equal(one, repeated)
    assert sdpa.vocab_size == 61
    assert sdpa.embedding == "model.embed_tokens"


def test_a_checkpoint_keeps_its_weights_and_its_dtype(tmp_path):
    write(tmp_path, "llama", LLAMA | {"num_hidden_layers": 1})
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    subject, _ = from_target(experiment(f"hf:{tmp_path}"))
    assert subject.dtype == torch.bfloat16
    for name, tensor in model.state_dict().items():
        assert torch.equal(subject.module.state_dict()[name], tensor), name
    result = causality.run_target(experiment(f"hf:{tmp_path}"))
    assert result.verdict == "pass"
    assert not result.data.notes  # nothing was redrawn
    # of which padding is asked in float32, as its softmax is computed
    assert {row.dtype for row in result.data.probes if row.name != "padding"} == {"float64", "bfloat16"}


@pytest.mark.parametrize(("kind", "keys"), [("gpt2", GPT2), ("mistral", SLIDING)])
def test_other_families_decode_and_pad_as_they_should(tmp_path, kind, keys):
    data = probed(write(tmp_path, kind, keys), "incremental", "padding", "suffix_cuts")
    assert {row.verdict for row in data.probes} == {"clean"}


def test_steps_with_a_cache_give_what_the_full_pass_gives(tmp_path):
    subject, _ = from_target(experiment(write(tmp_path, "llama", LLAMA)))
    with torch.no_grad(), subject.lend(torch.float64):
        x = torch.arange(9)[None]
        cache = subject.new_cache(1)
        pieces = [subject.step(x[:, :4], cache), subject.step(x[:, 4:5], cache), subject.step(x[:, 5:], cache)]
        assert torch.allclose(torch.cat(pieces, 1), subject(x), rtol=0, atol=1e-6)
        wrong = subject.step(x[:, 5:], subject.new_cache(1))
        assert not torch.allclose(wrong, subject(x)[:, 5:], rtol=0, atol=1e-4)


def test_a_softmax_in_float32_is_noticed(tmp_path):
    sdpa, eager = from_target(experiment(write(tmp_path, "llama", LLAMA)))
    assert narrowest(tried(eager, 9, ""), 9) == torch.float32
    assert narrowest(tried(sdpa, 9, ""), 9) == torch.float32  # its norms


def test_what_cannot_be_read(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is a folder without config.json" in complaint(f"hf:{empty}")
    assert "there is no such file or folder here; nothing is ever downloaded" in complaint("hf:gpt2")
    folder = tmp_path / "pickled"
    write(folder, "llama", LLAMA)
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "has no weights in safetensors; only safetensors are read" in complaint(f"hf:{folder}")
    for name, table in (("unknown", {"model_type": "no_such"}), ("encoder", {"model_type": "vit"}), ("no", {})):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(table))
        assert f"transformers {transformers.__version__} cannot make it: " in complaint(f"hf:{file}")


def test_code_of_its_own_is_never_run(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}})
    )
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "cannot make it" in complaint(f"hf:{tmp_path}")
    assert not (tmp_path / "ran").exists()


def test_a_state_space_model_is_fed_one_token_at_a_time(tmp_path):
    keys = {"vocab_size": 61, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4}
    asked = experiment(write(tmp_path, "mamba", keys), dtypes=["float64"])
    (subject,) = from_target(asked)
    assert subject.single_steps
    data = probed(asked.target.factory, "incremental", "padding", "suffix_cuts")
    assert {row.verdict for row in data.probes} == {"clean"}
