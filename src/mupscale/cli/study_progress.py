"""Progress of a running study: a table that updates in place, or a line every 30 seconds if stderr
is not a terminal.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mupscale.cli.console import remark

if TYPE_CHECKING:
    from mupscale.studies import Snapshot, Study

_LINE_SECONDS = 30.0
_DRAW_SECONDS = 0.5


class Show:
    """Draws the snapshots of a study, but not each of them."""

    def __init__(self, study: "Study", live: Any) -> None:
        self._live, self._began = live, time.monotonic()
        self._due = 0.0
        self._at_start: int | None = None
        self._name = study.config.name

    def report(self, snapshot: "Snapshot") -> None:
        ended = sum(len(cell) for cell in snapshot.cells.values())
        if self._at_start is None:
            self._at_start = ended
        now = time.monotonic()
        if now < self._due and len(snapshot.done) < len(snapshot.cells):
            return
        began = time.monotonic()
        if self._live is not None:
            self._live.update(self._table(snapshot, ended))
        else:
            remark(f"{self._name}: {self._words(snapshot, ended)}")
        # Drawing thousands of trials is slow: spend at most a tenth of the time on it.
        pause = _DRAW_SECONDS if self._live is not None else _LINE_SECONDS
        self._due = began + max(pause, 10 * (time.monotonic() - began))

    def remark(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            remark(text)

    def _words(self, snapshot: "Snapshot", ended: int) -> str:
        expected = sum(snapshot.expected.values())
        known = self._all_known(snapshot)
        words = f"{ended} of {expected} trials{'' if known else ' or more'}"
        done = f"{len(snapshot.done)} of {len(snapshot.cells)} cells done"
        left, least = self._seconds_left(ended, expected), "" if known else "at least "
        return f"{words}, {done}" + ("" if left is None else f", {least}{_duration(left)} left")

    @staticmethod
    def _all_known(snapshot: "Snapshot") -> bool:
        return snapshot.config.search.method in ("grid", "random") or len(snapshot.done) == len(
            snapshot.cells
        )

    def _seconds_left(self, ended: int, expected: int) -> float | None:
        ran = ended - (self._at_start or 0)
        if ran < 1 or expected <= ended:
            return None
        return (time.monotonic() - self._began) / ran * (expected - ended)

    def _table(self, snapshot: "Snapshot", ended: int) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        from mupscale.studies.summary import interval_text, rows

        table = Table(box=None, pad_edge=False)
        for name in ("cell", "done", "running", "failed", "log2 lr", "interval", "lowest loss"):
            table.add_column(name, justify="left" if name in ("cell", "interval") else "right")
        for row in rows(snapshot):
            table.add_row(
                Text(row.cell + (" ✓" if row.done else "")),
                str(row.ended),
                str(row.running),
                str(row.failed),
                "" if row.optimum is None else f"{row.optimum:.2f}",
                Text(interval_text(row)),
                "" if row.best_loss is None else f"{row.best_loss:.4f}",
            )
        return Group(table, Text(self._words(snapshot, ended)))


def _duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    >>> _duration(42), _duration(150), _duration(9000)
    ('42 s', '2 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def live(study: "Study") -> Generator[Show]:
    """Yield an object to report snapshots and remarks to."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Show(study, None)
        return
    with Live(console=console, transient=True, refresh_per_second=4) as shown:
        yield Show(study, shown)
