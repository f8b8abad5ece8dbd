"""Every table of a study as plain rows, for spreadsheets and data frames.

Optima and rates are log2 of base values, losses are in nats. Unknown numbers and infinite ends are
None.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import CellAnalysis, RuleTransfer, StudyAnalysis
from mupscale.analysis.measurements import Measurement
from mupscale.reports.parquet import save_parquet
from mupscale.reports.saving import save_csv

PlainRow = Mapping[str, object]


def study_tables(analysis: StudyAnalysis, runs: Sequence[Measurement]) -> dict[str, list[PlainRow]]:
    """All tables by name; some may be empty."""
    return {
        "trials": trial_rows(runs),
        "optima": optimum_rows(analysis),
        "transfer": transfer_rows(analysis),
        "regrets": regret_rows(analysis),
        "comparisons": comparison_rows(analysis),
        "variances": variance_rows(analysis),
    }


def trial_rows(runs: Sequence[Measurement]) -> list[PlainRow]:
    """One row per finished run, with a column per searched parameter."""
    names = dict.fromkeys(name for run in runs for name in run.params)
    return [
        {
            **_cell(run),
            "seed": run.seed,
            **{name: _number(run.params.get(name)) for name in names},
            "steps": run.steps,
            "loss": _number(run.loss),
            "diverged": _number(run.loss) is None,
        }
        for run in runs
    ]


def optimum_rows(analysis: StudyAnalysis) -> list[PlainRow]:
    """One row per cell and searched parameter: log2 of the optimum, its loss and its evidence."""
    return [
        {
            **_cell(cell),
            "parameter": name,
            **_estimate("log2_optimum", found),
            "optimum": _power(found.value),
            "loss": _number(cell.loss),
            "lowest_loss": None if cell.lowest is None else _number(cell.lowest.loss),
            "runs": cell.runs,
            "diverged": cell.diverged,
            "seeds": len(cell.seeds),
            "flags": " ".join(cell.flags),
            "confidence": analysis.confidence,
        }
        for cell in analysis.cells
        for name, found in cell.found.items()
    ]


def _cell(cell: CellAnalysis | Measurement) -> PlainRow:
    return {
        "rule": cell.rule,
        "member": cell.member.label,
        "position": _number(cell.member.position),
    }


def transfer_rows(analysis: StudyAnalysis) -> list[PlainRow]:
    """One row per rule: spread and drift of its best rate, in octaves."""
    return [
        {
            "rule": one.rule,
            "axis": analysis.axis or "",
            "members": len(one.members),
            **_estimate("log2_lr_mean", one.mean),
            **_estimate("sd_octaves", one.sd),
            "variance_octaves2": _number(one.variance),
            "noise_variance_octaves2": _number(one.noise_variance),
            **_estimate("drift_octaves_per_doubling", one.drift),
            **_evidence(analysis, one),
            "confidence": analysis.confidence,
        }
        for one in analysis.transfers
    ]


def _evidence(analysis: StudyAnalysis, transfer: RuleTransfer) -> PlainRow:
    own = [
        cell
        for cell in analysis.cells
        if cell.rule == transfer.rule and cell.member in transfer.members
    ]
    return {
        "runs": sum(cell.runs for cell in own),
        "seeds": len({seed for cell in own for seed in cell.seeds}),
    }


def regret_rows(analysis: StudyAnalysis) -> list[PlainRow]:
    """One row per rule and member: the cost of the proxy's optimum, and its distance."""
    return [
        {
            "rule": transfer.rule,
            "proxy": one.proxy.label,
            "member": one.member.label,
            "position": _number(one.member.position),
            **_estimate("regret_nats", one.loss),
            **_estimate("distance_octaves", one.octaves),
            "extrapolated": one.extrapolated,
            "confidence": analysis.confidence,
        }
        for transfer in analysis.transfers
        for one in transfer.regrets
    ]


def comparison_rows(analysis: StudyAnalysis) -> list[PlainRow]:
    """One row per pair of rules and quantity. `better` is empty if the interval contains zero."""
    return [
        {
            "quantity": one.quantity,
            "unit": one.unit,
            "first": one.first,
            "second": one.second,
            **_estimate("difference", one.difference),
            "better": one.better or "",
            "confidence": analysis.confidence,
        }
        for one in analysis.comparisons
    ]


def variance_rows(analysis: StudyAnalysis) -> list[PlainRow]:
    """One row per rule, quantity and kind of optimum: variance over members, ddof 0."""
    return [
        {
            "optimum": kind,
            "rule": one.rule,
            "members": one.members,
            "quantity": quantity,
            "variance": _number(variance),
            "unit": "nats²" if quantity == "loss" else "octaves²",
        }
        for kind, rows in analysis.variances.items()
        for one in rows
        for quantity, variance in one.variances.items()
    ]


def save_table(rows: Sequence[PlainRow], stem: Path) -> list[Path]:
    """Save the rows as CSV and as Parquet next to `stem`."""
    return [
        save_csv(rows, stem.with_suffix(".csv")),
        save_parquet(rows, stem.with_suffix(".parquet")),
    ]


def _estimate(name: str, one: Estimate | None) -> PlainRow:
    """Three columns.

    >>> _estimate("loss", Estimate(2.0, 1.5, math.inf))
    {'loss': 2.0, 'loss_low': 1.5, 'loss_high': None}
    """
    value, low, high = (None, None, None) if one is None else (one.value, one.low, one.high)
    return {name: _number(value), f"{name}_low": _number(low), f"{name}_high": _number(high)}


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _power(exponent: float) -> float | None:
    return 2.0**exponent if -1000 < exponent < 1000 else None
