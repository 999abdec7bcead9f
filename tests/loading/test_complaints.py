from collections.abc import Callable

import pytest

from tests.loading.conftest import FILE
from tfblock_cli.errors import BadInput
from tfblock_cli.loading import Flag, load, shipped

Write = Callable[..., str]


def complaint(source: str | None = None, flags: tuple[Flag, ...] = (), sets: tuple[str, ...] = ()) -> str:
    with pytest.raises(BadInput) as caught:
        load(source, flags=flags, sets=sets)
    return str(caught.value)


COUNT = "expected a whole number from 1 to 2147483647"
KINDS = "expected one of rmsnorm, layernorm, or a table with such a kind"
MODEL = "[model]\nd_model = 16\n"
HEADS = "[model.attention]\nn_heads = 4\n"

FILES: list[tuple[str, str]] = [
    # Wrong types
    (FILE.replace("= 16", "= '16'"), f"model.d_model: {COUNT}, got the text '16'"),
    (FILE.replace("= 16", "= true"), f"model.d_model: {COUNT}, got true"),
    (FILE.replace("= 16", "= 16.0"), f"model.d_model: {COUNT}, got 16.0"),
    (FILE.replace("= 16", "= [16]"), f"model.d_model: {COUNT}, got an array"),
    (FILE.replace("= 16", "= {}"), f"model.d_model: {COUNT}, got a table"),
    (FILE.replace("= 16", "= 2026-11-30"), f"model.d_model: {COUNT}, got the date or time 2026-11-30"),
    ("seed = '0'\n" + FILE, "seed: expected a whole number from 0 to 9223372036854775807, got the text '0'"),
    ("input = 3\n" + FILE, "input: expected a table, got 3"),
    ("model = 3", "model: expected a table, got 3"),
    (MODEL + "attention = 3", "model.attention: expected a table, got 3"),
    (MODEL + "bias = 1\n" + HEADS, "model.bias: expected true or false, got 1"),
    (MODEL + "final_norm = 1\n" + HEADS, "model.final_norm: expected true or false or 'auto', got 1"),
    ("gradflow.depths = 6\n" + FILE,
     "gradflow.depths: expected an array, each a whole number from 1 to 10000, got 6"),
    ("gradflow.depths = [6, '12']\n" + FILE,
     "gradflow.depths.1: expected a whole number from 1 to 10000, got the text '12'"),
    # Wrong sizes
    (FILE.replace("= 16", "= 0"), f"model.d_model: {COUNT}, got 0"),
    (FILE.replace("= 16", "= -16"), f"model.d_model: {COUNT}, got -16"),
    (FILE.replace("= 16", "= 4000000000"), f"model.d_model: {COUNT}, got 4000000000"),
    (FILE.replace("= 16", "= 0x" + "f" * 5000),
     f"model.d_model: {COUNT}, got one of 20,000 bits, which is beyond 64 bits"),
    (FILE.replace("= 2\n", "= 10001\n"), "model.n_layers: expected a whole number from 1 to 10000, got 10001"),
    ("seed = -1\n" + FILE, "seed: expected a whole number from 0 to 9223372036854775807, got -1"),
    (MODEL + "dropout = nan\n" + HEADS,
     "model.dropout: expected a number from 0 to 1, got nan, which is not finite"),
    (MODEL + "dropout = 1.5\n" + HEADS, "model.dropout: expected a number from 0 to 1, got 1.5"),
    (MODEL + "norm.eps = 0\n" + HEADS, "model.norm.eps: expected a number above 0, got 0"),
    (MODEL + "norm.eps = -inf\n" + HEADS,
     "model.norm.eps: expected a number above 0, got -inf, which is not finite"),
    (FILE.replace("mine", ""), "name: expected text of 1 to 100 characters, got the text ''"),
    # What is missing
    ("seed = 1", "there is no [model] table: give it or --d and --heads"),
    (HEADS, "model.d_model is missing: give it or --d"),
    (MODEL, "model.attention.n_heads is missing: give it or --heads"),
    (FILE + "[[model.layers]]\nnorm = 'rmsnorm'", "model.layers.0.at is missing"),
    (FILE + "[[gradflow.expect]]\nplacement = 'pre'\nmin = 1", "gradflow.expect.0.metric is missing"),
    # Names
    ("modle = 3\n" + FILE, "modle: unknown key; did you mean model?"),
    ("d_model = 3\n" + FILE, "d_model: unknown key; did you mean model.d_model?"),
    ("d_modle = 3\n" + FILE, "d_modle: unknown key; did you mean model.d_model?"),
    ("qqqqq = 3\n" + FILE,
     "qqqqq: unknown key; an experiment has name, seed, dtype, device, kernel, threads, input, model, causality, "
     "gradflow, target"),
    (FILE + "n_kv_head = 2", "model.attention.n_kv_head: unknown key; did you mean model.attention.n_kv_heads?"),
    (MODEL + "norm.qqqqq = 3\n" + HEADS, "model.norm.qqqqq: unknown key; model.norm has kind, eps"),
    (MODEL + "norm = 'rms'\n" + HEADS, f"model.norm: {KINDS}, got the text 'rms'; did you mean 'rmsnorm'?"),
    (MODEL + "norm.kind = 'rms'\n" + HEADS, f"model.norm: {KINDS}, got the text 'rms'; did you mean 'rmsnorm'?"),
    (MODEL + "norm.kind = 3\n" + HEADS, f"model.norm: {KINDS}, got 3"),
    (MODEL + "norm = 3\n" + HEADS, f"model.norm: {KINDS}, got 3"),
    ("kernel = 'egar'\n" + FILE,
     "kernel: expected one of 'sdpa', 'eager', got the text 'egar'; did you mean 'eager'?"),
    ("device = 'gpu'\n" + FILE, "device: expected text such as 'cpu' or 'cuda:1', got the text 'gpu'"),
    (
        "causality.declare = 'no'\n" + FILE,
        "causality.declare: expected one of auto, causal, sliding_window, prefix, documents, bidirectional, or a table "
        "with such a kind, got the text 'no'",
    ),
    # Rules between keys
    (FILE.replace("n_heads = 4", "n_heads = 3"),
     "model.d_model, model.attention.n_heads: d_model = 16 is not divisible by n_heads = 3; change one or give "
     "attention.d_head"),
    (FILE + "n_kv_heads = 3",
     "model.attention.n_heads, model.attention.n_kv_heads: n_heads = 4 is not divisible by n_kv_heads = 3: every "
     "key-value head serves as many query heads as the others"),
    (FILE.replace("= 16", "= 12"),
     "model.d_model, model.attention.n_heads: rope turns pairs of features, and d_head = 3 is odd"),
    (FILE + "d_head = 3", "model.attention.d_head: rope turns pairs of features, and d_head = 3 is odd"),
    (MODEL + "max_seq_len = 8\n" + HEADS, "model.max_seq_len: seq_len = 16 is longer than max_seq_len = 8"),
    (MODEL + "max_seq_len = 8\n" + HEADS + "[input]\nseq_len = 9",
     "input.seq_len, model.max_seq_len: seq_len = 9 is longer than max_seq_len = 8"),
    ("gradflow.loss = 'sum'\n" + FILE,
     "gradflow.loss: loss = 'sum' cannot be used: behind a LayerNorm every output row sums to a constant, so a sum "
     "has no gradient; what is left is rounding noise"),
    # Overrides of some layers
    (FILE + "[[model.layers]]\nat = 3",
     "model.layers.0.at: expected an array, each a whole number from -2147483647 to 2147483647 "
     "or text such as '1::2', got 3"),
    (FILE + "[[model.layers]]\nat = [2]", "model.layers.0.at: there is no layer 2: the layers are 0 to 1"),
    (FILE + "[[model.layers]]\nat = [0]\nattention.n_head = 3",
     "model.layers.0.attention.n_head: unknown key; did you mean model.layers.0.attention.n_heads?"),
    (FILE + "[[model.layers]]\nat = '::1'\nffn.d_ff = '3'", f"model.layers.0.ffn.d_ff: {COUNT}, got the text '3'"),
    (FILE + "[[model.layers]]\nat = [0]\nattention.n_kv_heads = 3",
     "model.layers.0.attention.n_kv_heads: n_heads = 4 is not divisible by n_kv_heads = 3: every key-value head "
     "serves as many query heads as the others"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), FILES, ids=[message for _, message in FILES])
def test_a_file_with_one_fault(write: Write, text: str, message: str) -> None:
    assert complaint(write(text)) == f"x.toml: {message}"


def test_the_file_of_the_table_is_sound(write: Write) -> None:
    load(write(FILE))
    load(write(MODEL + HEADS))


def test_overrides_are_applied_one_after_the_other(write: Write) -> None:
    relu = "[[model.layers]]\nat = [1]\nffn = { activation = 'relu' }\n"
    gated = "[[model.layers]]\nat = [1]\nffn = 'swiglu'\n"
    load(write(FILE + relu))
    load(write(FILE + relu + gated))
    message = "x.toml: model.layers.1.ffn.activation: unknown key; model.layers.1.ffn has kind, d_ff, bias, inner_norm"
    assert complaint(write(FILE + gated + relu)) == message


def test_every_fault_at_once_in_the_order_of_the_file(write: Write) -> None:
    text = """\
dtype = "float31"
sede = 1

[gradflow]
seeds = 0

[model]
bias = 3
d_model = "128"
norm = "batchnorm"

[model.ffn]
kind = "mlq"

[model.attention]
n_heads = 0

[input]
seq_len = 4096
"""
    keys = [line.split(": ")[1] for line in complaint(write(text)).splitlines()]
    assert keys == [
        "dtype",
        "sede",
        "gradflow.seeds",
        "model.bias",
        "model.d_model",
        "model.norm",
        "model.ffn",
        "model.attention.n_heads",
        "input.seq_len",
    ]


def d(value: object) -> Flag:
    return Flag("--d", "model.d_model", value)


def heads(value: object) -> Flag:
    return Flag("--heads", "model.attention.n_heads", value)


OVERRIDES = """
[[model.layers]]
at = [0]
ffn = { d_fff = 3 }
norm = { eps = -1 }
attention = { n_head = 3 }
[[model.layers]]
at = [1]
ffn = { kind = "gelu", d_ff = 3 }
norm = "rms"
norm_placement = { kindd = "post" }
"""


@pytest.mark.parametrize(
    ("sound", "wrong"), [("", ""), ("n_layers = 2", "n_layers = 2\ndropout = 2"), ("[model]", "modle = 3\n[model]")]
)
def test_the_faults_of_overrides_are_told_whatever_the_rest_is(write: Write, sound: str, wrong: str) -> None:
    told = complaint(write(FILE.replace(sound, wrong, 1) + OVERRIDES)).splitlines()
    where = [line.removeprefix("x.toml: ").partition(": ")[0] for line in told]
    overrides = [place for place in where if place.startswith("model.layers")]
    assert overrides == [
        "model.layers.0.ffn.d_fff",
        "model.layers.0.norm.eps",
        "model.layers.0.attention.n_head",
        "model.layers.1.ffn",
        "model.layers.1.norm",
        "model.layers.1.norm_placement.kindd",
    ]
    assert len(where) == len(overrides) + bool(wrong)


def test_an_override_is_held_against_the_kind_that_an_earlier_one_brought(write: Write) -> None:
    """``activation`` is a key of mlp, which the first override puts in place of the model's swiglu."""
    layers = """
        [[model.layers]]
        at = "::1"
        ffn = { kind = "mlp", d_ff = 8 }
        [[model.layers]]
        at = [0]
        ffn = { activation = "relu" }
    """
    text = FILE.replace('ffn = { kind = "mlp", d_ff = 32 }\n', "") + layers
    assert load(write(text)).experiment.model.blocks()[0].ffn.model_dump()["activation"] == "relu"
    wrong = text.replace("activation", "activatio")
    assert "layers.1.ffn.activatio: unknown key; did you mean" in complaint(write(wrong))
    unsound = wrong.replace("n_layers = 2", "n_layers = 2\ndropout = 2")
    assert complaint(write(unsound)) == "x.toml: model.dropout: expected a number from 0 to 1, got 2"


@pytest.mark.parametrize(
    ("flags", "sets", "message"),
    [
        ((d(128), heads(3)), (),
         "--d 128, --heads 3: d_model = 128 is not divisible by n_heads = 3; change one or give attention.d_head"),
        ((d(6), heads(2)), (), "--d 6, --heads 2: rope turns pairs of features, and d_head = 3 is odd"),
        ((d(128),), (), "model.attention.n_heads is missing: give --heads"),
        ((Flag("--layers", "model.n_layers", 2),), (),
         "model.d_model is missing: give --d\nmodel.attention.n_heads is missing: give --heads"),
        ((Flag("--seed", "seed", 1),), (), "there is no [model] table: give --d and --heads"),
        ((d(-1), heads(0)), (), f"--d -1: {COUNT}, got -1\n--heads 0: {COUNT}, got 0"),
        ((d(2**31 - 8), heads(2)), (), f"model.ffn.d_ff follows from 4 · d_model: {COUNT}, got {4 * (2**31 - 8)}"),
        ((d(8), heads(2), Flag("--ffn", "model.ffn", "mlq")), (),
         "--ffn mlq: expected one of mlp, swiglu, geglu, or a table with such a kind, got the text 'mlq'; "
         "did you mean 'mlp'?"),
        ((d(8), heads(2), Flag("--tie", "model.tie_embeddings", True), Flag("--vocab", "model.vocab_size", 0)), (),
         "--tie, --vocab 0: a stack without a vocabulary has no embedding to tie"),
        ((d(128),), ("model.attention.n_heads=3",),
         "--d 128, --set model.attention.n_heads=3: d_model = 128 is not divisible by n_heads = 3; change one or give "
         "attention.d_head"),
        ((d(8), heads(2)), ("modle.norm.eps=3",), "--set modle.norm.eps=3: unknown key; did you mean model?"),
        ((d(8), heads(2)), ("model.nrom.eps=3",), "--set model.nrom.eps=3: unknown key; did you mean model.norm?"),
        ((d(8), heads(2)), ("model.norm.esp=3",), "--set model.norm.esp=3: unknown key; did you mean model.norm.eps?"),
        ((d(8), heads(2)), ("model.norm={esp=3}",),
         "--set model.norm={esp=3} (model.norm.esp): unknown key; did you mean model.norm.eps?"),
        ((d(8), heads(2)), ("n_heads=3",), "--set n_heads=3: unknown key; did you mean model.attention.n_heads?"),
        ((d(8), heads(2)), ("seed",), "--set seed: expected KEY=VALUE, such as model.norm.eps=1e-5"),
        ((d(8), heads(2)), ("=3",), "--set =3: expected KEY=VALUE, such as model.norm.eps=1e-5"),
        ((d(8), heads(2)), ("model..eps=3",), "--set model..eps=3: expected KEY=VALUE, such as model.norm.eps=1e-5"),
        ((d(8), heads(2)), ("seed.x=3", "seed.y=3"),
         "--set seed.x=3: expected a whole number from 0 to 9223372036854775807, got a table"),
        ((d(8), heads(2)), ("seed=x",),
         "--set seed=x: expected a whole number from 0 to 9223372036854775807, got the text 'x'"),
        ((d(8), heads(2)), ("model.layers=[{norm='rmsnorm'}]",),
         "--set model.layers=[{norm='rmsnorm'}] (model.layers.0): model.layers.0.at is missing"),
        ((d(8), heads(2)), ("gradflow.expect.0.min=1",),
         "--set gradflow.expect.0.min=1: gradflow.expect has 0 items, counted from 0, so there is no "
         "gradflow.expect.0"),
        ((d(8), heads(2)), ("gradflow.expect.min=1",),
         "--set gradflow.expect.min=1: gradflow.expect is an array: its items are gradflow.expect.0 and so on"),
        ((d(8), heads(2)), ("0=1",), "--set 0=1: an experiment is a table: it has keys, and no item 0"),
        ((d(8), heads(2)), ("name=a", "name.b=1"), "--set name.b=1: name is not a table, so there is no name.b"),
        ((d(8), heads(2)), ("device=\x1b[31m\n",),
         "--set device=\\x1b[31m\\n: expected text such as 'cpu' or 'cuda:1', got the text '\\x1b[31m\\n'"),
    ],
)  # fmt: skip
def test_flags_and_sets_are_named(flags: tuple[Flag, ...], sets: tuple[str, ...], message: str) -> None:
    assert complaint(None, flags, sets) == message


def test_a_flag_and_a_file_are_both_named(write: Write) -> None:
    assert complaint(write(), (heads(3),)) == (
        "x.toml: model.d_model, --heads 3: d_model = 16 is not divisible by n_heads = 3; change one or give "
        "attention.d_head"
    )


def test_nothing_at_all() -> None:
    assert complaint() == (
        f"no experiment: give a TOML file, a run folder or one of {', '.join(shipped())}, or --d and --heads"
    )


def test_long_values_are_cut_short() -> None:
    (line,) = complaint(None, (d(8), heads(2)), (f"seed={'[' * 5000}",)).splitlines()
    assert len(line) < 300
