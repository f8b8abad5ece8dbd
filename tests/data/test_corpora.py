"""Corpora by name: the library of Python, and text files."""

import itertools

import numpy as np
import pytest

from mupscale.data import open_corpus
from mupscale.data.stdlib import stdlib_documents
from mupscale.data.textfiles import tail_start, text_documents
from mupscale.errors import OptionError, UnknownNameError


@pytest.fixture(scope="module")
def documents():
    return stdlib_documents()


def test_the_library_comes_without_its_tests_and_in_order(documents):
    names = [d.name for d in documents]
    assert names == sorted(set(names))
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    assert {"ast.py", "unittest/case.py", "pydoc_data/topics/lambda.txt"} <= set(names)
    assert not any("_sysconfigdata" in name for name in names)


def test_no_file_and_no_content_is_on_both_sides(documents):
    train, held = ([d for d in documents if d.part == part] for part in ("train", "validation"))
    assert not {d.name for d in train} & {d.name for d in held}
    assert not {d.content for d in train} & {d.content for d in held}
    share = sum(len(d.content) for d in held) / sum(len(d.content) for d in documents)
    assert 0.03 < share < 0.08


def test_the_arrays_are_the_documents_one_after_the_other(documents):
    corpus = open_corpus("python-stdlib")
    for part in ("train", "validation"):
        assert getattr(corpus, part).tobytes() == b"".join(
            d.content for d in documents if d.part == part
        )
    assert corpus.describe() == {
        "name": "python-stdlib",
        "tokenizer": "bytes",
        "vocabulary": 256,
        "train_tokens": len(corpus.train),
        "validation_tokens": len(corpus.validation),
        "fingerprint": corpus.fingerprint,
    }
    with pytest.raises(ValueError, match="read-only"):
        corpus.train[0] = 1


def test_a_file_more_moves_no_other_across_the_split(tmp_path):
    for number in range(200):
        (tmp_path / f"m{number}.py").write_text(f"x = {number}\n")
    before = {d.name: d.part for d in stdlib_documents(tmp_path)}
    (tmp_path / "a.py").write_text("new = 1\n")
    after = {d.name: d.part for d in stdlib_documents(tmp_path)}
    assert before.items() <= after.items()
    assert 4 <= sum(before[f"m{n}.py"] == "validation" for n in range(200)) <= 32


def test_a_python_without_sources_says_so(tmp_path):
    with pytest.raises(OptionError, match=r"no sources in .*text:PATH"):
        stdlib_documents(tmp_path)


@pytest.fixture
def folder(tmp_path):
    files = {
        "b.txt": "b line\n" * 100,
        "a/x.md": "x line\n" * 50,
        "a/y.py": "y = 1\n" * 50,
        "raw.dat": "no",
    }
    for name, text in {
        **files,
        ".git/config.txt": "hidden",
        "copy.txt": files["b.txt"],
        "empty.txt": "",
    }.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(text)
    return tmp_path / "texts"


def test_a_folder_is_read_in_the_order_of_its_names_and_copies_once(folder):
    names = [d.name for d in text_documents(str(folder)) if d.part == "train"]
    assert names == ["a/x.md", "a/y.py", "b.txt"]
    assert next(d.name for d in text_documents(f"{folder / 'raw.dat'},{folder}")) == "raw.dat"
    twice = text_documents(f"{folder},{folder / 'b.txt'}, {folder}/a/../a")
    assert twice == text_documents(str(folder))


def test_the_end_of_each_file_is_held_out_from_a_line_on(folder):
    for name, halves in itertools.groupby(text_documents(str(folder)), key=lambda d: d.name):
        train, held = halves
        assert (train.part, held.part) == ("train", "validation")
        assert (train.content + held.content).decode() == (folder / name).read_text()
        assert train.content.endswith(b"\n")
        assert 0.02 < len(held.content) / len(train.content + held.content) <= 0.05


def test_one_line_is_cut_between_characters():
    for length in range(30, 60):
        content = "€".encode() * length
        assert tail_start(content) % 3 == 0
        assert 0.9 < tail_start(content) / len(content) < 1
    assert tail_start(b"ab") == 2


def test_the_fingerprint_changes_with_content_and_names_and_not_with_the_place(folder):
    seen = {open_corpus(f"text:{folder}").fingerprint}
    (folder / "a" / "x.md").write_text("x line\n" * 49 + "X line\n")
    seen.add(open_corpus(f"text:{folder}").fingerprint)
    (folder / "a" / "x.md").rename(folder / "a" / "w.md")
    seen.add(open_corpus(f"text:{folder}").fingerprint)
    assert len(seen) == 3
    moved = folder.rename(folder.with_name("elsewhere"))
    assert open_corpus(f"text:{moved}").fingerprint in seen


def test_bytes_need_not_be_utf8(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(bytes(range(256)) * 4)
    corpus = open_corpus(f"text:{path}")
    assert np.concatenate([corpus.train, corpus.validation]).tobytes() == path.read_bytes()
    with pytest.raises(OptionError, match=r"latin\.txt is not UTF-8 at byte 128.*tokenizer bytes"):
        open_corpus(f"text:{path}", tokenizer="bpe:300", cache=tmp_path)


def test_a_path_may_hold_commas(tmp_path):
    path = tmp_path / "a,b.txt"
    path.write_text("text " * 100)
    assert len(open_corpus(f"text:{path}").train) == 475


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("pyhton-stdlib", UnknownNameError, r"Did you mean 'python-stdlib'\?"),
        ("text", UnknownNameError, r"Did you mean 'text:PATH'\?"),
        ("texts:x", UnknownNameError, r"Known: python-stdlib, text:PATH, bin:PATH, hf:NAME"),
        ("", UnknownNameError, r"unknown corpus ''"),
        ("text:nowhere.txt", OptionError, r"no file or folder nowhere\.txt"),
        ("text:,", OptionError, r"names no path"),
        ("bin:nowhere,vocab=9", OptionError, r"no file or folder nowhere"),
        ("bin:nowhere", OptionError, r"no file or folder nowhere"),
        ("bin:nowhere,vocabulary=9", UnknownNameError, r"Did you mean 'vocab'\?"),
        ("hf:x,colum=y", UnknownNameError, r"Did you mean 'column'\?"),
        ("hf:x,validation=2", OptionError, r"validation=2 must be a share"),
    ],
)
def test_a_wrong_name_gets_the_nearest(name, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        open_corpus(name, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_bare_path_is_told_its_form(tmp_path):
    (tmp_path / "train.bin").touch()
    (tmp_path / "a.txt").touch()
    with pytest.raises(OptionError, match=f"Write bin:{tmp_path}"):
        open_corpus(str(tmp_path))
    with pytest.raises(OptionError, match=f"Write text:{tmp_path}/a.txt"):
        open_corpus(str(tmp_path / "a.txt"))


def test_an_empty_corpus_is_refused(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.csv").write_text("x")
    with pytest.raises(OptionError, match=r"holds no text: .*\.txt"):
        open_corpus(f"text:{tmp_path}")
