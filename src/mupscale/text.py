"""Text for terminals: tables that fit, wrapped paragraphs, and colour where a terminal shows it.

Everything here returns or prints plain text. rich is imported when used.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from io import StringIO
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

MIN_COLUMNS = 40
"""Narrower terminals get lines of this length: a table needs some room to be one."""

DEFAULT_COLUMNS = 100
"""Where the output is not a terminal and COLUMNS is not set."""

_GAP = 2
_SUM = re.compile(r"\(([^\s()]+) \+ ([^\s()]+)\)")
_COLOURS = {
    "green": r"\b(pass|passes|passed|agrees|finished|still)\b",
    "red": r"\b(fail|fails|failed|disagrees|diverged|error)\b",
    "yellow": r"\b(inconclusive|points for|points against|cannot be decided|undecided|warning)\b",
}


def terminal_columns() -> int:
    """The width to print at: COLUMNS, else the terminal's, else 100; at least 40."""
    return max(MIN_COLUMNS, shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns)


def wrapped(
    text: str, indent: str = "", hanging: str | None = None, columns: int | None = None
) -> str:
    """One paragraph at the terminal's width, or at `columns`; `hanging` indents the lines after the
    first.

    Words are never broken, so that a path or a command can be copied; nor are short sums: (1 + √r).
    """
    filled = textwrap.fill(
        _SUM.sub("(\\1\N{NO-BREAK SPACE}+\N{NO-BREAK SPACE}\\2)", text),
        terminal_columns() if columns is None else columns,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\N{NO-BREAK SPACE}", " ")


def many(number: int, word: str) -> str:
    """A count with its noun.

    >>> many(1, "seed"), many(1200, "run")
    ('1 seed', '1,200 runs')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def text_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    details: Sequence[str] = (),
    columns: int | None = None,
) -> str:
    """Aligned columns that fit the terminal.

    `right` names the columns that are aligned to the right. Where the table is too wide, the
    `details` columns move one after another to a line of their own below each row; cells that are
    still too wide are folded between words.

    >>> print(text_table(["role", "lr"], [["key", "0.25"], ["readout", "1"]], right=["lr"]))
    role       lr
    key      0.25
    readout     1
    >>> rows = [["key", "0.25", "a reason that needs some room"]]
    >>> print(text_table(["role", "lr", "why"], rows, details=["why"], columns=24))
    role  lr
    key   0.25
      a reason that needs
      some room
    """
    from rich.cells import cell_len

    available = terminal_columns() if columns is None else columns
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(cell_len(line[k]) for line in lines) for k in range(len(head))]
    beside = list(range(len(head)))
    for name in details:
        if sum(widths[k] + _GAP for k in beside) - _GAP <= available:
            break
        beside.remove(list(head).index(name))
    words = [
        max(cell_len(word) for line in lines for word in line[k].split() or [""]) for k in beside
    ]
    shown = _fitted([widths[k] for k in beside], words, available)
    aligned = ["right" if head[k] in right else "left" for k in beside]
    below = [k for k in range(len(head)) if k not in beside]
    parts: list[RenderableType] = []
    for number, line in enumerate(lines):
        parts.append(_grid([line[k] for k in beside], shown, aligned))
        note = " · ".join(line[k] for k in below if line[k])
        if number > 0 and note:
            parts.append(_indented(note))
    return _plain(parts, available)


def _fitted(widths: list[int], words: list[int], available: int) -> list[int]:
    """Take from the widest column until the row fits, first where that breaks no word. A column
    keeps at least four characters.
    """
    room = max(available - _GAP * (len(widths) - 1), 4 * len(widths))
    widths = [*widths]
    while sum(widths) > room:
        spare = [k for k, width in enumerate(widths) if width > max(words[k], 4)]
        most = max(spare or range(len(widths)), key=lambda k: widths[k])
        widths[most] -= 1
    return widths


def _grid(cells: Sequence[str], widths: Sequence[int], aligned: Sequence[str]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for width, justify in zip(widths, aligned, strict=True):
        table.add_column(width=width, justify=justify, overflow="fold")  # pyright: ignore[reportArgumentType]
    table.add_row(*(Text(cell) for cell in cells))
    return table


def _indented(note: str) -> "RenderableType":
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(note, overflow="fold"), (0, 0, 0, 2), expand=False)


def _plain(parts: Sequence["RenderableType"], columns: int) -> str:
    from rich.console import Console, Group

    console = Console(
        file=StringIO(),
        width=columns,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A table for Markdown; a bar inside a cell is escaped.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    | --- | --- |
    | 1 | x\|y |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def show(text: str, file: TextIO | None = None) -> None:
    """Print; on a terminal, with verdicts such as pass, fail and inconclusive in colour."""
    stream = sys.stdout if file is None else file
    if not stream.isatty():
        print(text, file=stream)
        return
    from rich.console import Console
    from rich.text import Text

    coloured = Text(text)
    for colour, words in _COLOURS.items():
        coloured.highlight_regex(words, colour)
    Console(file=stream, highlight=False).print(coloured, soft_wrap=True)
