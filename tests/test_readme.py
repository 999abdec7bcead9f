"""What README.md and docs/ show is what happens."""

import re
from contextlib import redirect_stdout
from io import StringIO
from itertools import chain

import pytest

from tests.documents import DOCUMENTS, ROOT, WIDTH, agree, blocks, commands, difference, files, printed, session
from tfblock_cli.loading import shipped

README = ROOT / "README.md"
SESSIONS = [
    pytest.param(document, shown, id=f"{document.stem}: {shown.command}")
    for document in DOCUMENTS
    for block in blocks(document, "console")
    for shown in session(block.text)
]
COMMANDS = [
    pytest.param(document, command, id=f"{document.stem}: {command}")
    for document in DOCUMENTS
    for block in blocks(document, "bash", "yaml")
    for command in commands(block.text)
]
SNIPPETS = [
    pytest.param(document, block, id=document.stem) for document in DOCUMENTS for block in blocks(document, "python")
]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A folder for each document, with the files that it shows."""
    made = {}
    for document in DOCUMENTS:
        made[document] = tmp_path_factory.mktemp(document.stem)
        for name, text in files(document).items():
            (made[document] / name).write_text(text, encoding="utf-8")
    return made


@pytest.mark.parametrize(("document", "shown"), SESSIONS)
def test_a_session_prints_what_it_shows(document, shown, folders):
    seen = printed(shown.command, folders[document])
    assert seen.code == shown.code, "\n".join(seen.lines)
    assert difference(shown.output, seen.lines) == ""


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_a_command_without_output_ends_well(document, command, folders):
    seen = printed(command, folders[document])
    assert seen.code == 0, "\n".join(seen.lines)


@pytest.mark.parametrize(("document", "block"), SNIPPETS)
def test_a_snippet_prints_what_it_shows(document, block, folders, monkeypatch):
    monkeypatch.chdir(folders[document])
    out = StringIO()
    with redirect_stdout(out):
        exec(compile(block.text, str(document), "exec"), {"__name__": "__main__"})  # noqa: S102 - our own pages
    shown = tuple(re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE))
    assert len(shown) == len(re.findall(r"print\(", block.text)), "say what every print prints"
    assert difference(shown, tuple(out.getvalue().splitlines())) == ""


def test_the_readme_shows_every_command_at_work():
    shown = [shown.command for block in blocks(README, "console") for shown in session(block.text)]
    for command in ("params", "forward", "causality", "gradflow"):
        assert any(line.startswith(f"tfblock {command} ") for line in shown)


def test_the_readme_shows_a_failing_check():
    codes = {shown.command: shown.code for block in blocks(README, "console") for shown in session(block.text)}
    assert any("pattern=bidirectional" in command and code == 1 for command, code in codes.items())
    assert 2 in codes.values()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_what_is_shown_fits(document):
    text = chain.from_iterable(block.text.splitlines() for block in blocks(document, "console"))
    assert not [line for line in text if len(line) > WIDTH and not line.startswith("error: ")]  # errors do not wrap


@pytest.mark.parametrize("name", shipped())
def test_the_readme_names_every_shipped_experiment(name):
    assert f"`{name}`" in README.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("shown", "seen"),
    [
        ("total 590,464", "total 590,464"),
        ("x0.854 [0.667..1.28]", "x0.850  [0.660..1.27]"),
        ("mean -3.81e-4", "mean -3.82e-4"),
        ("worst 6.79e-16", "worst 4.44e-16"),
        ("a  b", "a b"),
        ("──────", "───"),
        ('"duration_s": 0.105', '"duration_s": 7.2'),
        ("it took 3.4 s", "it took 12 s"),
        ("saved runs/20261129T174205Z-params-x-3f9c1a2b", "saved runs/20270101T000000Z-params-x-00000000"),
    ],
)
def test_lines_that_agree(shown, seen):
    assert agree(shown, seen)


@pytest.mark.parametrize(
    ("shown", "seen"),
    [
        ("PASS  7 checks held", "FAIL  7 checks held"),  # a word
        ("PASS  7 checks held", "PASS  8 checks held"),  # a count
        ("total 590,464", "total 590,465"),
        ("float32", "float64"),
        ("rms 1.00", "rms 1.03"),  # 3 %
        ("x0.854 [0.667..1.28]", "x0.854 [0.667..1.32]"),
        ("mean -3.81e-4", "mean 3.81e-4"),  # a sign
        ("mean 1.00e-4", "mean 1.03e-4"),
        ("worst 0", "worst 6.79e-16"),
        ("one two", "one"),
        ("saved runs/20261129T174205Z-params-x-3f9c1a2b", "saved runs/20261129T174205Z-params-y-3f9c1a2b"),
    ],
)
def test_lines_that_do_not(shown, seen):
    assert not agree(shown, seen)


SEEN = ("head", "a", "b", "a", "c", "end")


@pytest.mark.parametrize("shown", [SEEN, ("head", "[...]"), ("[...]", "end"), ("head", "[...]", "a", "c", "[...]")])
def test_lines_may_be_left_out(shown):
    assert difference(shown, SEEN) == ""


@pytest.mark.parametrize(
    "shown",
    [
        (),
        ("head",),  # more was seen than is shown
        SEEN[:-1],
        SEEN[1:],
        (*SEEN, "more"),
        ("a", "[...]"),  # not the beginning
        ("[...]", "c"),  # not the end
        ("head", "[...]", "c", "[...]", "a", "[...]"),  # another order
        ("head", "[...]", "b", "c", "[...]"),  # a line that is left out without a word
        ("head", "[...]", "x", "[...]"),
    ],
)
def test_nothing_else_may(shown):
    assert difference(shown, SEEN)
