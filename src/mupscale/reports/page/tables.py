"""The tables of results as rows of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mupscale.analysis.families import CellAnalysis, StudyAnalysis
from mupscale.analysis.flags import flags_text
from mupscale.reports.words import AXES, SHORT, decimal, power, signed, with_interval

if TYPE_CHECKING:
    from mupscale.studies.sensitivity import FactorGain, Sensitivity


@dataclass(frozen=True)
class PageTable:
    """Headings and rows; columns in `numbers` are right-aligned."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()


def optima_table(analysis: StudyAnalysis) -> PageTable:
    """One row per cell: its optimum and the evidence for it."""
    names = analysis.parameters or ("lr",)
    searched = [
        heading for name in names for heading in (f"best {SHORT.get(name, name)}", "log2, interval")
    ]
    evidence = ["loss there", "lowest loss", "runs", "diverged", "seeds", "note"]
    headings = ["rule", "model", *searched, *evidence]
    rows = [_optimum_row(cell, names) for cell in analysis.cells]
    numbers = frozenset(range(2, len(headings) - 1))
    caption = (
        f"Optimum of each rule on each model, with {analysis.confidence:.0%} intervals. Losses are "
        "in nats."
    )
    return PageTable(caption, headings, rows, numbers)


def _optimum_row(cell: CellAnalysis, names: Sequence[str]) -> list[str]:
    searched: list[str] = []
    for name in names:
        optimum = cell.found.get(name)
        searched += [decimal(2**optimum.value) if optimum else "–", with_interval(optimum)]
    lowest = cell.lowest.loss if cell.lowest is not None else None
    return [
        cell.rule,
        cell.member.label or "–",
        *searched,
        "–" if cell.loss is None else f"{cell.loss:.4f}",
        "–" if lowest is None else f"{lowest:.4f}",
        f"{cell.runs:,}",
        f"{cell.diverged:,}",
        ", ".join(map(str, cell.seeds)) if len(cell.seeds) <= 5 else str(len(cell.seeds)),
        flags_text(cell.flags),
    ]


def sensitivity_table(rows: Sequence["Sensitivity"]) -> PageTable:
    """One row per parameter of a paired search."""
    from mupscale.studies.sensitivity import SENSITIVITY_HEAD, sensitivity_cells

    caption = "Each searched parameter of each cell, around the best point. Losses are in nats."
    return PageTable(caption, SENSITIVITY_HEAD, [sensitivity_cells(row) for row in rows])


def gain_sentence(gain: "FactorGain") -> str:
    from mupscale.studies import sensitivity

    return sensitivity.gain_sentence(gain)


def transfer_table(analysis: StudyAnalysis) -> PageTable:
    axis = AXES.get(analysis.axis or "", analysis.axis or "the axis")
    headings = [
        "rule",
        "models",
        "mean log2 lr",
        "mean lr",
        "sd (octaves)",
        "variance (octaves²)",
        "variance from noise alone",
        f"drift (octaves per doubling of {axis})",
    ]
    rows = [
        [
            one.rule,
            ", ".join(member.label for member in one.members) or "–",
            with_interval(one.mean),
            "–" if one.mean is None else f"{decimal(2**one.mean.value)} = {power(one.mean.value)}",
            with_interval(one.sd),
            "–" if one.variance is None else signed(one.variance, 4),
            "–" if one.noise_variance is None else signed(one.noise_variance, 4),
            with_interval(one.drift, 3),
        ]
        for one in analysis.transfers
    ]
    caption = (
        "How much the best rate varies between models. Sd and variance are over models, ddof 0; "
        "the interval of the sd is for the optima without noise."
    )
    return PageTable(caption, headings, rows, frozenset(range(2, 8)))


def regret_table(analysis: StudyAnalysis) -> PageTable:
    headings = ["rule", "optimum of", "used on", "distance (octaves)", "extra loss (nats)", "note"]
    rows = [
        [
            transfer.rule,
            one.proxy.label,
            one.member.label,
            with_interval(one.octaves),
            with_interval(one.loss, 4),
            "extrapolated" if one.extrapolated else "",
        ]
        for transfer in analysis.transfers
        for one in transfer.regrets
    ]
    caption = (
        "The cost of training a model at the proxy's best rate instead of its own, on the model's "
        "fitted curve. It is extrapolated where no run of the fit lies as far out."
    )
    return PageTable(caption, headings, rows, frozenset((3, 4)))


def comparison_table(analysis: StudyAnalysis) -> PageTable:
    headings = ["quantity", "first", "second", "first − second", "unit", "better"]
    rows = [
        [
            one.quantity,
            one.first,
            one.second,
            with_interval(one.difference, 4),
            one.unit,
            one.better or "no difference shown",
        ]
        for one in analysis.comparisons
    ]
    caption = "Rules compared on the same seeds. One is better only if the interval excludes zero."
    return PageTable(caption, headings, rows, frozenset((3,)))


def variance_tables(analysis: StudyAnalysis) -> list[PageTable]:
    kinds = analysis.variances.items()
    return [_variance_table(_KINDS.get(kind, kind), rows) for kind, rows in kinds if rows]


_KINDS = {
    "fitted": "Variance of the fitted optimum over models (ddof 0).",
    "lowest": "Variance of the lowest-loss run over models (ddof 0).",
}


def _variance_table(caption: str, rows: Sequence[Any]) -> PageTable:
    names = list(dict.fromkeys(name for row in rows for name in row.variances))
    units = ("nats²" if name == "loss" else "octaves²" for name in names)
    searched = (f"{SHORT.get(n, n)} ({unit})" for n, unit in zip(names, units, strict=True))
    headings = ["rule", "models", *searched]
    body = [
        [row.rule, str(row.members), *(_variance(row.variances, name) for name in names)]
        for row in rows
    ]
    return PageTable(caption, headings, body, frozenset(range(1, len(headings))))


def _variance(values: Mapping[str, float], name: str) -> str:
    return f"{values[name]:.3g}" if name in values else "–"


def check_table(findings: Sequence[Mapping[str, Any]], quantity: str, caption: str) -> PageTable:
    headings = ["statistic", "role", f"slope in log {quantity}", "interval", "predicted", "verdict"]
    rows = [
        [
            str(one["label"]),
            str(one["role"]).replace("_", " "),
            signed(one["slope"], 3),
            f"[{signed(one['low'], 3)}, {signed(one['high'], 3)}]",
            "–" if one.get("predicted") is None else signed(one["predicted"], 3),
            str(one["verdict"]),
        ]
        for one in findings
    ]
    return PageTable(caption, headings, rows, frozenset((2, 3, 4)))


def curve_table(figure: Mapping[str, Any]) -> PageTable:
    """The means of the curves, for readers who do not see the figure."""
    rows = [
        [
            panel["rule"],
            line["member"] or "–",
            f"{signed(x)} ({decimal(2**x)})",
            f"{mean:.4f}",
            str(count),
        ]
        for panel in figure["panels"]
        for line in panel["lines"]
        for x, mean, count in zip(line["x"], line["mean"], line["count"], strict=True)
    ]
    headings = ["rule", "model", "log2 lr (lr)", "mean loss", "seeds"]
    return PageTable("Mean loss over seeds at each rate.", headings, rows, frozenset((2, 3, 4)))


def map_table(figure: Mapping[str, Any]) -> PageTable:
    second = SHORT.get(figure["second"], figure["second"])
    rows = [
        [
            panel["rule"],
            panel["member"] or "–",
            "–"
            if panel["optimum"] is None
            else f"{', '.join(map(power, panel['optimum']))}{_doubt(panel)}",
            "–" if panel["mean"] is None else ", ".join(power(value) for value in panel["mean"]),
            str(len(panel["x"])),
            _lowest(panel["loss"]),
        ]
        for panel in figure["panels"]
    ]
    optimum = f"optimum (lr, {second})"
    headings = ["rule", "model", optimum, "mean over models", "points", "lowest loss"]
    return PageTable(
        f"The marks on the maps of lr and {second}.", headings, rows, frozenset(range(2, 6))
    )


def _lowest(losses: Sequence[float | None]) -> str:
    ended = [loss for loss in losses if loss is not None]
    return f"{min(ended):.4f}" if ended else "–"


def curve_words(panel: Mapping[str, Any]) -> str:
    """A panel of curves in words, for its caption and for readers who do not see it."""
    found = [
        _found_words(line["member"], line["optimum"]) for line in panel["lines"] if line["optimum"]
    ]
    if not found:
        return f"{panel['rule']}: loss against learning rate; no optimum was fitted."
    mean = ""
    if panel["mean"] is not None:
        mean = f"; mean {power(panel['mean'])}, sd {signed(panel['sd'] or 0.0)} octaves"
    return f"Best lr under {panel['rule']}: {'; '.join(found)}{mean}."


def _found_words(member: str, optimum: Mapping[str, Any]) -> str:
    bounded = optimum["low"] is not None and optimum["high"] is not None
    return f"{power(optimum['x'])} for {member or 'the model'}{'' if bounded else ' (no bound)'}"


def map_words(panel: Mapping[str, Any], second: str) -> str:
    """A map in words."""
    over = f"loss over lr and {SHORT.get(second, second)}"
    where = f"{panel['rule']}, {panel['member'] or 'the model'}: {over}"
    if panel["optimum"] is None:
        return f"{where}, {len(panel['x'])} points; no optimum was fitted."
    x, y = map(power, panel["optimum"])
    return f"{where}, {len(panel['x'])} points; optimum at {x} and {y}{_doubt(panel)}."


def _doubt(panel: Mapping[str, Any]) -> str:
    return "" if panel["sure"] else " (without a bound)"
