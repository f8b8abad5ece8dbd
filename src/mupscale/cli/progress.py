"""A progress bar on the terminal; silence where there is none."""

from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int) -> Generator[Callable[[int], None]]:
    """Yield a function to call with the number of things just done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, advance=done)


@contextmanager
def bar(what: str, total: int) -> Generator[Callable[[int, str], None]]:
    """Yield a function to call with the number of things done so far, and a word on how it goes."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[word]}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task(what, total=total, word="")
        yield lambda done, word: shown.update(task, completed=done, word=word)
