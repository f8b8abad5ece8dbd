"""The results of a study so far, one row per cell."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mupscale.analysis.families import CellAnalysis, StudyAnalysis
from mupscale.analysis.flags import flags_text
from mupscale.records import finite
from mupscale.studies.measured import analysis_of, member_label
from mupscale.studies.study import Snapshot
from mupscale.studies.trials import FAILED, best
from mupscale.text import text_table


@dataclass(frozen=True)
class CellRow:
    """A row of the table. `optimum` is log2 of the learning rate; low and high are None where the
    trials give no bound.
    """

    cell: str
    done: bool
    finished: int
    diverged: int
    stopped: int
    failed: int
    running: int
    tokens: int
    best_lr: float | None
    best_loss: float | None
    best_params: dict[str, float] | None
    optimum: float | None
    low: float | None
    high: float | None
    seeds: int
    flags: tuple[str, ...]

    @property
    def ended(self) -> int:
        return self.finished + self.diverged + self.stopped + self.failed

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def rows(snapshot: Snapshot, analysis: StudyAnalysis | None = None) -> list[CellRow]:
    """One for each cell. Pass the analysis of the snapshot if you have it."""
    running = Counter(key.partition("/")[0] for key in snapshot.running)
    analysis = analysis or analysis_of(snapshot)
    found = {
        cell.name: analysis.cell(cell.rule_name, member_label(cell))
        for cell in snapshot.config.cells()
    }
    return [_row(snapshot, name, running[name], found.get(name)) for name in snapshot.cells]


def _row(snapshot: Snapshot, name: str, running: int, analysed: CellAnalysis | None) -> CellRow:
    trials = [trial for _, trial in sorted(snapshot.cells[name].items())]
    count = Counter(trial.status for trial in trials)
    lowest = best(trials)
    rate = analysed.found.get("lr") if analysed else None
    return CellRow(
        cell=name,
        done=name in snapshot.done,
        finished=count["finished"],
        diverged=count["diverged"],
        stopped=count["stopped"],
        failed=sum(count[status] for status in FAILED),
        running=running,
        tokens=sum(trial.tokens or 0 for trial in trials),
        best_lr=lowest.params["lr"] if lowest else None,
        best_loss=lowest.loss if lowest else None,
        best_params=dict(lowest.params) if lowest else None,
        optimum=rate.value if rate else None,
        low=finite(rate.low) if rate else None,
        high=finite(rate.high) if rate else None,
        seeds=len({trial.seed for trial in trials if trial.loss is not None}),
        flags=analysed.flags if analysed else (),
    )


def table_text(cells: Sequence[CellRow]) -> str:
    """For the terminal.

    >>> print(table_text([]))
    no cells
    """
    if not cells:
        return "no cells"
    head = ["cell", "trials", "log2(lr)", "95 % interval", "best trial", "cost", "notes"]
    details = ["best trial", "cost", "notes"]
    return text_table(head, [_line(cell) for cell in cells], right=["cost"], details=details)


def _line(cell: CellRow) -> list[str]:
    words = ("finished", "stopped", "diverged", "failed", "running")
    counts = {word: getattr(cell, word) for word in words}
    loss = (
        f"loss {cell.best_loss:.4f} at {_shown(cell.best_params or {})}" if cell.best_params else ""
    )
    return [
        cell.cell,
        ", ".join(f"{n} {word}" for word, n in counts.items() if n or word == "finished"),
        "" if cell.optimum is None else f"{cell.optimum:.2f}",
        interval_text(cell),
        loss,
        f"{cell.tokens:,} tokens",
        flags_text(cell.flags),
    ]


def interval_text(cell: CellRow) -> str:
    if cell.low is None or cell.high is None:
        return ""
    return f"[{cell.low:.2f}, {cell.high:.2f}] ({cell.seeds} seed{'s' if cell.seeds > 1 else ''})"


def _shown(params: dict[str, float]) -> str:
    """Parameters as powers of two.

    >>> _shown({"lr": 0.0078125, "weight_decay": 0.1})
    'lr 2^-7, weight_decay 2^-3.32'
    """
    return ", ".join(
        f"{name} 2^{math.log2(value):.2f}".rstrip("0").rstrip(".") for name, value in params.items()
    )
