"""What a study has found so far, cell by cell."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mupscale.analysis.families import CellAnalysis
from mupscale.studies.measured import analysis_of, member_label
from mupscale.studies.study import Snapshot
from mupscale.studies.trials import best


@dataclass(frozen=True)
class CellRow:
    """A line of the table. `optimum` is log2 of the rate; low and high are None where the trials
    set no bound.
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


def rows(snapshot: Snapshot) -> list[CellRow]:
    running = Counter(key.partition("/")[0] for key in snapshot.running)
    analysis = analysis_of(snapshot)
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
    failed = sum(count[status] for status in ("failed", "oom", "timeout"))
    return CellRow(
        cell=name,
        done=name in snapshot.done,
        finished=count["finished"],
        diverged=count["diverged"],
        stopped=count["stopped"],
        failed=failed,
        running=running,
        tokens=sum(trial.tokens or 0 for trial in trials),
        best_lr=lowest.params["lr"] if lowest else None,
        best_loss=lowest.loss if lowest else None,
        best_params=dict(lowest.params) if lowest else None,
        optimum=rate.value if rate else None,
        low=_finite(rate.low) if rate else None,
        high=_finite(rate.high) if rate else None,
        seeds=len({trial.seed for trial in trials if trial.loss is not None}),
        flags=analysed.flags if analysed else (),
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def table_text(cells: Sequence[CellRow]) -> str:
    """For the terminal.

    >>> print(table_text([]))
    no cells
    """
    if not cells:
        return "no cells"
    lines = [
        ["cell", "trials", "log2 lr at the optimum", "95 % interval", "lowest loss", "tokens", ""]
    ]
    lines += [_line(cell) for cell in cells]
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _line(cell: CellRow) -> list[str]:
    counts = [f"{cell.finished} finished"]
    counts += [f"{number} {word}" for number, word in (
        (cell.stopped, "stopped"), (cell.diverged, "diverged"), (cell.failed, "failed"), (cell.running, "running"),
    ) if number]  # fmt: skip
    return [
        cell.cell,
        ", ".join(counts),
        "" if cell.optimum is None else f"{cell.optimum:.2f}",
        interval_text(cell),
        ""
        if cell.best_loss is None
        else f"{cell.best_loss:.4f} at {_shown(cell.best_params or {})}",
        f"{cell.tokens:,}",
        ", ".join(_MEANING[flag] for flag in (("few",) if "few" in cell.flags else cell.flags)),
    ]


_MEANING = {
    "few": "too few trials for an interval",
    "edge": "at the edge of the range: widen it",
    "flat": "too flat for an interval",
    "seeds": "seeds differ: add some for an interval",
    "diverged": "bounded by diverged trials",
    "saddle": "no minimum within the range",
}


def interval_text(cell: CellRow) -> str:
    if cell.low is None or cell.high is None:
        return ""
    return f"[{cell.low:.2f}, {cell.high:.2f}] ({cell.seeds} seed{'s' if cell.seeds > 1 else ''})"


def _shown(params: dict[str, float]) -> str:
    """Rates and decays as powers of two.

    >>> _shown({"lr": 0.0078125, "weight_decay": 0.1})
    'lr 2^-7, weight_decay 2^-3.32'
    """
    return ", ".join(
        f"{name} 2^{math.log2(value):.2f}".rstrip("0").rstrip(".") for name, value in params.items()
    )
