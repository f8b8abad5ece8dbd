"""The picture of README.md, from committed results: updates and optima over r, under two rules.

python -m website.picture docs/assets/overview.png
"""

import csv
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mupscale.checks.judging import NormTable
from mupscale.checks.statistics import STATISTICS, by_step
from mupscale.paper.few_steps import geometric, recorded_check
from mupscale.reports.style import COLOURS, QUIET, SETTINGS

RESULTS = Path(__file__).parents[1] / "results"
RULES = {"mup": ("vanilla μP", COLOURS[1]), "gqa-mup": ("GQA-μP", COLOURS[0])}


def picture() -> Figure:
    with plt.rc_context(dict(SETTINGS)):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.9), layout="constrained")
        _updates(left)
        _optima(right)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks([1, 2, 3, 4, 6, 12], labels=["1", "2", "3", "4", "6", "12"])
            axes.minorticks_off()
            axes.set_xlabel("query heads per key/value head, r")
        left.legend(fontsize=9, loc="lower left", bbox_to_anchor=(0, 0.06))
        return figure


def _updates(axes: Axes) -> None:
    """The mean over layers, steps and seeds, relative to its value at r = 1."""
    for rule, (label, colour) in RULES.items():
        check = recorded_check(RESULTS / "coordinate-check" / "paper" / rule, 60)
        for role, line in (("key", "-"), ("value", "--")):
            rows = NormTable(check.runs, "r").means(
                lambda run, role=role: by_step(run, STATISTICS["update"], role)
            )
            over = np.array(rows) / np.array(rows)[:, :1]
            found = [geometric(column) for column in over.T.tolist()]
            axes.plot(
                check.x,
                [one.value for one in found],
                line,
                color=colour,
                marker="o",
                ms=3.5,
                label=f"{label}, {role}s",
            )
            axes.fill_between(
                check.x,
                [one.low for one in found],
                [one.high for one in found],
                color=colour,
                alpha=0.15,
                lw=0,
            )
    axes.set_ylim(0.25, 1.2)
    axes.set_title("Updates of shared keys and values", loc="left")
    axes.set_ylabel("‖ΔW‖/‖W0‖, relative to r = 1")
    _note(axes, "the paper's size, 5 steps, 10 seeds: 120 runs")


def _optima(axes: Axes) -> None:
    with (RESULTS / "gqa-ablation" / "figures" / "optima.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["rule"] in RULES]
    for shift, (rule, (label, colour)) in zip((0.98, 1.02), RULES.items(), strict=True):
        mine = [row for row in rows if row["rule"] == rule]
        at, value, low, high = (
            np.array([float(row[name]) for row in mine])
            for name in ("position", "log2_optimum", "log2_optimum_low", "log2_optimum_high")
        )
        axes.errorbar(
            at * shift,
            value,
            (value - low, high - value),
            color=colour,
            marker="o",
            ms=4,
            capsize=2,
            label=label,
        )
    axes.set_ylim(-7.5, -4.5)
    axes.set_title("Best learning rate of a small model", loc="left")
    axes.set_ylabel("log2 of the base rate, 95 % interval")
    _note(
        axes,
        f"width 96, 2 tokens per parameter, 3 seeds: {sum(int(row['runs']) for row in rows)} runs",
    )


def _note(axes: Axes, text: str) -> None:
    axes.text(0.02, 0.03, text, transform=axes.transAxes, color=QUIET, fontsize=8.5)


def drawn(figure: Figure) -> list[list[list[float]]]:
    """Every point. The file stores them, so that a test notices when the results change."""
    return [
        np.asarray(line.get_xydata()).round(6).tolist()
        for axes in figure.axes
        for line in axes.lines
    ]


if __name__ == "__main__":
    made = picture()
    made.savefig(
        sys.argv[1], dpi=160, metadata={"Software": "", "Description": json.dumps(drawn(made))}
    )
