"""Tables keep every cell at every width, and no line is longer than the terminal."""

import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mupscale import text

HEAD = ["role", "parameters", "r", "lr", "why"]
ROW = ["key", "model.layers.*.self_attn.k_proj.weight × 32", "4", "0.1875", "lr (1 + √r)/(2n)"]
WORDS = st.text("abcäß√.", min_size=1, max_size=12)


@given(
    st.lists(st.lists(WORDS, min_size=3, max_size=3), min_size=1, max_size=4),
    st.integers(40, 160),
    st.booleans(),
)
def test_every_cell_is_printed_and_every_line_fits(rows, columns, with_details):
    details = ["c"] if with_details else []
    shown = text.text_table(["a", "b", "c"], rows, details=details, columns=columns)
    assert max(map(cell_len, shown.splitlines())) <= columns
    for row in rows:
        for cell in row:
            assert cell in shown


@pytest.mark.parametrize("columns", [40, 60, 80, 160])
def test_long_cells_move_below_their_row_where_there_is_no_room(columns):
    shown = text.text_table(HEAD, [ROW], details=["parameters", "why"], columns=columns)
    lines = shown.splitlines()
    assert max(map(cell_len, lines)) <= columns
    assert ("parameters" in lines[0]) == (columns >= 80)
    if columns < 80:
        assert lines[2].startswith("  model.layers")


def test_details_move_one_after_another_as_the_room_shrinks():
    heads = [
        text.text_table(HEAD, [ROW], details=["why", "parameters"], columns=columns).split("\n")[0]
        for columns in (80, 65, 40)
    ]
    assert [head.split() for head in heads] == [HEAD, HEAD[:-1], ["role", "r", "lr"]]


def test_numbers_stand_at_the_right_edge_of_their_column():
    lines = text.text_table(["a", "n"], [["x", "1"], ["y", "100"]], right=["n"]).splitlines()
    assert [line[-1] for line in lines] == ["n", "1", "0"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(("columns", "expected"), [("1", 40), ("80", 80), ("160", 160)])
def test_the_width_comes_from_columns_and_is_at_least_40(monkeypatch, columns, expected):
    monkeypatch.setenv("COLUMNS", columns)
    assert text.terminal_columns() == expected


def test_without_a_terminal_lines_are_100_wide():
    code = "from mupscale.text import terminal_columns; print(terminal_columns())"
    unset = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=unset)
    assert done.stdout == "100\n", done.stderr


def test_colour_is_for_terminals_only(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, coloured = io.StringIO(), Terminal()
    for stream in (plain, coloured):
        text.show("query: pass, key: fail", stream)
    assert plain.getvalue() == "query: pass, key: fail\n"
    assert "\x1b[32mpass" in coloured.getvalue()
    assert "\x1b[31mfail" in coloured.getvalue()


def test_no_word_is_broken_in_a_paragraph(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    path = "runs/" + "x" * 60
    assert f"{path}," in text.wrapped(f"The records are in {path}, as before.").split()


def test_a_word_is_broken_only_where_no_column_can_fold_between_words():
    rows = [["adafactor-unscaled", "derived, one extrapolated step"]]
    shown = text.text_table(["optimizer", "standing of the result"], rows, columns=40)
    assert "adafactor-unscaled" in shown
    assert max(map(cell_len, shown.splitlines())) <= 40
    shown = text.text_table(["optimizer", "standing"], rows, columns=24)
    assert "adafactor-unscaled" not in shown
    assert max(map(cell_len, shown.splitlines())) <= 24
