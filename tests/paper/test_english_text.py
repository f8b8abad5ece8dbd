"""The loader of the English text: each entry once, in an order that says nothing about the
alphabet.
"""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mupscale.data import open_corpus
from mupscale.paper.english_text import entries, main, shuffled

ENTRIES = [
    f"Word{k:04d} \\Word\\, n.\n   Meaning {k}.\n\n   2. Another one.".encode() for k in range(2000)
]
HEAD = b"\n00-database-short\n   A dictionary of tests\n\n"


def dictionary(folder: Path, name: str) -> Path:
    """As dictd has it, with two entries twice."""
    text = HEAD + b"\n\n".join([*ENTRIES, ENTRIES[3], ENTRIES[7]]) + b"\n"
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".dz") else text)
    return path


def test_entries_keep_their_paragraphs_and_the_head_is_dropped(tmp_path: Path):
    assert entries(dictionary(tmp_path, "a.dict").read_bytes()) == [
        *ENTRIES,
        ENTRIES[3],
        ENTRIES[7],
    ]


def test_every_entry_is_there_once_whatever_the_order_it_came_in():
    text = shuffled([*ENTRIES, *ENTRIES[:10]])
    assert text == shuffled(ENTRIES[::-1])
    assert sorted(entries(text)) == ENTRIES


def test_what_is_held_out_is_spread_over_the_alphabet():
    """Uniform ranks have mean 1/2 and sd 1/√12; the last 100 of 2000 in alphabetical order would
    have 0.975.
    """
    held_out = [ENTRIES.index(entry) / len(ENTRIES) for entry in entries(shuffled(ENTRIES))[-100:]]
    assert np.mean(held_out) == pytest.approx(0.5, abs=4 / np.sqrt(12 * 100))


@pytest.mark.parametrize("name", ["a.dict", "a.dict.dz"])
def test_the_command_writes_a_corpus(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / "new" / "text.txt"
    monkeypatch.setattr(sys, "argv", ["english_text", str(dictionary(tmp_path, name)), str(output)])
    main()
    assert "2,000 entries (2 copies dropped)" in capsys.readouterr().out
    corpus = open_corpus(f"text:{output}")
    assert bytes(corpus.train) + bytes(corpus.validation) == shuffled(ENTRIES)


def test_bytes_that_are_not_utf8_can_be_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source, output = tmp_path / "a.dict", tmp_path / "text.txt"
    source.write_bytes("\nCafé\n   A ".encode() + b"\xe9 place.\n")
    for options, expected in (([], b"\xe9 place"), (["--utf8"], b" place")):
        monkeypatch.setattr(sys, "argv", ["english_text", *options, str(source), str(output)])
        main()
        text = output.read_bytes()
        assert text == "Café\n   A ".encode() + expected + b".\n\n"
    assert text.decode("utf-8")


def test_it_runs_as_a_module():
    shown = subprocess.run(
        [sys.executable, "-m", "mupscale.paper.english_text", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "dictionary" in shown.stdout
    assert not shown.stderr
