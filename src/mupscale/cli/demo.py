"""`mupscale demo`: from the derived table to a recipe, in a few minutes on two cores."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupscale.cli.console import bar, print_json
from mupscale.cli.flags import Json, Workers
from mupscale.cli.report import write_page
from mupscale.cli.study_progress import live
from mupscale.text import show, text_table, wrapped

if TYPE_CHECKING:
    from mupscale.checks import CheckResult
    from mupscale.recipes import Recipe
    from mupscale.studies import Study

TARGET = "llama-3-8b"
FAMILY, KV_HEADS, SEEDS, STEPS = "gpt:check", (12, 6, 4, 3, 2, 1), 5, 4
"""The coordinate check's model, sizes, number of seeds and steps."""


def demo(
    *, output: Path = Path("runs/demo"), workers: Workers = None, as_json: Json = False
) -> None:
    """Run every stage in a few minutes on two cores: derive, check, sweep, report, and a recipe
    for Llama-3 8B.

    All results are computed and kept. A second call reuses them.

    Example: mupscale demo --output demo

    Parameters
    ----------
    output
        Folder for the check, the study, its report and the recipe.
    """
    from mupscale.recipes import transfer
    from mupscale.studies.summary import rows, table_text
    from mupscale.theory import parameterization

    def shown(text: str) -> None:
        if not as_json:
            show(text)

    def heading(text: str) -> None:
        shown(f"\n{text}\n{'─' * len(text)}")

    heading("1. Derive: the paper's table, from the spectral condition")
    shown(parameterization().to_text())
    heading("2. Check: do weights and updates keep their size as heads are shared?")
    checks = {rule: _check(rule, output, workers) for rule in ("mup", "gqa-mup")}
    shown(_checks_text(checks))
    heading("3. Sweep: the best learning rate of a small model, for r = 1, 2 and 4")
    study = _sweep(output / "study", workers)
    shown(table_text(rows(study.snapshot())))
    page = _report(study, output, checks)
    heading(f"4. Transfer: a recipe for {TARGET}")
    recipe = transfer(study, to=TARGET)
    (output / "recipe.json").write_text(recipe.to_json() + "\n", encoding="utf-8")
    shown(recipe.to_text())
    shown(f"\nThe recipe: {output / 'recipe.json'}")
    if as_json:
        print_json(_content(checks, study, recipe, page))
        return
    print(f"The report: {page}{_opened(page)}")
    print(wrapped("The proxy is a toy of 60,000 parameters: do not use its numbers."))


def _check(rule: str, output: Path, workers: int | None) -> "CheckResult":
    from mupscale.checks import coordinate_check
    from mupscale.engines import Local
    from mupscale.targets import Family

    with bar(f"checking {rule}", total=len(KV_HEADS) * SEEDS) as report:
        return coordinate_check(
            Family(FAMILY),
            {"n_kv_heads": KV_HEADS},
            rule=rule,
            seeds=SEEDS,
            steps=STEPS,
            engine=Local(workers),
            folder=output / f"check-{rule}",
            report=report,
        )


def _checks_text(checks: "dict[str, CheckResult]") -> str:
    """Each rule's verdict, and the slopes that decide it."""
    roles = ("query", "key", "value")
    lines = [
        [
            rule,
            result.verdict,
            *(f"{result.finding('update', role).flatness.slope.value:+.2f}" for role in roles),
            str(len(result.runs)),
        ]
        for rule, result in checks.items()
    ]
    head = ["rule", "verdict", *roles, "runs"]
    return "\n".join(
        [
            "Slopes of ‖ΔW‖/‖W0‖ over r, the number of query heads per key/value head:",
            text_table(head, lines, right=[*roles, "runs"]),
            wrapped(
                "Under vanilla μP, the updates of shared keys and values shrink; under GQA-μP they "
                "keep their size. mupscale check prints all slopes."
            ),
        ]
    )


def _sweep(folder: Path, workers: int | None) -> "Study":
    from mupscale.engines import Local
    from mupscale.studies import Study, StudyConfig
    from mupscale.studies.quick import DEMO

    study = Study.create(StudyConfig.from_dict(DEMO), folder)
    with live(study) as progress:
        study.run(engine=Local(workers), report=progress.report, remark=progress.remark)
    return study


def _report(study: "Study", output: Path, checks: "dict[str, CheckResult]") -> Path:
    from mupscale import reports
    from mupscale.reports.page import read_check

    for rule, result in checks.items():
        reports.save_findings(result, output / f"check-{rule}")
    summaries = [read_check(output / f"check-{rule}") for rule in checks]
    page = output / "report.html"
    write_page(study, page, TARGET, summaries)
    return page


def _opened(page: Path) -> str:
    """Open the page in a browser if there is a display."""
    import webbrowser

    watched = sys.stdout.isatty() and (sys.platform == "darwin" or bool(os.environ.get("DISPLAY")))
    return (
        " (opened in the browser)" if watched and webbrowser.open(page.absolute().as_uri()) else ""
    )


def _content(
    checks: "dict[str, CheckResult]", study: "Study", recipe: "Recipe", page: Path
) -> dict[str, Any]:
    from mupscale.studies.summary import rows
    from mupscale.theory import parameterization

    return {
        "table": parameterization().to_dict(),
        "checks": {rule: result.to_dict() for rule, result in checks.items()},
        "cells": [row.to_dict() for row in rows(study.snapshot())],
        "recipe": recipe.to_dict(),
        "report": str(page),
    }
