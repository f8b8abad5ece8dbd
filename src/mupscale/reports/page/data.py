"""What a page is made of: plain values, so that a page can be made anywhere, of any study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mupscale.analysis.families import StudyAnalysis
from mupscale.analysis.measurements import Measurement


@dataclass(frozen=True, kw_only=True)
class StudyProgress:
    """How far the study is. `expected` may still grow where a search decides as it goes:
    `growing`.
    """

    ended: int
    expected: int
    running: int = 0
    done: bool = True
    growing: bool = False

    @property
    def text(self) -> str:
        """In words.

        >>> StudyProgress(ended=12, expected=48, running=2, done=False).text
        '12 of 48 trials have ended, 2 run now'
        >>> StudyProgress(ended=48, expected=48).text
        'all 48 trials have ended'
        """
        if self.done:
            return f"all {self.ended:,} trials have ended"
        words = f"{self.ended:,} of {self.expected:,}{' or more' if self.growing else ''} trials have ended"
        return words + (f", {self.running} run now" if self.running else "")


@dataclass(frozen=True, kw_only=True)
class RecipeView:
    """A recipe for a target: rows of a table (each a cell a heading), what to paste, and what to
    beware of.
    """

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckSummary:
    """What a coordinate check found: its judged slopes, as `findings.jsonl` holds them."""

    name: str
    rule: str
    quantity: str
    verdict: str
    findings: Sequence[Mapping[str, Any]]
    seeds: int | None = None


@dataclass(frozen=True, kw_only=True)
class PageData:
    """All that a page shows. `trials` are dictionaries as `TrialRecord.to_dict` gives them, those that
    failed included.
    """

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
    refresh_seconds: int | None = None
    "The page loads itself again after so long; None for a page that is final."
