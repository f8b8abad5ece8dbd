"""The result of a check: the verdict, the slopes behind it, and an explanation."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mupscale.analysis import Verdict
from mupscale.checks.judging import Coherence, Criteria, Finding
from mupscale.checks.statistics import Quantity, Run
from mupscale.errors import UnknownNameError
from mupscale.text import text_table, wrapped

EXIT_STATUS: Mapping[Verdict, int] = {"pass": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True)
class CheckResult:
    """Slopes of every statistic over the varied quantity, with intervals; `passed` if all judged
    ones are flat.
    """

    quantity: Quantity
    x: tuple[int, ...]
    about: Mapping[str, Any]
    criteria: Criteria
    findings: tuple[Finding, ...]
    coherences: tuple[Coherence, ...]
    warnings: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    """Roles or maps that should be judged but could not be measured. Any of these prevents a
    pass.
    """
    runs: tuple[Run, ...] = field(default=(), repr=False)

    @property
    def judged(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.judged]

    @property
    def verdict(self) -> Verdict:
        verdicts = {finding.verdict for finding in self.judged}
        if "fail" in verdicts:
            return "fail"
        return "pass" if verdicts == {"pass"} and not self.unjudged else "inconclusive"

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    @property
    def exit_status(self) -> int:
        """0 pass, 1 fail, 3 inconclusive."""
        return EXIT_STATUS[self.verdict]

    def finding(self, statistic: str, role: str) -> Finding:
        """The finding for a statistic and a role, such as "update" and "key"."""
        known = {f"{finding.statistic} of {finding.role}": finding for finding in self.findings}
        if f"{statistic} of {role}" not in known:
            raise UnknownNameError("finding", f"{statistic} of {role}", known)
        return known[f"{statistic} of {role}"]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the runs, as plain values."""
        return {
            "verdict": self.verdict,
            "quantity": self.quantity,
            "x": list(self.x),
            "about": dict(self.about),
            "criteria": dataclasses.asdict(self.criteria),
            "findings": [_plain(finding) for finding in self.findings],
            "coherence": [dataclasses.asdict(c) | {"regime": c.regime} for c in self.coherences],
            "warnings": list(self.warnings),
            "unjudged": list(self.unjudged),
        }

    def to_text(self, *, everything: bool = False) -> str:
        """The table of the judged statistics, or of all of them, and the verdict in words."""
        table = _table(self.findings if everything else self.judged)
        return "\n".join([self._head(), "", table, "", *self._coherence(), *self._foot()])

    def __str__(self) -> str:
        return self.to_text()

    def _head(self) -> str:
        about = self.about
        (name,) = about["vary"]
        return wrapped(
            f"coordinate check over {self.quantity} = {', '.join(map(str, self.x))} ({name}) · "
            f"{about['rule']['name']} · {about['setup']['optimizer']} · "
            f"{len(about['seeds'])} seeds × {about['steps']} steps · lr {about['setup']['lr']:.3g}"
        )

    def _coherence(self) -> Iterator[str]:
        first, last = self.x[0], self.x[-1]
        at_ends = {(c.role, c.x): c for c in self.coherences if c.x in (first, last)}
        if not at_ends:
            return
        yield wrapped(
            "coherence κ = ‖ΔW‖/‖ΔW‖_F (in brackets the value for noise; a coherent update has 1)"
        )
        rows: list[list[str]] = []
        for role in dict.fromkeys(role for role, _ in at_ends):
            low, high = at_ends[role, first], at_ends[role, last]
            regime = low.regime if low.regime == high.regime else f"{low.regime} → {high.regime}"
            rows.append([role, *(f"{c.kappa:.2f} ({c.noise:.2f})" for c in (low, high)), regime])
        yield text_table(
            ["role", f"{self.quantity} = {first}", f"{self.quantity} = {last}", "updates"], rows
        )
        yield ""

    def _foot(self) -> Iterator[str]:
        for warning in self.warnings:
            yield wrapped(f"warning: {warning}", hanging="  ")
        for role in self.unjudged:
            yield wrapped(
                f"warning: {role} has no numbers in some run, so it is not judged and the check "
                "cannot pass.",
                hanging="  ",
            )
        by_verdict = {
            verdict: [finding for finding in self.judged if finding.verdict == verdict]
            for verdict in EXIT_STATUS
        }
        counts = ", ".join(f"{len(found)} {name}" for name, found in by_verdict.items() if found)
        yield wrapped(
            f"{self.verdict}: {counts} of {len(self.judged)} judged (tolerance "
            f"±{self.criteria.tolerance:g}; all intervals hold together with "
            f"{self.criteria.confidence:.0%} confidence)"
        )
        for finding in by_verdict["fail"]:
            growth = "grows" if finding.flatness.slope.value > 0 else "falls"
            yield wrapped(
                f"{finding.label} of {finding.role} {growth} with "
                f"{self.quantity}{_as_predicted(finding)}.",
                indent="  ",
                hanging="    ",
            )
        if by_verdict["inconclusive"]:
            yield wrapped(_advice(by_verdict["inconclusive"]), indent="  ", hanging="    ")


def _as_predicted(finding: Finding) -> str:
    """Whether theory says that the plan in use must fail like this."""
    if finding.predicted is None:
        return ""
    if abs(finding.predicted) <= finding.flatness.tolerance:
        return ", which theory does not predict (it ignores ε and assumes coherent updates)"
    near = finding.flatness.low <= finding.predicted <= finding.flatness.high
    words = ", as theory predicts" if near else "; theory predicts"
    return f"{words} ({_number(finding.predicted)}) for this plan"


def _advice(found: Sequence[Finding]) -> str:
    """How many more seeds would settle it."""
    roles: dict[str, list[str]] = {}
    for finding in found:
        roles.setdefault(finding.label, []).append(finding.role)
    names = "; ".join(f"{label} of {', '.join(which)}" for label, which in roles.items())
    needed = [finding.flatness.more_seeds for finding in found]
    if None in needed:
        return (
            f"inconclusive: {names}. The slope is at the tolerance: more than 100 seeds would be "
            "needed."
        )
    more = max(n for n in needed if n is not None)
    return (
        f"inconclusive: {names}. About {more} more seeds would settle it. Run again in the same "
        f"folder with seeds={found[0].flatness.slope.seeds + more}: finished runs are kept."
    )


def _table(found: Sequence[Finding]) -> str:
    """Roles below the label of their statistic, which would be too wide as a column of its own."""
    rows: list[list[str]] = []
    for label, group in itertools.groupby(found, lambda finding: finding.label):
        rows.append([label, "", "", "", ""])
        rows += [
            [
                f"  {finding.role}",
                _number(finding.flatness.slope.value),
                f"[{_number(finding.flatness.low)}, {_number(finding.flatness.high)}]",
                "" if finding.predicted is None else _number(finding.predicted),
                finding.verdict or "shown",
            ]
            for finding in group
        ]
    head = ["statistic, role", "slope", "interval", "theory", "verdict"]
    return text_table(head, rows, right=["slope", "interval", "theory"])


def _number(value: float) -> str:
    """With a sign that lines up: +0.012 or −0.323.

    >>> _number(-0.3226), _number(0.0)
    ('−0.323', '+0.000')
    """
    return f"{value:+.3f}".replace("-", "−")


def _plain(finding: Finding) -> dict[str, Any]:
    slope, flatness = finding.flatness.slope, finding.flatness
    return {
        "statistic": finding.statistic,
        "label": finding.label,
        "role": finding.role,
        "judged": finding.judged,
        "slope": slope.value,
        "low": flatness.low,
        "high": flatness.high,
        "predicted": finding.predicted,
        "standard_error": slope.standard_error,
        "degrees_of_freedom": slope.degrees_of_freedom,
        "verdict": finding.verdict,
        "flat": flatness.verdict,
        "more_seeds": flatness.more_seeds,
        "means": list(finding.means),
    }
