"""The paper's three coordinate checks: activations and weights under vanilla μP, weights under
GQA-μP.

The paper prints the shape, batch, seeds, ε and std. Ours: the vocabulary (bytes), the data
(Python's own library), the rate, the number of steps, one batch for all steps of a run. GQA-μP is
run twice: with the factor as printed, (1 + √r)/2, and as derived for heads × head_dim ≠ width,
which is what the paper's own shape has.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from mupscale import reports
from mupscale.checks import CheckResult, Setup, coordinate_check
from mupscale.checks.statistics import STATISTICS as KNOWN
from mupscale.engines import Engine
from mupscale.errors import UnknownNameError
from mupscale.paper.experiment import (
    QUIETLY,
    Claim,
    Cost,
    Experiment,
    Findings,
    Running,
    Scale,
    Verdict,
)
from mupscale.paper.few_steps import described, estimated, on_meta, recorded_check, shape_of
from mupscale.planning import plan
from mupscale.targets import Family
from mupscale.theory import Rule, rule_named

KV_HEADS = (12, 6, 4, 3, 2, 1)
STATISTICS = ("dh", "step", "update")
"""The paper's ‖Δh‖ and ‖ΔW‖, and ‖ΔW‖/‖W0‖, which is what the condition is about."""

RULES: Mapping[str, Rule] = {
    "mup": rule_named("mup"),
    "gqa-mup": rule_named("gqa-mup"),
    "gqa-mup-as-printed": rule_named("gqa-mup").with_(kv_factor="paper"),
}


@dataclass(frozen=True)
class CoordinateSize:
    """A model with 12 heads, and how it is trained."""

    family: Family
    seeds: tuple[int, ...]
    steps: int
    sequence: int

    @property
    def setup(self) -> Setup:
        return Setup(lr=2**-13, eps=1e-12, std=0.02, batch=1, sequence=self.sequence)

    @property
    def runs(self) -> int:
        return len(RULES) * len(KV_HEADS) * len(self.seeds)


SIZES: Mapping[str, CoordinateSize] = {
    "cpu": CoordinateSize(Family("gpt:check,depth=4"), (1, 2, 3, 4, 5), steps=4, sequence=256),
    "paper": CoordinateSize(
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
    """One check a rule; runs are kept in the folder, and what is there is not run again."""
    if scale not in SIZES:
        raise UnknownNameError("scale", scale, SIZES)
    size, found = SIZES[scale], dict[str, CheckResult]()
    each = size.runs // len(RULES)
    for number, (name, rule) in enumerate(RULES.items()):
        found[name] = coordinate_check(
            size.family,
            {"n_kv_heads": KV_HEADS},
            rule=rule,
            seeds=size.seeds,
            steps=size.steps,
            setup=size.setup,
            engine=engine,
            folder=folder / name,
            report=lambda done, _, before=number * each: report(before + done, size.runs),
        )
    return found


@dataclass(frozen=True)
class CoordinateRow:
    """One line of the table: a check of one rule, by activations or by weights, on one role."""

    rule: str
    statistic: str
    role: str
    slope: float
    low: float
    high: float
    theory: float | None
    verdict: str


def table(results: Mapping[str, CheckResult]) -> list[CoordinateRow]:
    """The activation check (flat ‖Δh‖, which is not what is judged) beside the spectral one, for
    attention and MLP.
    """
    roles = ("query", "key", "value", "attention_output", "mlp_in", "mlp_out")
    return [
        CoordinateRow(
            rule=name,
            statistic=one.label,
            role=one.role,
            slope=one.flatness.slope.value,
            low=one.flatness.low,
            high=one.flatness.high,
            theory=one.predicted,
            verdict=one.flatness.verdict,
        )
        for statistic in ("dh", "update")
        for name, result in results.items()
        for one in result.findings
        if one.statistic == statistic and one.role in roles
    ]


def to_text(rows: Sequence[CoordinateRow], results: Mapping[str, CheckResult]) -> Iterator[str]:
    """The table, and one line for each rule."""
    yield f"{'rule':<20}{'statistic':<12}{'role':<18}{'slope':>8}  {'interval':<18}{'theory':>8}  flat?"
    for row in rows:
        theory = "" if row.theory is None else f"{row.theory:+.3f}"
        interval = f"[{row.low:+.3f}, {row.high:+.3f}]"
        numbers = f"{row.slope:>+8.3f}  {interval:<18}{theory:>8}"
        yield f"{row.rule:<20}{row.statistic:<12}{row.role:<18}{numbers}  {row.verdict}"
    yield ""
    for name, result in results.items():
        activations = [
            row.verdict for row in rows if row.rule == name and row.statistic == KNOWN["dh"].label
        ]
        flat = f"{activations.count('pass')} of {len(activations)} roles flat, {activations.count('fail')} not"
        yield f"{name}: spectral check {result.verdict}; activation check: {flat}"


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
        size = SIZES[scale]
        passes = len(RULES) * len(size.seeds) * (size.steps + 1)
        models = {shape_of(size.family, n_kv_heads=heads): passes for heads in KV_HEADS}
        return estimated(
            models, batch=size.setup.batch, sequence=size.sequence, runs=size.runs, workers=workers
        )

    def run(self, scale: Scale, folder: Path, how: Running = QUIETLY) -> None:
        run(scale, folder, engine=how.engine, report=how.report)

    def findings(self, scale: Scale, folder: Path) -> Findings:
        results = self._recorded(scale, folder)
        rows = table(results)
        data = {
            "checks": {name: result.to_dict() for name, result in results.items()},
            "table": [asdict(row) for row in rows],
        }
        return Findings(
            tuple(to_text(rows, results)), tuple(claims(rows, results)), tuple(save(results, folder)), data
        )  # fmt: skip

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        results = self._recorded(scale, folder)
        return tuple(claims(table(results), results))

    def _recorded(self, scale: Scale, folder: Path) -> dict[str, CheckResult]:
        each = SIZES[scale].runs // len(RULES)
        return {name: recorded_check(folder / name, each) for name in RULES}

    def dry_run(self, scale: Scale) -> Iterator[str]:
        size = SIZES[scale]
        yield f"{len(RULES)} rules ({', '.join(RULES)}), {len(size.seeds)} seeds, {size.steps} steps of one batch, over"
        for heads in KV_HEADS:
            model, base = (
                on_meta(size.family)(n_kv_heads=count) for count in (heads, max(KV_HEADS))
            )
            rates = [_key_rate(model, base, rule) for rule in RULES.values()]
            yield f"  {described(model)}; rate of keys × " + ", ".join(
                f"{rate:.4g}" for rate in rates
            )


def _key_rate(model: nn.Module, base: nn.Module, rule: Rule) -> float:
    made = plan(model, base=base, optimizer="adamw", rule=rule)
    return next(one.lr for one in made.parameters.values() if one.role == "key")


def claims(rows: Sequence[CoordinateRow], results: Mapping[str, CheckResult]) -> Iterator[Claim]:
    """What the three figures are said to show."""
    flat = [row for row in rows if row.rule == "mup" and row.statistic == KNOWN["dh"].label]
    passed = sum(row.verdict == "pass" for row in flat)
    failed = sum(row.verdict == "fail" for row in flat)
    activations: Verdict = "agrees" if passed == len(flat) else "cannot be decided at this scale"
    yield _claim(
        "Vanilla μP passes the check of activations, ‖Δh‖ over r",
        f"{passed} of {len(flat)} roles flat, {failed} not: {_slopes(flat)}",
        results["mup"],
        "disagrees" if failed else activations,
    )
    for name, says, verdict in (
        ("mup", "Vanilla μP fails", "fail"),
        ("gqa-mup", "GQA-μP passes", "pass"),
    ):
        own = [row for row in rows if row.rule == name and row.statistic == KNOWN["update"].label]
        shown = _slopes([row for row in own if row.role in ("key", "value", "query")])
        found = results[name].verdict
        told: Verdict = "agrees" if found == verdict else "disagrees"
        words = f"{found}; slopes of ‖ΔW‖/‖W0‖: {shown}"
        undecided = found == "inconclusive"
        yield _claim(
            f"{says} the spectral check",
            words,
            results[name],
            "cannot be decided at this scale" if undecided else told,
        )


def _claim(says: str, seen: str, result: CheckResult, verdict: Verdict) -> Claim:
    return Claim(CoordinateCheck.name, says, seen, len(result.runs), verdict)


def _slopes(rows: Sequence[CoordinateRow]) -> str:
    return ", ".join(
        f"{row.role} {row.slope:+.2f} [{row.low:+.2f}, {row.high:+.2f}]" for row in rows
    )


EXPERIMENT = CoordinateCheck()
