"""What commands show on a terminal: help pages, JSON, a progress bar."""

import json
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cyclopts.help import DefaultFormatter

from mupscale.records import finite
from mupscale.text import MIN_COLUMNS

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions


def print_json(content: Any) -> None:
    """Strict JSON: a value that is not finite becomes null."""
    print(json.dumps(finite(content), ensure_ascii=False, indent=2, allow_nan=False))


def remark(text: str) -> None:
    """Print to stderr, beside the result."""
    print(text, file=sys.stderr)


@contextmanager
def bar(title: str, total: int | None = None) -> Generator[Callable[..., None]]:
    """Yield a function to call with the number of steps done, of all steps, and a status; silent if
    stderr is not a terminal.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        TextColumn(title),
        *columns,
        TextColumn("{task.fields[status]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(title, total=total, status="")
        yield lambda done, total=total, status="": progress.update(
            task, completed=done, total=total, status=status
        )


class HelpFormatter(DefaultFormatter):
    """Cyclopts' help, with paragraphs filled to the width and defaults in the last sentence.

    It is at least 40 columns wide: in one or two columns, cyclopts wraps names in an endless loop.
    """

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        console = _wide_enough(console)
        entries = [
            entry.copy(description=_described(entry), choices=None, default=None, required=False)
            for entry in panel.entries
        ]
        super().__call__(console, console.options, panel.copy(entries=entries))

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:
        console = _wide_enough(console)
        super().render_usage(console, console.options, usage)

    def render_description(
        self, console: "Console", options: "ConsoleOptions", description: Any
    ) -> None:
        text = f"{filled(_plain(description))}\n"
        _wide_enough(console).print(text, markup=False, highlight=False)


def _wide_enough(console: "Console") -> "Console":
    from rich.console import Console

    return (
        console if console.width >= MIN_COLUMNS else Console(file=console.file, width=MIN_COLUMNS)
    )


def _described(entry: "HelpEntry") -> str:
    text, choices = filled(_plain(entry.description)), entry.choices or ()
    notes = ["required"] if entry.required else []
    if not all(re.search(rf"\b{choice}\b", text) for choice in choices):
        notes.append(f"choices: {', '.join(choices)}")
    if entry.default is not None:
        notes.append(f"default: {entry.default}")
    return with_note(text, "; ".join(notes))


def _plain(description: Any) -> str:
    return str(getattr(description, "primary_renderable", description))


def filled(text: str) -> str:
    r"""Paragraphs on one line each, for the terminal to wrap.

    >>> filled("One\n  paragraph.\n\nAnother.")
    'One paragraph.\n\nAnother.'
    """
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def with_note(text: str, note: str) -> str:
    """A note in brackets at the end of the last sentence.

    >>> with_note("Optimizer steps of each run.", "default: 4")
    'Optimizer steps of each run (default: 4).'
    >>> with_note("How points are chosen (default: adaptive).", "choices: adaptive, grid")
    'How points are chosen (choices: adaptive, grid; default: adaptive).'
    >>> with_note("Keep the optimum (still), or the lowest loss (loss).", "default: still")
    'Keep the optimum (still), or the lowest loss (loss) (default: still).'
    """
    if not note:
        return text
    head, bracket, own = text.removesuffix(").").rpartition(" (default: ")
    if bracket and text.endswith(")."):
        return f"{head} ({note}; default: {own})."
    return f"{text.removesuffix('.')} ({note})."
