"""What an experiment of the paper is: what it costs, how it is run, and what its records say."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

from mupscale.engines import Engine
from mupscale.errors import OptionError

Scale = Literal["cpu", "paper"]
Verdict = Literal["agrees", "disagrees", "cannot be decided at this scale"]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or a question of ours, beside what was seen: one line of
    results/README.md.
    """

    experiment: str
    says: str
    "What the paper says; for a question of ours, the question."
    seen: str
    "With its interval."
    runs: int
    verdict: Verdict | Literal["ours"]
    '"ours" where the paper says nothing.'


@dataclass(frozen=True)
class Cost:
    """What is ahead. Hours are of this machine, with so many runs side by side."""

    runs: int
    tokens: float
    hours: float

    def __str__(self) -> str:
        hours = f"{self.hours * 60:.0f} minutes" if self.hours < 1.5 else f"{self.hours:,.1f} hours"
        return f"{self.runs} runs, {self.tokens:.3g} tokens, about {hours} on this machine"


@dataclass(frozen=True)
class Findings:
    """What the records say: lines to print, claims for the table, and the files that were
    written.
    """

    lines: tuple[str, ...]
    claims: tuple[Claim, ...]
    paths: tuple[Path, ...]
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    "More for `--json`."


@dataclass(frozen=True)
class Running:
    """Where runs are carried out; `report` hears how many are done, of how many, `remark` what a
    reader should know.
    """

    engine: Engine | None = None
    report: Callable[[int, int], None] = lambda done, total: None
    remark: Callable[[str], None] = lambda text: None


QUIETLY = Running()


class Experiment(ABC):
    """A figure, table or claim of the paper, by name. It keeps all that it needs in one folder."""

    name: ClassVar[str]

    @abstractmethod
    def cost(self, scale: Scale, workers: int) -> Cost | None:
        """What it takes; None for a computation of seconds."""

    @abstractmethod
    def run(self, scale: Scale, folder: Path, how: Running = QUIETLY) -> None:
        """Carry out what is missing in the folder."""

    @abstractmethod
    def findings(self, scale: Scale, folder: Path) -> Findings:
        """What the folder's records say; figures and tables are written into it."""

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        """The claims alone; nothing is written into the folder."""
        with TemporaryDirectory() as beside:
            if not folder.is_dir():
                return self.findings(scale, Path(beside)).claims
            return self.findings(
                scale, Path(shutil.copytree(folder, Path(beside) / folder.name))
            ).claims

    @abstractmethod
    def dry_run(self, scale: Scale) -> Iterator[str]:
        """Check everything that can be checked without running it, and say it line by line."""

    def folder(self, scale: Scale) -> Path:
        """Where it is kept unless said otherwise."""
        return Path("runs/paper") / f"{self.name}-{scale}"


def refuse_empty(folder: Path, records: str) -> None:
    """Findings need something found."""
    if not (folder / records).exists():
        raise OptionError(f"{folder} holds no {records}: nothing was run there yet.")
