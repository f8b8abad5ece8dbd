"""The paper's three coordinate checks: activations and weights under vanilla μP, weights under
GQA-μP.

The paper prints the shape, batch, seeds, ε and std. Ours: the vocabulary (bytes), the data
(Python's standard library), the learning rate, the number of steps, one batch for all steps of a
run. GQA-μP runs twice: with the factor as printed, (1 + √r)/2, and as derived for heads × head_dim
≠ width, which is what the paper's own shape has.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mupscale import reports
from mupscale.checks import CheckResult
from mupscale.checks.statistics import STATISTICS as KNOWN
from mupscale.engines import Engine
from mupscale.errors import UnknownNameError
from mupscale.paper.claims import UNDECIDED, Claim, Verdict, decided
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Experiment, Findings, Scale
from mupscale.paper.few_steps import HIDDEN, OverHeads, recorded_check, signed
from mupscale.targets import Family
from mupscale.text import text_table
from mupscale.theory import Rule, rule_named

STATISTICS = ("dh", "step", "update")
"""The paper's ‖Δh‖ and ‖ΔW‖, and ‖ΔW‖/‖W0‖, which is what the condition is about."""

RULES: Mapping[str, Rule] = {
    "mup": rule_named("mup"),
    "gqa-mup": rule_named("gqa-mup"),
    "gqa-mup-as-printed": rule_named("gqa-mup").with_(kv_factor="paper"),
}
SIZES: Mapping[str, OverHeads] = {
    "cpu": OverHeads(Family("gpt:check,depth=4"), (1, 2, 3, 4, 5), steps=4, sequence=256),
    "paper": OverHeads(
        Family("gpt:coordinate_12,vocabulary=256"), tuple(range(1, 11)), steps=5, sequence=1024
    ),
}


def run(
    scale: str,
    folder: Path,
    *,
    engine: Engine | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, CheckResult]:
    """One check per rule. Runs are kept in the folder and not repeated."""
    if scale not in SIZES:
        raise UnknownNameError("scale", scale, SIZES)
    return SIZES[scale].run(RULES, folder, Execution(engine, report))


@dataclass(frozen=True)
class CoordinateRow:
    """A row of the table: a check of one rule, by activations or by weights, on one role."""

    rule: str
    statistic: str
    role: str
    slope: float
    low: float
    high: float
    theory: float | None
    verdict: str


def table(results: Mapping[str, CheckResult]) -> list[CoordinateRow]:
    """For hidden matrices, the activation check (is ‖Δh‖ flat?) and the spectral check.

    Only the spectral check is judged.
    """
    return [
        CoordinateRow(
            name, one.label, one.role, one.flatness.slope.value, one.flatness.low,
            one.flatness.high, one.predicted, one.flatness.verdict,
        )
        for statistic in ("dh", "update")
        for name, result in results.items()
        for one in result.findings
        if one.statistic == statistic and one.role in HIDDEN
    ]  # fmt: skip


def to_text(rows: Sequence[CoordinateRow], results: Mapping[str, CheckResult]) -> Iterator[str]:
    """The table, and one line for each rule."""
    head = ("rule", "statistic", "role", "slope", "interval", "theory", "flat?")
    cells = [
        (
            row.rule, row.statistic, row.role, f"{row.slope:+.3f}",
            f"[{row.low:+.3f}, {row.high:+.3f}]",
            "" if row.theory is None else f"{row.theory:+.3f}", row.verdict,
        )
        for row in rows
    ]  # fmt: skip
    yield text_table(head, cells, right=("slope", "theory"))
    yield ""
    for name, result in results.items():
        verdicts = [row.verdict for row in _chosen(rows, name, "dh")]
        passed, failed = verdicts.count("pass"), verdicts.count("fail")
        flat = f"{passed} of {len(verdicts)} roles flat, {failed} not"
        yield f"{name}: spectral check {result.verdict}; activation check: {flat}"


def _chosen(rows: Sequence[CoordinateRow], rule: str, statistic: str) -> list[CoordinateRow]:
    return [row for row in rows if (row.rule, row.statistic) == (rule, KNOWN[statistic].label)]


def save(results: Mapping[str, CheckResult], folder: Path) -> list[Path]:
    """The table as CSV; for each rule its findings, its slopes and its panels."""
    rows = [vars(row) for row in table(results)]
    paths = [reports.save_csv(rows, folder / "table.csv")]
    for name, result in results.items():
        paths += reports.save_findings(result, folder / name)
        paths += reports.save_pictures(result, folder / name, STATISTICS)
    return paths


class CoordinateCheck(Experiment):
    """One check for each rule, by activations and by weights."""

    name = "coordinate-check"

    def cost(self, scale: Scale, workers: int) -> Cost:
        return SIZES[scale].cost(len(RULES), workers)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        SIZES[scale].run(RULES, folder, how)

    def findings(self, scale: Scale, folder: Path) -> Findings:
        results = self._recorded(scale, folder)
        rows = table(results)
        data = {
            "checks": {name: result.to_dict() for name, result in results.items()},
            "table": [asdict(row) for row in rows],
        }
        lines, paths = tuple(to_text(rows, results)), tuple(save(results, folder))
        return Findings(lines, tuple(claims(rows, results)), paths, data)

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        results = self._recorded(scale, folder)
        return tuple(claims(table(results), results))

    def _recorded(self, scale: Scale, folder: Path) -> dict[str, CheckResult]:
        return {name: recorded_check(folder / name, SIZES[scale].starts) for name in RULES}

    def dry_run(self, scale: Scale) -> Iterator[str]:
        size = SIZES[scale]
        yield (
            f"{len(RULES)} rules ({', '.join(RULES)}), {len(size.seeds)} seeds, {size.steps} steps "
            "of one batch, over"
        )
        yield from size.described(RULES)


def claims(rows: Sequence[CoordinateRow], results: Mapping[str, CheckResult]) -> Iterator[Claim]:
    """What the paper says that its three figures show."""

    def claim(says: str, seen: str, rule: str, verdict: Verdict) -> Claim:
        runs = len(results[rule].runs)
        return Claim(CoordinateCheck.name, "first steps", says, seen, runs, verdict)

    flat = _chosen(rows, "mup", "dh")
    passed, failed = (sum(row.verdict == end for row in flat) for end in ("pass", "fail"))
    yield claim(
        "Vanilla μP passes the activation check, ‖Δh‖ over r",
        f"{passed} of {len(flat)} roles flat, {failed} not: {_slopes(flat)}",
        "mup",
        decided(passed == len(flat), failed > 0),
    )
    for rule, says, expected in (
        ("mup", "Vanilla μP fails", "fail"),
        ("gqa-mup", "GQA-μP passes", "pass"),
    ):
        shown = [
            row for row in _chosen(rows, rule, "update") if row.role in ("key", "value", "query")
        ]
        found = results[rule].verdict
        verdict = UNDECIDED if found == "inconclusive" else decided(found == expected, True)
        seen = f"{found}; slopes of ‖ΔW‖/‖W0‖: {_slopes(shown)}"
        yield claim(f"{says} the spectral check", seen, rule, verdict)


def _slopes(rows: Sequence[CoordinateRow]) -> str:
    return ", ".join(f"{row.role} {signed(row.slope, row.low, row.high)}" for row in rows)


EXPERIMENT = CoordinateCheck()
