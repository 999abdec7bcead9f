"""Local Hugging Face models as targets. Runs where transformers is installed (the extra hf)."""

import json
from typing import Any

import pytest
import torch

from tfblock_cli.errors import BadInput
from tfblock_cli.probes import causality
from tfblock_cli.probes.target import from_target, tried
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


def complaint(factory: str) -> str:
    with pytest.raises(BadInput) as caught:
        from_target(experiment(factory))
    return str(caught.value)


@pytest.mark.parametrize(("kind", "keys"), [("llama", LLAMA), ("gpt2", GPT2)])
def test_a_config_is_causal_under_both_kernels_with_its_cache(tmp_path, kind, keys):
    result = causality.run_target(experiment(write(tmp_path, kind, keys)))
    assert result.verdict == "pass"
    asked = {(row.name, row.mode): row.verdict for row in result.data.probes}
    for kernel in ("sdpa", "eager"):
        assert asked["incremental", f"eval {kernel}"] == "clean"
        assert asked["suffix_cuts", f"train {kernel}"] == "clean"


def test_a_window_is_what_was_declared_and_no_wider(tmp_path):
    factory = write(tmp_path, "mistral", SLIDING)
    reach = f"window={2 * (5 - 1) + 1}"
    for declared, verdict in ((reach, "pass"), ("window=8", "fail"), ("window=10", "fail")):
        asked = experiment(factory, declare=declared, dtypes=["float64"])
        assert causality.run_target(asked).verdict == verdict, declared


def test_an_encoder_that_ignores_that_it_is_a_decoder_leaks(tmp_path, monkeypatch):
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda *args, **kwargs: None)
    monkeypatch.setattr(modeling_llama.LlamaAttention, "is_causal", False, raising=False)
    init = modeling_llama.LlamaAttention.__init__

    def not_causal(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.is_causal = False

    monkeypatch.setattr(modeling_llama.LlamaAttention, "__init__", not_causal)
    result = causality.run_target(experiment(write(tmp_path, "llama", LLAMA)))
    assert result.verdict == "fail"
    assert (result.data.leaks[0].out, result.data.leaks[0].in_) == (0, 1)
    assert "self_attn" in str(result.data.leaks[0].stage)


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
    write(tmp_path, "llama", LLAMA)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    subject, _ = from_target(experiment(f"hf:{tmp_path}"))
    assert subject.dtype == torch.bfloat16
    for name, tensor in model.state_dict().items():
        assert torch.equal(subject.module.state_dict()[name], tensor), name
    result = causality.run_target(experiment(f"hf:{tmp_path}"))
    assert result.verdict == "pass"
    assert not result.data.notes  # nothing was redrawn
    assert {row.dtype for row in result.data.probes} == {"float64", "bfloat16"}


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
    from tfblock_cli.probes.target import narrowest

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
    result = causality.run_target(asked)
    assert result.verdict == "pass"
    assert {row.name for row in result.data.probes if row.verdict == "skipped"} == set()
