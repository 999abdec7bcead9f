import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.loading.conftest import FILE
from tests.loading.test_complaints import complaint
from tfblock_cli.loading import load
from tfblock_cli.loading.source import LARGEST_FILE

Write = Callable[..., str]

READABLE = (
    "give a TOML file, a run folder or one of decoder_block, depth_slopes, embedding_scale, gpt2, norm_placements, "
    "pre_vs_post, tiny_transformer, tutorial_flaws, warmup"
)

TEXTS: list[tuple[str | bytes, str]] = [
    ("", ": is empty: it needs at least a [model] table"),
    ("# a comment only\n\n", ": is empty: it needs at least a [model] table"),
    (b"\x7fELF\0\0", ": is a binary file, not TOML"),
    (b"# fine\nname = '\xff'\n", ": line 2: is not UTF-8 text; save it as UTF-8"),
    ("name = 'a'".encode("utf-16"), ": is UTF-16 text; save it as UTF-8"),
    (b"#" * (LARGEST_FILE + 1), ": is larger than 1,000,000 bytes, so it is no experiment file"),
    ("[model]\nd_model 8\n", ": line 2, column 9: not TOML: expected '=' after a key in a key/value pair"),
    ("[model\n", ": line 1, column 7: not TOML: expected ']' at the end of a table declaration"),
    ("name = 'a", ": line 1, column 10: not TOML: expected \"'\""),
    ("d_model =", ": line 1, column 10: not TOML: invalid value"),
    ("d_model = 8\nd_model = 9\n", ": line 2, column 12: d_model stands twice; a key or a table may be given once"),
    ("[model]\n[input]\n[model]\n", ": line 3, column 7: [model] stands twice; a key or a table may be given once"),
    ("model.norm = 'a'\nmodel.norm.eps = 1\n",
     ": line 2, column 19: model.norm.eps stands twice; a key or a table may be given once"),
    ("a = " + "[" * 5000, ": not TOML: a nesting is too deep"),
    ("b = 1\na = " + "9" * 5000, ": line 2: a number is too long: TOML has whole numbers of 64 bits"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), TEXTS, ids=[message for _, message in TEXTS])
def test_a_file_that_is_no_experiment(write: Write, text: str | bytes, message: str) -> None:
    assert complaint(write(text)) == f"x.toml{message}"


def test_a_file_of_the_largest_size_is_read(write: Write) -> None:
    load(write(FILE.ljust(LARGEST_FILE)))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("gpt-2", "gpt-2: there is no such file; did you mean 'gpt2'?"),
        ("experiments/gpt2.toml", "experiments/gpt2.toml: there is no such file; did you mean 'gpt2'?"),
        ("my_modle.toml", "my_modle.toml: there is no such file; did you mean 'my_model.toml'?"),
        ("deep/my_modle.toml", "deep/my_modle.toml: there is no such file; did you mean 'deep/my_model.toml'?"),
        ("zzz", f"zzz: there is no such file; {READABLE}"),
        ("", f"'': there is no such file; {READABLE}"),
        ("\0", f"\\x00: there is no such file; {READABLE}"),
        ("n" * 5000, "n" * 5000 + ": cannot be read: File name too long"),
        (".", f".: is a folder without experiment.toml; {READABLE}"),
        ("llama", f"llama: a Hugging Face checkpoint cannot be read yet; {READABLE}"),
        ("llama/config.json", f"llama/config.json: a Hugging Face config.json cannot be read yet; {READABLE}"),
    ],
)
def test_a_source_that_is_none(write: Write, asked: str, message: str) -> None:
    write(name="my_model.toml")
    write(name="deep/my_model.toml")
    write("{}", "llama/config.json")
    assert complaint(asked) == message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_can_be_read(write: Write) -> None:
    reading, writing = os.pipe()
    os.write(writing, FILE.encode())
    os.close(writing)
    try:
        assert load(f"/dev/fd/{reading}").experiment == load(write()).experiment
    finally:
        os.close(reading)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_may_not_be_read(write: Write) -> None:
    Path(write()).chmod(0)
    assert complaint("x.toml") == "x.toml: cannot be read: Permission denied"
