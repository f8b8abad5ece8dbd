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


class StudyDisplay:
    """Draws snapshots of a study, at most a tenth of the time."""

    def __init__(self, study: "Study", live: Any) -> None:
        self._live, self._began = live, time.monotonic()
        self._due = 0.0
        self._at_start: int | None = None
        self._name = study.config.name

    def report(self, snapshot: "Snapshot") -> None:
        ended = sum(len(cell) for cell in snapshot.cells.values())
        if self._at_start is None:
            self._at_start = ended
        began = time.monotonic()
        if began < self._due and len(snapshot.done) < len(snapshot.cells):
            return
        summary = self._summary(snapshot, ended)
        if self._live is None:
            remark(f"{self._name}: {summary}")
        else:
            from rich.text import Text

            from mupscale.studies.summary import rows, table_text

            self._live.update(Text(f"{table_text(rows(snapshot))}\n{summary}"))
        # Drawing thousands of trials takes a while.
        pause = _DRAW_SECONDS if self._live is not None else _LINE_SECONDS
        self._due = began + max(pause, 10 * (time.monotonic() - began))

    def remark(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            remark(text)

    def _summary(self, snapshot: "Snapshot", ended: int) -> str:
        done, cells = len(snapshot.done), len(snapshot.cells)
        expected = sum(snapshot.expected.values())
        final = snapshot.config.search.method in ("grid", "random") or done == cells
        ran = ended - (self._at_start or 0)
        parts = [
            f"{ended} of {expected} trials{'' if final else ' or more'}",
            f"{done} of {cells} cells done",
        ]
        if ran > 0 and expected > ended:
            left = (time.monotonic() - self._began) / ran * (expected - ended)
            parts.append(f"{'' if final else 'at least '}{_duration(left)} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    >>> _duration(42), _duration(150), _duration(9000)
    ('42 s', '2 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def live(study: "Study") -> Generator[StudyDisplay]:
    """Yield an object to report snapshots and remarks to."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not console.is_terminal:
        yield StudyDisplay(study, None)
        return
    with Live(console=console, transient=True, refresh_per_second=4) as shown:
        yield StudyDisplay(study, shown)
