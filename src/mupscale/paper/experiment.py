"""What every experiment of the paper offers: its cost, its runs, and what the records show."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field
from itertools import groupby
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

from mupscale import reports
from mupscale.engines import Engine, Local, Session
from mupscale.errors import OptionError
from mupscale.paper.claims import Claim

Scale = Literal["cpu", "paper"]


@dataclass(frozen=True)
class Cost:
    """Runs and tokens that are left, and the hours that they take on this machine."""

    runs: int
    tokens: float
    hours: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*map(add, astuple(self), astuple(other)))

    def __str__(self) -> str:
        hours = f"{self.hours * 60:.0f} minutes" if self.hours < 1.5 else f"{self.hours:,.1f} hours"
        return f"{self.runs} runs, {self.tokens:.3g} tokens, about {hours} on this machine"


@dataclass(frozen=True)
class Findings:
    """What the records show: lines to print, claims for the table, and the written files."""

    lines: tuple[str, ...]
    claims: tuple[Claim, ...]
    paths: tuple[Path, ...]
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    "More for `--json`."


@dataclass(frozen=True)
class Execution:
    """How to run: the engine, and callbacks for runs done and runs in total, for remarks, and for
    the start of runs that are missing.
    """

    engine: Engine | None = None
    report: Callable[[int, int], None] = lambda done, total: None
    remark: Callable[[str], None] = lambda text: None
    starting: Callable[[], None] = lambda: None

    def on(self, default: Engine) -> Engine:
        """The engine to run on, which says when it starts."""
        return _Announced(self.engine or default, self.starting)

    def part(self, before: int, total: int) -> dict[str, Any]:
        """Keywords for a part of the runs, which starts when `before` others are done."""

        def report(done: int, _: int) -> None:
            self.report(before + done, total)

        return {"engine": self.on(Local()), "report": report, "remark": self.remark}


QUIETLY = Execution()


@dataclass(frozen=True)
class _Announced:
    """An engine that calls back before a session: one is opened only if a run is missing."""

    engine: Engine
    starting: Callable[[], None]

    def session(self, function: Callable[[Any], Any]) -> AbstractContextManager[Session]:
        self.starting()
        return self.engine.session(function)


class Experiment(ABC):
    """A figure, table or claim of the paper, by name. All its files are in one folder."""

    name: ClassVar[str]

    def workers(self, scale: Scale) -> int | None:
        """Local processes if the user names no number (default: the engine's own choice)."""
        return None

    @abstractmethod
    def cost(self, scale: Scale, workers: int) -> Cost | None:
        """What a run costs; None for a computation of seconds."""

    @abstractmethod
    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        """Run what the folder lacks."""

    @abstractmethod
    def findings(self, scale: Scale, folder: Path) -> Findings:
        """What the folder's records show. Writes figures and tables into the folder."""

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        """The claims alone, without writing into the folder."""
        with TemporaryDirectory() as temporary:
            copy = Path(temporary) / folder.name
            if folder.is_dir():
                shutil.copytree(folder, copy)
            return self.findings(scale, copy).claims

    @abstractmethod
    def dry_run(self, scale: Scale) -> Iterator[str]:
        """Check everything that can be checked without running it, and describe it line by line."""

    def folder(self, scale: Scale) -> Path:
        """The default folder."""
        return Path("runs/paper") / f"{self.name}-{scale}"


def refuse_empty(folder: Path, records: str) -> None:
    if not (folder / records).exists():
        raise OptionError(f"{folder} holds no {records}: nothing was run there yet.")


@dataclass(frozen=True)
class PrintedCell:
    """A cell of a table of the paper, as printed and as we compute it."""

    row: str
    column: str
    printed: str
    ours: str
    equal: bool

    @property
    def difference(self) -> str:
        return f"{self.column} is {self.ours}, printed {self.printed}"


def equal_cells(cells: Sequence[PrintedCell]) -> str:
    return f"{sum(cell.equal for cell in cells)} of {len(cells)} cells"


class PrintedTable(Experiment):
    """Tables of the paper, computed when needed: nothing to run, and the same at both scales."""

    head: ClassVar[tuple[str, ...]]
    "Of the CSV file."

    @abstractmethod
    def cells(self) -> list[PrintedCell]: ...

    def rows(self) -> list[list[str]]:
        """Each row's name, our cells, and whether they are as printed."""
        rows: list[list[str]] = []
        for row, group in groupby(self.cells(), lambda cell: cell.row):
            cells = list(group)
            equal = "equal" if all(cell.equal for cell in cells) else "differs"
            rows.append([row, *(cell.ours for cell in cells), equal])
        return rows

    @abstractmethod
    def lines(self) -> Iterator[str]: ...

    @abstractmethod
    def claims(self) -> list[Claim]: ...

    def cost(self, scale: Scale, workers: int) -> None:
        """It takes seconds."""

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        how.report(1, 1)

    def findings(self, scale: Scale, folder: Path) -> Findings:
        rows = [dict(zip(self.head, astuple(cell), strict=True)) for cell in self.cells()]
        path = reports.save_csv(rows, folder / f"{self.name}.csv")
        return Findings(tuple(self.lines()), tuple(self.claims()), (path,))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        return self.lines()
