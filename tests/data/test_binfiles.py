"""nanoGPT's files: mapped, checked where it is cheap, and never unpickled."""

import json

import numpy as np
import pytest

from mupscale.data import Batches, open_corpus
from mupscale.data.binfiles import blocks
from mupscale.errors import OptionError, UnknownNameError


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    rng.integers(0, 50257, 5000).astype("<u2").tofile(tmp_path / "train.bin")
    rng.integers(0, 50257, 500).astype("<u2").tofile(tmp_path / "val.bin")
    (tmp_path / "meta.pkl").write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    return tmp_path


def test_a_folder_of_nanogpt_is_mapped_as_it_is(folder):
    corpus = open_corpus(f"bin:{folder},vocab=50257")
    assert corpus.vocabulary == 50257
    assert np.array_equal(corpus.train, np.fromfile(folder / "train.bin", dtype="<u2"))
    assert np.array_equal(corpus.validation, np.fromfile(folder / "val.bin", dtype="<u2"))
    assert isinstance(corpus.train.base, np.memmap)
    assert not corpus.train.flags.writeable
    assert corpus.tokenizer == "unknown"


def test_the_end_of_a_single_file_is_held_out(folder):
    corpus = open_corpus(f"bin:{folder / 'train.bin'},vocab=50257")
    assert (len(corpus.train), len(corpus.validation)) == (4950, 50)
    assert np.array_equal(
        np.concatenate([corpus.train, corpus.validation]), np.fromfile(folder / "train.bin", "<u2")
    )


def test_the_meta_file_says_size_and_type(folder):
    np.arange(1000, dtype="<u4").tofile(folder / "train.bin")
    np.arange(100, dtype="<u4").tofile(folder / "val.bin")
    (folder / "meta.json").write_text(json.dumps({"vocab_size": 100_000, "dtype": "uint32"}))
    corpus = open_corpus(f"bin:{folder}")
    assert (corpus.vocabulary, corpus.train.dtype, corpus.train[999]) == (100_000, np.uint32, 999)
    assert open_corpus(f"bin:{folder},vocab=1000").vocabulary == 1000


def test_the_fingerprint_is_of_the_tokens(folder):
    name = f"bin:{folder},vocab=50257"
    before = open_corpus(name).fingerprint
    assert open_corpus(name).fingerprint == before
    with (folder / "val.bin").open("r+b") as file:
        file.write(b"\0\0")
    assert open_corpus(name).fingerprint != before


def test_large_files_are_sampled_at_both_ends_and_between(tmp_path):
    path = tmp_path / "one.bin"
    with path.open("wb") as file:
        file.truncate(2**35)
        name = f"bin:{path},vocab=7"
        before = open_corpus(name).fingerprint
        file.seek(2**34 * 99 // 100 * 2 - 2)  # the last token to train on
        file.write(b"\5\0")
        file.flush()
        assert open_corpus(name).fingerprint != before
        file.seek(0)
        file.write(b"\7\0")
    with pytest.raises(
        OptionError, match=r"train holds the token 7 at position 0, but the vocabulary ends at 6"
    ):
        open_corpus(name)


@pytest.mark.parametrize("length", [0, 1, 9, 40, 41, 1000])
def test_blocks_cover_a_short_array_and_the_ends_of_a_long_one(length):
    tokens = np.arange(length, dtype=np.uint32)
    seen = np.concatenate([tokens[:0], *(block for _, block in blocks(tokens, number=4, size=10))])
    assert len(seen) == min(length, 40)
    assert not length or (seen[0] == 0 and seen[-1] == length - 1)


def test_a_token_between_the_samples_is_caught_by_the_batches(tmp_path):
    tokens = np.zeros(2**23, dtype="<u2")
    tokens[2**16 + 10] = 9  # between the first block and the second
    tokens.tofile(tmp_path / "one.bin")
    corpus = open_corpus(f"bin:{tmp_path / 'one.bin'},vocab=9")
    everything = Batches(corpus, batch=1, sequence=len(corpus.train) - 1, seed=0)
    with pytest.raises(OptionError, match="holds the token 9"):
        everything.at(0)


@pytest.mark.parametrize(
    ("settings", "change", "error", "message"),
    [
        (
            "",
            None,
            OptionError,
            r"unknown vocabulary size. Write bin:PATH,vocab=50257.*A meta\.pkl is not read",
        ),
        (",vocab=0", None, OptionError, r"vocab=0 is not a positive"),
        (",vocab=many", None, OptionError, r"vocab='many' is not"),
        (",vocab=9,dtype=int16", None, UnknownNameError, r"Did you mean 'uint16'\?"),
        (
            ",vocab=300",
            None,
            OptionError,
            r"train holds the token \d+ at position \d+, but the vocabulary ends at 299",
        ),
        (",vocab=50257", lambda f: (f / "val.bin").unlink(), OptionError, r"no file .*val\.bin"),
        (
            ",vocab=50257",
            lambda f: (f / "train.bin").write_bytes(b"abc"),
            OptionError,
            r"has 3 bytes.*truncated",
        ),
        (
            ",vocab=50257",
            lambda f: (f / "train.bin").write_bytes(b""),
            OptionError,
            r"training part is empty",
        ),
    ],
)
def test_what_is_wrong_is_named(settings, change, error, message, folder):
    if change:
        change(folder)
    with pytest.raises(error, match=message):
        open_corpus(f"bin:{folder}{settings}")


def test_a_tokenizer_has_no_place_beside_tokens(folder):
    with pytest.raises(OptionError, match="holds tokens already"):
        open_corpus(f"bin:{folder},vocab=50257", tokenizer="bytes")
