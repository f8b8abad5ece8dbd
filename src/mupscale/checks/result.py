"""What a check found: the verdict, the slopes behind it, and how to read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mupscale.analysis import Verdict
from mupscale.checks.judging import Coherence, Criteria, Finding
from mupscale.checks.statistics import Quantity, Run
from mupscale.errors import UnknownNameError

EXIT_STATUS: Mapping[Verdict, int] = {"pass": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True)
class CheckResult:
    """Slopes of every statistic over the varied quantity, with intervals; `passed` if all that are
    judged are flat.
    """

    quantity: Quantity
    x: tuple[int, ...]
    about: Mapping[str, Any]
    criteria: Criteria
    findings: tuple[Finding, ...]
    coherences: tuple[Coherence, ...]
    warnings: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    """Roles or maps that should be judged and could not be measured: with any of these, the check
    does not pass.
    """
    runs: tuple[Run, ...] = field(default=(), repr=False)

    @property
    def judged(self) -> list[Finding]:
        return [one for one in self.findings if one.judged]

    @property
    def verdict(self) -> Verdict:
        verdicts = {one.verdict for one in self.judged}
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
        """That of a statistic and a role: "update" and "key", say."""
        for one in self.findings:
            if (one.statistic, one.role) == (statistic, role):
                return one
        known = dict.fromkeys(f"{one.statistic} of {one.role}" for one in self.findings)
        raise UnknownNameError("finding", f"{statistic} of {role}", known)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the runs, as plain values."""
        return {
            "verdict": self.verdict,
            "quantity": self.quantity,
            "x": list(self.x),
            "about": dict(self.about),
            "criteria": dataclasses.asdict(self.criteria),
            "findings": [_plain(one) for one in self.findings],
            "coherence": [
                dataclasses.asdict(one) | {"regime": one.regime} for one in self.coherences
            ],
            "warnings": list(self.warnings),
            "unjudged": list(self.unjudged),
        }

    def to_text(self, *, everything: bool = False) -> str:
        """The table of what is judged, or of all statistics, and the verdict in words."""
        shown = self.findings if everything else self.judged
        return "\n".join([self._head(), "", *_table(shown), "", *self._coherence(), *self._foot()])

    def __str__(self) -> str:
        return self.to_text()

    def _head(self) -> str:
        about = self.about
        (name,) = about["vary"]
        values = ", ".join(map(str, self.x))
        return (
            f"coordinate check over {self.quantity} = {values} ({name}) · {about['rule']['name']} "
            "· "
            f"{about['setup']['optimizer']} · {len(about['seeds'])} seeds × {about['steps']} steps "
            "· "
            f"lr {about['setup']['lr']:.3g}"
        )

    def _coherence(self) -> Iterator[str]:
        ends = [one for one in self.coherences if one.x in (self.x[0], self.x[-1])]
        if not ends:
            return
        yield (
            f"coherence κ = ‖ΔW‖/‖ΔW‖_F at {self.quantity} = {self.x[0]} → {self.x[-1]}; in "
            "brackets what noise would "
            "give, a coherent update has 1"
        )
        for role in dict.fromkeys(one.role for one in ends):
            low, high = (one for one in ends if one.role == role)
            yield (
                f"  {role:<17} {low.kappa:.2f} ({low.noise:.2f}) → {high.kappa:.2f} "
                f"({high.noise:.2f})  "
                f"{low.regime if low.regime == high.regime else f'{low.regime} → {high.regime}'}"
            )
        yield ""

    def _foot(self) -> Iterator[str]:
        for warning in self.warnings:
            yield f"warning: {warning}"
        for role in self.unjudged:
            yield f"warning: {role} gave no numbers in some run: nothing is said about it, and the check cannot pass."
        counts = {
            verdict: [one for one in self.judged if one.verdict == verdict]
            for verdict in EXIT_STATUS
        }
        words = ", ".join(f"{len(found)} {verdict}" for verdict, found in counts.items() if found)
        yield (
            f"{self.verdict}: {words} of {len(self.judged)} judged "
            f"(tolerance ±{self.criteria.tolerance:g}; all intervals together hold with "
            f"{self.criteria.confidence:.0%})"
        )
        for one in counts["fail"]:
            yield f"  {one.label} of {one.role} {_direction(one)} with {self.quantity}{_as_predicted(one)}."
        if counts["inconclusive"]:
            yield f"  {_advice(counts['inconclusive'])}"


def _direction(one: Finding) -> str:
    return "grows" if one.flatness.slope.value > 0 else "falls"


def _as_predicted(one: Finding) -> str:
    """Whether theory says that the plan in use must fail like this."""
    if one.predicted is None:
        return ""
    if abs(one.predicted) <= one.flatness.tolerance:
        return ", which theory does not predict (it leaves ε out of account, and takes updates to be coherent)"
    near = one.flatness.low <= one.predicted <= one.flatness.high
    return f"{', as theory predicts' if near else '; theory predicts'} {_number(one.predicted)} for this plan"


def _advice(found: Sequence[Finding]) -> str:
    """How many more seeds would settle it."""
    needed = [one.flatness.more_seeds for one in found]
    roles: dict[str, list[str]] = {}
    for one in found:
        roles.setdefault(one.label, []).append(one.role)
    names = "; ".join(f"{label} of {', '.join(which)}" for label, which in roles.items())
    if None in needed:
        return f"inconclusive: {names}. More than 100 seeds would be needed: the slope is at the tolerance."
    more = max(n for n in needed if n is not None)
    enough = found[0].flatness.slope.seeds + more
    return (
        f"inconclusive: {names}. About {more} more seeds would settle it: with seeds={enough} in "
        "the same folder, the "
        "runs so far count."
    )


def _table(found: Sequence[Finding]) -> Iterator[str]:
    rows = [("statistic", "role", "slope", "interval", "theory", "verdict")]
    rows += [
        (
            one.label,
            one.role,
            _number(one.flatness.slope.value),
            f"[{_number(one.flatness.low)}, {_number(one.flatness.high)}]",
            "" if one.predicted is None else _number(one.predicted),
            one.verdict or "shown",
        )
        for one in found
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(
            cell.rjust(width) if k in (2, 3, 4) else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()


def _number(value: float) -> str:
    """With a sign that lines up: +0.012 or −0.323.

    >>> _number(-0.3226), _number(0.0)
    ('−0.323', '+0.000')
    """
    return f"{value:+.3f}".replace("-", "−")


def _plain(one: Finding) -> dict[str, Any]:
    slope = one.flatness.slope
    return {
        "statistic": one.statistic, "label": one.label, "role": one.role, "judged": one.judged,
        "slope": slope.value, "low": one.flatness.low, "high": one.flatness.high, "predicted": one.predicted,
        "standard_error": slope.standard_error, "degrees_of_freedom": slope.degrees_of_freedom,
        "verdict": one.verdict, "flat": one.flatness.verdict, "more_seeds": one.flatness.more_seeds,
        "means": list(one.means),
    }  # fmt: skip
