"""The contents of a page as plain values, so that a page needs no study on disk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mupscale.analysis.families import StudyAnalysis
from mupscale.analysis.measurements import Measurement

if TYPE_CHECKING:
    from mupscale.studies.sensitivity import FactorGain, Sensitivity


@dataclass(frozen=True, kw_only=True)
class StudyProgress:
    """Progress of the study. `growing`: the search may still add to `expected`."""

    ended: int
    expected: int
    running: int = 0
    done: bool = True
    growing: bool = False

    @property
    def text(self) -> str:
        """A sentence without its full stop.

        >>> StudyProgress(ended=12, expected=48, running=2, done=False).text
        '12 of 48 trials have ended, 2 are running'
        >>> StudyProgress(ended=48, expected=48).text
        'all 48 trials have ended'
        """
        if self.done:
            return f"all {self.ended:,} trials have ended"
        expected = f"{self.expected:,}{' or more' if self.growing else ''}"
        running = f", {self.running} are running" if self.running else ""
        return f"{self.ended:,} of {expected} trials have ended{running}"


@dataclass(frozen=True, kw_only=True)
class RecipeView:
    """A recipe for a target: a table, notes, warnings, and the whole text."""

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    run: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckSummary:
    """A coordinate check: its judged slopes, as in `findings.jsonl`."""

    name: str
    rule: str
    quantity: str
    verdict: str
    findings: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PageData:
    """All that a page shows. `trials` are records as dictionaries, failed trials included."""

    name: str
    config: str
    "As TOML."
    analysis: StudyAnalysis
    runs: Sequence[Measurement]
    trials: Sequence[Mapping[str, Any]]
    progress: StudyProgress
    made_at: str
    version: str
    recipe: RecipeView | None = None
    checks: Sequence[CheckSummary] = ()
    copies: frozenset[str] = frozenset()
    "Cells whose runs are those of another one: at the base, all rules are the same training."
    sensitivity: Sequence["Sensitivity"] = ()
    gains: Sequence["FactorGain"] = ()
    "Of a paired search."
    refresh_seconds: int | None = None
    "Seconds between reloads of the page; None for a final page."
