"""The paper's three coordinate checks: activations and weights under vanilla μP, weights under
GQA-μP.

The paper prints the shape, batch, seeds, ε and std. Ours: the vocabulary (bytes), the data
(Python's standard library), the learning rate, the number of steps, one batch for all steps of a
run. GQA-μP runs twice: with the factor as printed, (1 + √r)/2, and as derived for heads × head_dim
≠ width, which is what the paper's own shape has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mupscale import reports
from mupscale.analysis import Estimate
from mupscale.checks import CheckResult
from mupscale.checks.judging import Finding
from mupscale.checks.statistics import STATISTICS as KNOWN
from mupscale.paper.claims import UNDECIDED, Claim, decided
from mupscale.paper.experiment import Findings, Scale
from mupscale.paper.few_steps import (
    HIDDEN,
    PAPER_HEADS,
    FewSteps,
    FewStepsExperiment,
    SlopeRow,
    Slopes,
    signed,
)
from mupscale.targets import Family
from mupscale.theory import rule_named

STATISTICS = ("dh", "step", "update")
"""The paper's ‖Δh‖ and ‖ΔW‖, and ‖ΔW‖/‖W0‖, which is what the condition is about."""

CHECKS = {
    "mup": rule_named("mup"),
    "gqa-mup": rule_named("gqa-mup"),
    "gqa-mup-as-printed": rule_named("gqa-mup").with_(kv_factor="paper"),
}
_PAPER = replace(PAPER_HEADS, std=0.02)
_SMALL = Family("gpt:check,depth=4")
SIZES: Mapping[Scale, FewSteps] = {
    "cpu": replace(_PAPER, family=_SMALL, seeds=(1, 2, 3, 4, 5), steps=4, sequence=256),
    "paper": _PAPER,
}


def table(results: Mapping[str, CheckResult]) -> Slopes:
    """For hidden matrices, the activation check (is ‖Δh‖ flat?) and the spectral check.

    Only the spectral check is judged.
    """
    return Slopes(
        _row(rule, one)
        for statistic in ("dh", "update")
        for rule, result in results.items()
        for one in result.findings
        if one.statistic == statistic and one.role in HIDDEN
    )


def _row(rule: str, one: Finding) -> SlopeRow:
    of, flat = {"rule": rule, "statistic": one.label}, one.flatness
    slope = Estimate(flat.slope.value, flat.low, flat.high)
    return SlopeRow(of, (rule, one.label), one.role, slope, one.predicted, slope, flat.verdict)


def to_text(rows: Slopes, results: Mapping[str, CheckResult]) -> Iterator[str]:
    """The table, and one line for each rule."""
    yield rows.text("rule", "statistic", last="flat?", style="+.3f")
    yield ""
    for name, result in results.items():
        flat = _flat(_chosen(rows, name, "dh"))
        yield f"{name}: spectral check {result.verdict}; activation check: {flat}"


def _flat(rows: Slopes) -> str:
    verdicts = [row.verdict for row in rows]
    return f"{verdicts.count('pass')} of {len(verdicts)} roles flat, {verdicts.count('fail')} not"


def _chosen(rows: Slopes, rule: str, statistic: str) -> Slopes:
    return rows.where(rule=rule, statistic=KNOWN[statistic].label)


def save(results: Mapping[str, CheckResult], folder: Path) -> list[Path]:
    """The table as CSV; for each rule its findings, its slopes and its panels."""
    rows = [row.columns() for row in table(results)]
    paths = [reports.save_csv(rows, folder / "table.csv")]
    for name, result in results.items():
        paths += reports.save_findings(result, folder / name)
        paths += reports.save_pictures(result, folder / name, STATISTICS)
    return paths


class CoordinateCheck(FewStepsExperiment):
    """One check for each rule, by activations and by weights."""

    name, sizes, checks = "coordinate-check", SIZES, CHECKS

    def findings(self, scale: Scale, folder: Path) -> Findings:
        results = self.checked(self.sizes[scale], folder)
        rows = table(results)
        data = {
            "checks": {name: result.to_dict() for name, result in results.items()},
            "table": [row.columns() for row in rows],
        }
        lines, paths = tuple(to_text(rows, results)), tuple(save(results, folder))
        return Findings(lines, tuple(claims(rows, results)), paths, data)

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        results = self.checked(self.sizes[scale], folder)
        return tuple(claims(table(results), results))

    def dry_run(self, scale: Scale) -> Iterator[str]:
        size = self.sizes[scale]
        yield (
            f"{len(CHECKS)} rules ({', '.join(CHECKS)}), {len(size.seeds)} seeds, {size.steps} "
            "steps of one batch, over"
        )
        yield from size.described(CHECKS.values())


def claims(rows: Slopes, results: Mapping[str, CheckResult]) -> Iterator[Claim]:
    """What the paper says that its three figures show."""
    flat = _chosen(rows, "mup", "dh")
    says = "Vanilla μP passes the activation check, ‖Δh‖ over r"
    seen, runs = f"{_flat(flat)}: {_slopes(flat)}", len(results["mup"].runs)
    yield Claim(CoordinateCheck.name, "first steps", says, seen, runs, flat.as_theory())
    paper = ("mup", "Vanilla μP fails", "fail"), ("gqa-mup", "GQA-μP passes", "pass")
    for rule, says, expected in paper:
        shown = [
            row for row in _chosen(rows, rule, "update") if row.role in ("key", "value", "query")
        ]
        found = results[rule].verdict
        verdict = UNDECIDED if found == "inconclusive" else decided(found == expected, True)
        seen = f"{found}; slopes of ‖ΔW‖/‖W0‖: {_slopes(shown)}"
        says, runs = f"{says} the spectral check", len(results[rule].runs)
        yield Claim(CoordinateCheck.name, "first steps", says, seen, runs, verdict)


def _slopes(rows: Sequence[SlopeRow]) -> str:
    return ", ".join(f"{row.role} {signed(row.slope)}" for row in rows)


EXPERIMENT = CoordinateCheck()
