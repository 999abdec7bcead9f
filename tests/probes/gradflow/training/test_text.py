"""The texts: the same everywhere, with entropies that can be computed by other means."""

import math
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfblock_cli.errors import BadInput
from tfblock_cli.probes.gradflow.training import text


def test_the_markov_source_is_the_same_on_every_machine():
    assert text.read("markov").sha256 == "258b3ca109f727bac1c5e3e30fb5eff690fce3b5808e5b96d06b137ff537a5f8"
    assert len(text.markov(100)) == 100
    assert text.markov(100) == text.markov(200)[:100]
    assert text.markov(100, seed=1) != text.markov(100)


def test_the_markov_source_has_the_entropy_that_it_declares():
    source = text.markov()
    assert pytest.approx(1.75 * math.log(2)) == text.MARKOV_ENTROPY
    after: dict[str, Counter[str]] = {}
    for here, there in pairwise(source):
        after.setdefault(here, Counter())[there] += 1
    assert all(len(successors) == 4 for successors in after.values())
    for state, successors in after.items():
        shares = sorted((n / successors.total() for n in successors.values()), reverse=True)
        room = 5 / math.sqrt(successors.total())  # five standard deviations of a share, at most
        assert shares == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 8], abs=room), state
    # estimated from the pairs it is the same to a thousandth: the walk is long enough
    estimated = text.of(source).bigram_entropy
    assert text.read("markov").bigram_entropy == text.MARKOV_ENTROPY
    assert estimated == pytest.approx(text.MARKOV_ENTROPY, abs=2e-3)


def test_the_unigram_entropy_of_the_markov_source_is_that_of_its_stationary_distribution():
    """By linear algebra, from the transition matrix that the walk shows."""
    source = text.markov()
    states = sorted(set(source))
    counts = np.zeros((len(states), len(states)))
    for here, there in pairwise(source):
        counts[states.index(here), states.index(there)] += 1
    matrix = counts / counts.sum(1, keepdims=True)
    values, vectors = np.linalg.eig(matrix.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    stationary = stationary[stationary > 0] / stationary.sum() if stationary.sum() > 0 else -stationary[stationary < 0]
    stationary = stationary / stationary.sum()
    entropy = -float(np.sum(stationary * np.log(stationary)))
    assert text.read("markov").unigram_entropy == pytest.approx(entropy, abs=1e-3)


def test_pythons_help_topics_are_real_english():
    """Which version of Python carries which wording is no business of ours: the hash of the text is in the result."""
    docs = text.read("python_docs")
    assert docs.characters > 300_000
    assert 90 <= docs.symbols <= 256
    assert 3.0 < docs.unigram_entropy < 3.5  # of English with code in it
    assert 2.3 < docs.bigram_entropy < 2.6


def test_a_python_without_its_help_topics_is_told_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(BadInput, match="without its help topics"):
        text.read("python_docs")


def test_a_file_is_read_as_text(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_bytes("\ufeffäb\r\näb\r\n".encode() * 300)
    mine = text.read(str(file))
    assert mine.characters == 300 * 7 - 1  # the mark at the start is none, nor is \r; those inside are
    assert mine.symbols == 4


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read: No such file"), (b"\xff\xfe\xff", "is not UTF-8 text")]
)
def test_a_file_that_is_no_text_is_refused(tmp_path, content, message):
    file = tmp_path / "mine"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        text.read(str(file))


def test_an_impossible_path_and_a_word_that_is_almost_known_are_told(tmp_path):
    with pytest.raises(BadInput, match="embedded null byte"):
        text.read("a\0b")
    with pytest.raises(BadInput, match="did you mean markov"):
        text.read(str(tmp_path / "markow"))


@given(st.text(min_size=1, max_size=200))
def test_entropies_are_those_of_numpy(written):
    found = text.of(written)
    _, counts = np.unique(list(written), return_counts=True)
    shares = counts / counts.sum()
    assert found.unigram_entropy == pytest.approx(-float(np.sum(shares * np.log(shares))), abs=1e-12)
    assert found.symbols == len(set(written))
    assert found.characters == len(written)


def test_held_out_text_is_spread_over_the_whole_and_is_never_trained_on():
    marked = text.of("".join(chr(33 + i // 1000) for i in range(25_000)))  # a character per block of 1000
    held_out, trained = set(marked.held_out.tolist()), set(marked.training.tolist())
    assert held_out == {0, 10, 20}
    assert trained == set(range(25)) - held_out
    assert len(marked.held_out) + len(marked.training) == 25_000


def test_batches_are_cut_anywhere_and_held_out_sequences_always_at_the_same_places():
    plain = text.of("".join(chr(33 + i % 90) for i in range(30_000)))
    first, second = (plain.batch(4, 8, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (4, 9)
    many = plain.batch(5000, 8, torch.Generator().manual_seed(0))
    assert many[:, 0].unique().numel() == 90
    judged = plain.judged(8)
    assert judged.shape == (text.SEQUENCES, 9)
    assert torch.equal(judged, plain.judged(8))
    assert torch.equal(judged[0], plain.held_out[:9])
    short = text.of("ab" * 10)
    assert short.judged(15).shape == (5, 16)  # twenty held-out characters have room for no more
