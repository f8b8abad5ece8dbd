"""`mupscale calibrate`."""

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from mupscale.cli.console import print_json
from mupscale.cli.flags import (
    EngineFlags,
    Json,
    ReadingFlags,
    SearchFlags,
    Settings,
    Switch,
    flag_group,
    numbers,
)
from mupscale.cli.study_progress import live
from mupscale.cli.sweep import study_settings
from mupscale.errors import OptionError
from mupscale.text import show, text_table

if TYPE_CHECKING:
    from mupscale.analysis.estimates import Estimate
    from mupscale.analysis.exponents import Exponent, Exponents
    from mupscale.recipes.calibrating import Calibration
    from mupscale.theory.rule_files import CalibrationEvidence

INCONCLUSIVE = 3
_QUESTIONS = {"still": "optimum constant over r", "loss": "lowest loss"}


@flag_group
class CalibrationFlags:
    """What a calibration searches; each overrides the file."""

    gammas: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    "Exponents gamma of the factor ((1 + sqrt(r))/2)^gamma to try (default: -1,0,1,2)."
    repetitions: str | None = None
    """Values of r, query heads per key/value head, with the base's first (default: three that the
    number of heads allows).
    """
    rule: str | None = None
    "The scaling rule, apart from that factor (default: the file's, or gqa-mup)."
    seeds: str | None = None
    "Seeds for weights and batches, such as 42,43,44 (default: the file's)."
    lr: str | None = None
    """Range of the base learning rate, such as 2^-8,2^-4 (default: the file's). Over batch, it is
    that of the smallest batch and moves up by half an octave per doubling.
    """
    weight_decay: str | None = None
    "Range of the weight decay, to measure its exponents too: only over batch or tokens."
    batches: str | None = None
    "Batches to train, in sequences (default: the file's, twice and four times that)."
    tokens: str | None = None
    "Lengths to train, in tokens (default: those of the file's run, twice and four times that)."

    @property
    def given(self) -> bool:
        return any(value is not None for value in asdict(self).values())

    def refuse(self, over: str, names: tuple[str, ...]) -> None:
        """Raise for flags that another calibration takes."""
        for name in names:
            if getattr(self, name) is not None:
                flag = name.replace("_", "-")
                raise OptionError(
                    f"--{flag} does not go with a calibration over {over}. Leave it out, or "
                    "choose another --over: r, batch, tokens or batch,tokens."
                )


def calibrate(
    study: Path | None = None,
    /,
    *,
    over: str | None = None,
    search: CalibrationFlags = CalibrationFlags(),  # noqa: B008
    where: EngineFlags = EngineFlags(),  # noqa: B008
    question: Literal["still", "loss"] = "still",
    settings: Settings = (),
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    output: Path | None = None,
    dry_run: Switch = False,
    as_json: Json = False,
) -> int:
    """Measure on your own proxy how the best learning rate changes, and write it as a rule.

    Over r (query heads per key/value head), it measures the factor that shared key/value heads
    need: gamma of ((1 + sqrt(r))/2)^gamma. Over batch and tokens, it measures the exponents of
    batch and length. Then rule.json holds what was measured with its intervals, and every --rule
    accepts it. You can interrupt it at any time. Run the same command again to continue.

    Exit status: 0, or 3 if the runs do not bound what is measured, and then no rule is written.

    Example: mupscale calibrate --dry-run

    Example: mupscale calibrate proxy.toml --over batch,tokens --batches 4,8,16

    Example: mupscale calibrate proxy.toml --repetitions 1,4,8 --output runs/calibrate

    Example: mupscale calibrate runs/calibrate --question loss

    Parameters
    ----------
    study
        A TOML file as for mupscale sweep, or the folder of a study or a calibration that has begun
        (default: a small reference study).
    over
        What varies: r, batch, tokens, or batch,tokens (default: r).
    question
        What gamma should do: keep the optimal learning rate the same at every r (still), or give
        the lowest loss (loss).
    output
        Folder for the studies and rule.json (default: runs/calibrate/NAME).
    dry_run
        Print what would run, then exit.
    """
    from mupscale.cli import calibrate_runs
    from mupscale.recipes.calibrating import answers, calibrated_rule
    from mupscale.theory.rule_files import write_rule

    if calibrate_runs.asked(over, study):
        if question != "still":
            raise OptionError(
                "--question is about key/value factors: leave it out over batch or tokens."
            )
        chosen = calibrate_runs.requested(over, study, search, where, settings, reading, output)
        return calibrate_runs.run_calibration_in(*chosen, dry_run=dry_run, as_json=as_json)
    search.refuse("r", ("batches", "tokens", "weight_decay"))
    calibration, folder = _calibration(study, search, where, settings, reading, output)
    print(_cost(calibration), file=sys.stdout if dry_run else sys.stderr)
    if dry_run:
        return 0
    for part in calibration.studies(folder):
        with live(part) as progress:
            part.run(report=progress.report, remark=progress.remark)
    result = answers(folder)
    written = calibrated_rule(calibration, result, question)
    path = folder / "rule.json"
    if written is not None:
        write_rule(path, *written)
    evidence = written[1] if written else None
    if as_json:
        print_json(_content(result, evidence, path))
    else:
        show(_text(result, question, evidence, path))
    return 0 if written else INCONCLUSIVE


def _calibration(
    study: Path | None,
    search: CalibrationFlags,
    where: EngineFlags,
    settings: tuple[str, ...],
    reading: ReadingFlags,
    output: Path | None,
) -> "tuple[Calibration, Path]":
    """What to run, and its folder."""
    from mupscale.recipes.calibrating import GAMMAS, Calibration, calibration, is_calibration

    if study is not None and study.is_dir() and is_calibration(study):
        if search.given or settings or reading.given or output is not None:
            raise OptionError(
                f"{study} is a calibration that has begun and keeps its settings. Leave out the "
                "other options."
            )
        return Calibration.open(study), study
    flags = SearchFlags(
        rule=(search.rule,) if search.rule else (), seeds=search.seeds, lr=search.lr
    )
    values = study_settings(study, flags, where, settings, reading)
    gammas = numbers("--gammas", search.gammas, "-1,0,1,2", float) if search.gammas else GAMMAS
    text = search.repetitions
    repetitions = [] if text is None else numbers("--repetitions", text, "1,4,12")
    for value in repetitions:
        if value < 1:
            raise OptionError(
                f"--repetitions: {value} is not a whole number above 0. Write it like 1,4,12."
            )
    folder = output or Path("runs/calibrate") / str(values["name"])
    return calibration(values, gammas=gammas, repetitions=repetitions), folder


def _cost(calibration: "Calibration") -> str:
    runs, tokens = calibration.runs(), calibration.tokens()
    ((name, (first,)),), ((_, others),) = (
        calibration.base.vary.items(),
        calibration.factors.vary.items(),
    )
    rules = ", ".join(cell.rule_name for cell in calibration.factors.cells()[:: len(others)])
    cells = len(calibration.base.cells()) + len(calibration.factors.cells())
    size = f"{cells} cells, " + (
        f"{runs} runs" if runs is not None else "until each search has its optimum"
    )
    return (
        f"base: {name} = {first}\n{rules}: {name} = {', '.join(map(str, others))}\nto run: {size}"
        + (f", {tokens:.3g} tokens" if tokens is not None else "")
    )


def _text(
    result: "Exponents", question: str, evidence: "CalibrationEvidence | None", path: Path
) -> str:
    head = ["r", "factor", "log2 lr, 95 % interval", "loss", ""]
    rows: list[list[str]] = []
    for cell in (result.base, *result.cells):
        optimum = cell.analysis.optimum
        rows.append(
            [
                f"{cell.r:g}",
                f"{2**cell.log2_factor:.3f}",
                "no run ended" if optimum is None else _interval(optimum),
                "" if optimum is None else f"{optimum.loss:.4f}",
                "" if cell.usable else f"left out: {', '.join(cell.analysis.flags) or 'diverged'}",
            ]
        )
    table = text_table(head, rows, right=["r", "factor", "loss"], details=[""])
    lines = [table, "", *(_sentence(result.answer(one)) for one in ("still", "loss")), ""]
    if evidence is not None:
        lines += [f"{path}: {evidence}", f"Use it: mupscale plan MODEL --base ... --rule {path}"]
    else:
        lines.append(_advice(result, result.still if question == "still" else result.loss))
    return "\n".join(lines)


def _interval(estimate: Any) -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _sentence(answer: "Exponent") -> str:
    question, gamma = _QUESTIONS[answer.question], answer.gamma
    if gamma is None:
        return f"{question}: too few factors have an optimum"
    text = f"γ = {_interval(gamma)}" if gamma.bounded else f"γ is not bounded: {_open(gamma)}"
    by_r = "; ".join(f"r = {r:g}: {_open(own)}" for r, own in answer.by_r.items())
    doubt = ""
    if answer.one_serves is not None and answer.one_serves < 0.05:
        doubt = f"; no single γ fits every r (p = {answer.one_serves:.3f})"
    return f"{question}: {text} ({by_r}){doubt}"


def _open(estimate: "Estimate") -> str:
    """An interval whose ends may be infinite."""
    low = f"[{estimate.low:.2f}" if math.isfinite(estimate.low) else "(-∞"
    high = f"{estimate.high:.2f}]" if math.isfinite(estimate.high) else "∞)"
    return f"{low}, {high}"


def _advice(result: "Exponents", answer: "Exponent") -> str:
    """What would settle it."""
    without = sum(1 for cell in (result.base, *result.cells) if not cell.usable)
    if without:
        advice = f"{without} cells have no optimum inside their range: widen --lr, or add seeds."
    elif answer.more_seeds is None:
        advice = (
            "More seeds alone are unlikely to help: try a wider range of --gammas, a larger r, or "
            "longer runs."
        )
    else:
        runs = answer.more_seeds * result.runs // max(result.seeds, 1)
        advice = (
            f"About {answer.more_seeds} more seeds ({runs} runs) should be enough, if γ is close "
            "to its estimate."
        )
    return f"No rule was written, because these runs do not bound γ. {advice}"


def _content(
    result: "Exponents", evidence: "CalibrationEvidence | None", path: Path
) -> dict[str, Any]:
    return {
        "rule": str(path) if evidence else None,
        "evidence": asdict(evidence) if evidence else None,
        "runs": result.runs,
        "seeds": result.seeds,
        "answers": {one: _answer(result.answer(one)) for one in ("still", "loss")},
        "cells": [
            {
                "r": cell.r,
                "log2_factor": cell.log2_factor,
                "usable": cell.usable,
                "flags": list(cell.analysis.flags),
            }
            | {name: asdict(optimum) for name, optimum in cell.analysis.found.items()}
            | {"loss": cell.analysis.loss}
            for cell in (result.base, *result.cells)
        ],
    }


def _answer(answer: "Exponent") -> dict[str, Any]:
    return asdict(answer) | {"by_r": {f"{r:g}": asdict(own) for r, own in answer.by_r.items()}}
