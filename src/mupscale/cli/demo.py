"""`mupscale demo`: the whole way through, from the derived table to a recipe, in a few minutes on
two cores.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupscale.cli.numbers import Whole
from mupscale.cli.progress import bar
from mupscale.cli.study_progress import live
from mupscale.cli.theory import Json

if TYPE_CHECKING:
    from mupscale.checks import CheckResult
    from mupscale.recipes import Recipe
    from mupscale.studies import Study

TARGET = "llama-3-8b"
FAMILY, KV_HEADS, SEEDS, STEPS = "gpt:check", (12, 6, 4, 3, 2, 1), 5, 4
"""Of the coordinate check."""


def demo(
    *, output: Path = Path("runs/demo"), workers: Whole | None = None, as_json: Json = False
) -> None:
    """Go the whole way: derive, check, sweep, report, and a recipe for Llama-3 8B. Some minutes on
    two cores.

    Everything is really computed, and kept: run it again, and what is there is not run again.

    Example: mupscale demo --output demo

    Parameters
    ----------
    output
        Folder for the check's runs, the study, its report and the recipe.
    workers
        Processes with one thread each; one a core unless given.
    """
    from mupscale.recipes import transfer

    say = _silent if as_json else _heading
    say("1. Derive: the paper's table, from the spectral condition")
    if not as_json:
        _show_table()
    say("2. Check: do weights and updates keep their size as key/value heads are shared?")
    checks = {rule: _check(rule, output, workers) for rule in ("mup", "gqa-mup")}
    if not as_json:
        _show_checks(checks)
    say("3. Sweep: where is the best learning rate of a small model, for r = 1, 2 and 4?")
    study = _swept(output / "study", workers)
    if not as_json:
        _show_study(study)
    page = _reported(study, output, checks)
    say(f"4. Transfer: a recipe for {TARGET}")
    recipe = transfer(study, to=TARGET)
    (output / "recipe.json").write_text(recipe.to_json() + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(_data(checks, study, recipe, page), ensure_ascii=False, indent=2))
        return
    print(recipe.to_text())
    print(f"\nThe recipe: {output / 'recipe.json'}\nThe report of the study: {page}{_opened(page)}")
    print("The proxy is a toy of 60,000 parameters: the way is real, the numbers are its own.")


def _heading(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}", flush=True)


def _silent(text: str) -> None:
    pass


def _show_table() -> None:
    from mupscale.cli import theory

    theory.table()


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
            report=lambda done, _: report(done, ""),
        )


def _show_checks(checks: "dict[str, CheckResult]") -> None:
    """One line a rule, and the slopes that decide it."""
    for rule, result in checks.items():
        parts = [result.finding("update", role) for role in ("query", "key", "value")]
        slopes = ", ".join(f"{one.role} {one.flatness.slope.value:+.2f}" for one in parts)
        print(
            f"{rule:<8} {result.verdict:<13} slope of ‖ΔW‖/‖W0‖ over r: {slopes} "
            f"({len(result.runs)} runs)"
        )
    print(
        "Vanilla μP lets the updates of shared keys and values shrink; GQA-μP keeps them. All "
        "slopes: mupscale check"
    )


def _swept(folder: Path, workers: int | None) -> "Study":
    from mupscale.engines import Local
    from mupscale.studies import Study, StudyConfig
    from mupscale.studies.quick import DEMO

    study = Study.create(StudyConfig.from_dict(DEMO), folder)
    with live(study) as show:
        study.run(engine=Local(workers), report=show.report, remark=show.remark)
    return study


def _show_study(study: "Study") -> None:
    from mupscale.studies.summary import rows, table_text

    print(table_text(rows(study.snapshot())))


def _reported(study: "Study", output: Path, checks: "dict[str, CheckResult]") -> Path:
    from mupscale import reports
    from mupscale.records import write_whole
    from mupscale.reports.page import read_check, study_page
    from mupscale.reports.page.of_study import page_data

    for rule, result in checks.items():
        reports.save_findings(result, output / f"check-{rule}")
    summaries = [read_check(output / f"check-{rule}") for rule in checks]
    page = output / "report.html"
    write_whole(
        page,
        study_page(page_data(study, to=TARGET, checks=summaries)).encode("utf-8", errors="replace"),
    )
    return page


def _opened(page: Path) -> str:
    """Shown at once where somebody looks."""
    import webbrowser

    watched = sys.stdout.isatty() and (sys.platform == "darwin" or bool(os.environ.get("DISPLAY")))
    return (
        " (opened in the browser)" if watched and webbrowser.open(page.absolute().as_uri()) else ""
    )


def _data(
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
