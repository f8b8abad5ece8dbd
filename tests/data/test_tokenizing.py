"""Tokenizers: deterministic, reversible, and broken ones named."""

import builtins
import os
import subprocess
import sys

import numpy as np
import pytest

from mupscale.data import open_corpus
from mupscale.data.corpus import Document
from mupscale.data.subwords import END, Subwords, _pieces, train_bpe
from mupscale.data.tokenizing import bpe_size, open_tokenizer, tokenizer_key
from mupscale.errors import MissingExtraError, OptionError, UnknownNameError

TEXT = "the quick brown fox — naïve €uro\r\n\t jumps over the lazy dog 🦊\n" * 40


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.fixture
def json():
    return train_bpe(300, [Document("a", "train", TEXT.encode())])


def test_bpe_decodes_to_what_it_read(path, tmp_path):
    corpus = open_corpus(f"text:{path}", tokenizer="bpe:300", cache=tmp_path / "cache")
    assert corpus.vocabulary == 300
    assert corpus.folder
    decoder = Subwords.of_json((corpus.folder / "tokenizer.json").read_text(), "own")
    assert decoder.decode(corpus.train) + decoder.decode(corpus.validation) == TEXT
    assert len(corpus.train) < len(TEXT.encode())
    assert corpus.train.max() < 300


def test_bpe_is_trained_on_the_training_part_only():
    held = Document("b", "validation", b"zzzz qqqq " * 100)
    train = Document("a", "train", TEXT.encode())
    assert train_bpe(300, [train, held]) == train_bpe(300, [train])
    assert train_bpe(300, [train, Document("b", "train", held.content)]) != train_bpe(300, [train])


def test_bpe_is_the_same_in_every_process(json):
    code = (
        "import sys; from mupscale.data.corpus import Document; from mupscale.data.subwords import "
        "train_bpe;"
        "sys.stdout.write(train_bpe(300, [Document('a', 'train', sys.stdin.buffer.read())]))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "1", "TOKENIZERS_PARALLELISM": "0"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, input=TEXT.encode(), capture_output=True, check=True
    )
    assert out.stdout.decode() == json


def test_bpe_is_trained_once(path, tmp_path, monkeypatch):
    first = open_corpus(f"text:{path}", tokenizer="bpe:300", cache=tmp_path / "cache")
    monkeypatch.setattr("mupscale.data.opening.train_bpe", lambda *_: pytest.fail("trained again"))
    again = open_corpus(f"text:{path}", tokenizer="bpe:300", cache=tmp_path / "cache")
    assert again.describe() == first.describe()
    assert np.array_equal(again.train, first.train)


def test_another_text_is_prepared_apart(path, tmp_path):
    def opened():
        return open_corpus(f"text:{path}", tokenizer="bpe:300", cache=tmp_path / "cache")

    first = opened()
    path.write_bytes(TEXT.upper().encode())
    second = opened()
    assert first.folder != second.folder
    assert first.fingerprint != second.fingerprint
    path.write_bytes(TEXT.encode())
    assert opened().fingerprint == first.fingerprint


def test_documents_end_with_their_token_and_a_text_cannot_forge_it(json):
    tokenizer = Subwords.of_json(json, "own")
    (tokens,) = tokenizer.encode([Document("a", "train", f"a {END} b".encode())])
    assert (tokens == tokenizer.end).sum() == 1
    assert tokens[-1] == tokenizer.end
    assert tokenizer.decode(tokens) == f"a {END} b"


def test_truncation_and_padding_of_a_file_do_not_apply(json, tmp_path):
    from tokenizers import Tokenizer

    inner = Tokenizer.from_str(json)
    inner.enable_truncation(max_length=3)
    inner.enable_padding(length=7)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(f"file:{tmp_path}")
    long, short = tokenizer.encode(
        [Document("a", "train", TEXT.encode()), Document("b", "train", b"x")]
    )
    assert len(long) > 100
    assert len(short) == 2


def test_long_texts_are_encoded_in_pieces_that_are_the_text():
    assert list(_pieces("ab\ncd\nefgh", 4)) == ["ab\n", "cd\n", "efgh"]
    for most in range(1, 70):
        pieces = list(_pieces(TEXT, most))
        assert "".join(pieces) == TEXT
        assert max(map(len, pieces)) <= most


def test_a_file_is_known_by_its_content(json, path, tmp_path):
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(json)
    specs = [f"file:{tmp_path / name}" for name in ("one.json", "two.json")]
    assert tokenizer_key(specs[0]) == tokenizer_key(specs[1])
    one, two = (
        open_corpus(f"text:{path}", tokenizer=spec, cache=tmp_path / "cache") for spec in specs
    )
    assert one.fingerprint == two.fingerprint
    assert one.folder == two.folder
    assert one.fingerprint != open_corpus(f"text:{path}").fingerprint


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("byte", UnknownNameError, r"Did you mean 'bytes'\?"),
        ("bpe:256", OptionError, r"'bpe:256': the size must be an integer from 257"),
        ("bpe:many", OptionError, r"Write bpe:4096"),
        (
            "file:nowhere.json",
            OptionError,
            r"could not read the tokenizer nowhere\.json: No such file",
        ),
        ("file:broken.json", OptionError, r"file:broken\.json is not a tokenizer: "),
        ("file:binary.json", OptionError, r"could not read .*binary\.json"),
        ("file:", OptionError, r"could not read"),
    ],
)
def test_what_is_no_tokenizer_is_named(spec, error, message, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"version": "1.0", "model": {"type": "BPE", "vocab"')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\0")
    with pytest.raises(error, match=message):
        open_corpus(f"text:{path}", tokenizer=spec, cache=tmp_path / "cache")


def test_without_the_package_the_line_that_installs_it_is_given(json, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'mupscale\[hf\]'"):
        Subwords.of_json(json, "own")


def test_a_tokenizer_in_the_cache_of_the_hub_needs_no_network(json, tmp_path, monkeypatch):
    import huggingface_hub

    (tmp_path / "tokenizer.json").write_text(json)
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda *_: str(tmp_path / "tokenizer.json")
    )
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: pytest.fail("asked the hub"))
    assert open_tokenizer("hub:some/model").vocabulary == 300


def test_a_tokenizer_that_the_hub_cannot_give_is_named(monkeypatch):
    import huggingface_hub

    def offline(*_):
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(OptionError, match=r"hub:gpt2: .*no network.*file:PATH"):
        open_tokenizer("hub:gpt2")
    assert bpe_size("hub:gpt2") is None
