from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.loading.conftest import FILE
from tfblock_cli.loading import Flag, Loaded, load, shipped
from tfblock_cli.spec.experiment import Experiment
from tfblock_cli.spec.ffn import MLP, SwiGLU
from tfblock_cli.spec.norm import LayerNorm
from tfblock_cli.spec.norm_placement import Sandwich

Write = Callable[..., str]

D = Flag("--d", "model.d_model", 8)
HEADS = Flag("--heads", "model.attention.n_heads", 2)
BIAS_KEYS = ("model.bias", "model.attention.bias", "model.attention.out_bias", "model.ffn.bias", "model.head_bias")


def kernel(loaded: Loaded[Experiment]) -> str:
    return loaded.experiment.kernel


def test_every_step_of_the_precedence(write: Write) -> None:
    defaults = {"kernel": "eager"}
    plain, with_kernel = write(), write('kernel = "sdpa"\n' + FILE, "y.toml")
    eager = [Flag("--kernel", "kernel", "eager")]
    assert kernel(load(plain)) == "sdpa"
    assert kernel(load(plain, defaults=defaults)) == "eager"
    assert kernel(load(with_kernel, defaults=defaults)) == "sdpa"
    assert kernel(load(with_kernel, flags=eager)) == "eager"
    assert kernel(load(with_kernel, flags=eager, sets=["kernel=sdpa"])) == "sdpa"
    assert kernel(load(with_kernel, flags=eager, sets=["kernel=sdpa", "kernel=eager"])) == "eager"


def test_flags_alone() -> None:
    loaded = load(flags=[D, HEADS])
    assert (loaded.experiment.name, loaded.source, loaded.warnings) == ("tfblock", "", ())
    assert loaded.written == {"model": {"d_model": 8, "attention": {"n_heads": 2}}}
    assert load(sets=["model.d_model=8", "model.attention.n_heads=2"]).experiment == loaded.experiment


def test_written_holds_no_defaults(write: Write) -> None:
    loaded = load(write(FILE.replace('name = "mine"\n', "")), defaults={"kernel": "eager"})
    assert loaded.written.keys() == {"model"}
    assert loaded.written["model"]["norm"] == "layernorm"


def test_the_name_is_the_stem_unless_given(write: Write) -> None:
    assert load(write()).experiment.name == "mine"
    nameless = FILE.replace('name = "mine"\n', "")
    assert load(write(nameless, "folder/some.thing.toml")).experiment.name == "some.thing"
    assert load(write(nameless, "n" * 120 + ".toml")).experiment.name == "n" * 100


def test_the_source_is_what_the_user_gave(write: Write) -> None:
    assert load(write(name="deep/x.toml")).source == str(Path("deep/x.toml"))
    assert load(Path("deep/x.toml")).source == str(Path("deep/x.toml"))
    assert load("gpt2").source == "gpt2"


def test_a_run_folder_is_its_experiment(write: Write) -> None:
    write(name="run/experiment.toml")
    loaded = load("run")
    assert (loaded.experiment.name, loaded.source) == ("mine", str(Path("run/experiment.toml")))
    assert load("run/experiment.toml").experiment == loaded.experiment


def test_a_shipped_name_goes_before_a_folder_but_not_before_a_file(write: Write) -> None:
    write(name="gpt2/experiment.toml")
    assert load("gpt2").experiment.model.d_model == 768
    write(name="tiny_transformer")
    assert load("tiny_transformer").experiment.model.d_model == 16


def test_a_byte_order_mark_is_no_part_of_the_text(write: Write) -> None:
    assert load(write(b"\xef\xbb\xbf" + FILE.encode())).experiment == load(write()).experiment


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("model.norm.eps=1e-3", "norm", {"kind": "layernorm", "eps": 1e-3}),  # the shorthand is expanded
        ("model.norm.kind=rmsnorm", "norm", {"kind": "rmsnorm"}),
        ("model.norm = 'rmsnorm'", "norm", "rmsnorm"),
        ("model.norm=rmsnorm", "norm", "rmsnorm"),
        ("model.ffn.d_ff=8", "ffn", {"kind": "mlp", "d_ff": 8}),  # that key alone
        ("model.ffn.kind=swiglu", "ffn", {"kind": "swiglu"}),  # the whole table
        ("model.ffn={d_ff=8}", "ffn", {"d_ff": 8}),
        ("model.position.theta=1e4", "position", {"theta": 1e4}),
    ],
)
def test_one_set(write: Write, text: str, key: str, value: Any) -> None:
    assert load(write(), sets=[text]).written["model"][key] == value


def test_a_shorthand_inside_attention_is_expanded_too(write: Write) -> None:
    written = load(write(FILE + 'qk_norm = "rmsnorm"\n'), sets=["model.attention.qk_norm.eps=0.5"]).written
    assert written["model"]["attention"]["qk_norm"] == {"kind": "rmsnorm", "eps": 0.5}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("name=a=b", "a=b"),
        ("name='a'", "a"),
        ("name=two words", "two words"),
        ("name=a # b", "a # b"),
        ("name='a' # b", "a"),
        ("name=1.2.3", "1.2.3"),
        ("name='a'\nseed = 3", "'a'\nseed = 3"),  # one value, not a second key
    ],
)
def test_text_that_is_no_toml_value_is_text(text: str, name: str) -> None:
    assert load(flags=[D, HEADS], sets=[text]).experiment.name == name


def test_sets_go_from_left_to_right() -> None:
    there = load("gpt2", sets=["model.ffn.d_ff=8", "model.ffn.kind=swiglu"]).experiment.model.ffn
    assert there == SwiGLU(d_ff=3072, bias=True)
    back = load("gpt2", sets=["model.ffn.kind=mlp", "model.ffn.d_ff=8"]).experiment.model.ffn
    assert back == MLP(d_ff=8, bias=True)


def test_items_of_arrays_can_be_set(write: Write) -> None:
    expect = '\n[[gradflow.expect]]\nmetric = "loss"\nplacement = "pre"\nmin = 0.1\n'
    write(FILE + expect)
    sets = ["gradflow.expect.0.min=0.2", "gradflow.placements=['pre', 'peri']"]
    gradflow = load("x.toml", sets=sets).experiment.gradflow
    assert gradflow.expect[0].min == 0.2
    assert gradflow.placements[1] == Sandwich()


def test_a_key_of_some_layers_stays_a_change_of_one_key() -> None:
    sets = ["model.layers=[{at=[0], ffn={d_ff=8}}, {at=[1], norm='layernorm'}]", "model.layers.0.ffn.bias=false"]
    blocks = load("gpt2", sets=[*sets, "model.layers.1.norm.eps=0.5"]).experiment.model.blocks()
    assert blocks[0].ffn == MLP(d_ff=8, bias=False, activation="gelu_tanh")
    assert blocks[1].norm == LayerNorm(eps=0.5)
    assert blocks[2].norm == LayerNorm()


def test_the_order_of_flags_does_not_matter() -> None:
    flags = [Flag("--d-ff", "model.ffn.d_ff", 5), Flag("--bias", BIAS_KEYS, True), Flag("--ffn", "model.ffn", "mlp")]
    for order in (flags, flags[::-1]):
        assert load(flags=[D, HEADS, *order]).experiment.model.ffn == MLP(d_ff=5, bias=True)


def test_one_flag_for_several_keys() -> None:
    model = load("gpt2", flags=[Flag("--no-bias", BIAS_KEYS, False)]).experiment.model
    assert (model.bias, model.head_bias, model.attention.bias, model.attention.out_bias, model.ffn.bias) == (False,) * 5


D_FF_STANDS = "--d 8: model.d_model was 16, and model.ffn.d_ff = 32 stands as it is written in the file"


@pytest.mark.parametrize(
    ("flags", "sets", "warnings"),
    [
        ([D], [], (D_FF_STANDS,)),
        ([Flag("--d", "model.d_model", 16)], [], ()),  # changes nothing
        ([D, Flag("--d-ff", "model.ffn.d_ff", 32)], [], ()),  # the user says that it stands
        ([D, Flag("--ffn", "model.ffn", "mlp")], [], ()),  # which computes d_ff anew
        ([HEADS], [], ()),  # d_head and n_kv_heads are not written out
        ([], ["model.d_model=8"], (D_FF_STANDS.replace("--d 8", "--set model.d_model=8"),)),
    ],
)
def test_what_stands_is_told(write: Write, flags: list[Flag], sets: list[str], warnings: tuple[str, ...]) -> None:
    assert load(write(), flags=flags, sets=sets).warnings == warnings


def test_heads_leave_two_values_standing(write: Write) -> None:
    written = write(FILE + "n_kv_heads = 2\nd_head = 4\n")
    left, right = (
        "--heads 2: model.attention.n_heads was 4, and model.attention.",
        " stands as it is written in the file",
    )
    warnings = load(written, flags=[HEADS]).warnings
    assert warnings == (f"{left}n_kv_heads = 2{right}", f"{left}d_head = 4{right}")


def test_loading_changes_no_file(write: Write) -> None:
    load(write(), flags=[D], sets=["model.norm.eps=0.5"])
    assert Path("x.toml").read_text(encoding="utf-8") == FILE
    assert "gpt2" in shipped()
