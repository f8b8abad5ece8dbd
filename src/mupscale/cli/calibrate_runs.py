"""`mupscale calibrate --over batch,tokens`."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupscale.cli.console import print_json
from mupscale.cli.flags import EngineFlags, ReadingFlags, SearchFlags, numbers
from mupscale.cli.study_progress import live
from mupscale.cli.sweep import study_settings
from mupscale.errors import OptionError, UnknownNameError
from mupscale.text import show, text_table, wrapped

if TYPE_CHECKING:
    from mupscale.analysis.estimates import Estimate
    from mupscale.analysis.run_exponents import RunExponents, SizedTable
    from mupscale.cli.calibrate import CalibrationFlags
    from mupscale.recipes.run_calibrating import CarriedRate, RunCalibration
    from mupscale.theory.rule_files import RunEvidence

INCONCLUSIVE = 3
_CHOICES = ("r", "batch", "tokens", "batch,tokens")
_LETTERS = {"batch": "B", "tokens": "D"}


def asked(over: str | None, study: Path | None) -> bool:
    """Whether the calibration is over batch or tokens: by the flag, or by the folder."""
    from mupscale.recipes.run_calibrating import is_run_calibration

    if over is not None:
        axes = [part.strip() for part in over.split(",")]
        if axes == ["r"]:
            return False
        for axis in axes:
            if axis not in _LETTERS:
                raise UnknownNameError("--over", axis, _CHOICES)
        return True
    return study is not None and study.is_dir() and is_run_calibration(study)


def run_calibration_in(
    folder: Path, calibration: "RunCalibration", *, dry_run: bool, as_json: bool
) -> int:
    """Run what is missing, measure, print and write the rule."""
    from mupscale.recipes.run_calibrating import (
        calibrated_run,
        carried_rates,
        run_answers,
        sized_tables,
    )
    from mupscale.studies import Study
    from mupscale.theory.rule_files import write_rule

    print(_cost(calibration), file=sys.stdout if dry_run else sys.stderr)
    if dry_run:
        return 0
    for part in calibration.studies(folder):
        with live(part) as progress:
            part.run(report=progress.report, remark=progress.remark)
    joined = Study.open(folder)
    found, tables = run_answers(joined), sized_tables(joined)
    written = calibrated_run(calibration, found)
    evidence = written[1] if written else None
    path = folder / "rule.json"
    if written is not None:
        write_rule(path, *written)
    carried = carried_rates(tables, evidence.formula if evidence else None)
    if as_json:
        print_json(_content(found, tables, carried, evidence, path))
    else:
        show(_text(found, tables, carried, evidence, path))
    return 0 if written else INCONCLUSIVE


def requested(
    over: str | None,
    study: Path | None,
    search: "CalibrationFlags",
    where: EngineFlags,
    settings: tuple[str, ...],
    reading: ReadingFlags,
    output: Path | None,
) -> "tuple[Path, RunCalibration]":
    """The folder of the calibration, and what to run there."""
    from mupscale.recipes.run_calibrating import (
        RunCalibration,
        is_run_calibration,
        run_calibration,
    )

    search.refuse("batch or tokens", ("gammas", "repetitions"))
    if study is not None and study.is_dir() and is_run_calibration(study):
        if search.given or settings or reading.given or output is not None or over is not None:
            raise OptionError(
                f"{study} is a calibration that has begun and keeps its settings. Leave out the "
                "other options."
            )
        return study, RunCalibration.open(study)
    flags = SearchFlags(
        rule=(search.rule,) if search.rule else (),
        seeds=search.seeds,
        lr=search.lr,
        weight_decay=search.weight_decay,
    )
    values = study_settings(study, flags, where, settings, reading)
    axes = [part.strip() for part in (over or "").split(",")]
    batches, tokens = (
        () if text is None else numbers(flag, text, example)
        for flag, text, example in (
            ("--batches", search.batches, "4,8,16"),
            ("--tokens", search.tokens, "1000000,2000000"),
        )
    )
    folder = output or Path("runs/calibrate") / f"{values['name']}-{'-'.join(axes)}"
    return folder, run_calibration(values, axes, batches=batches, tokens=tokens)


def _cost(calibration: "RunCalibration") -> str:
    configs = list(calibration.parts.values())
    lines: list[str] = []
    for config in configs:
        ends = " to ".join(f"{end:.3g}" for end in config.space["lr"])
        sizes = [f"{name} = {', '.join(map(str, of))}" for name, of in config.vary.items()]
        lines.append(f"{', '.join(sizes)}: lr {ends}")
    cells = sum(len(config.cells()) for config in configs)
    return "\n".join(
        [
            *lines,
            f"to run: {cells} cells, {calibration.runs()} runs, {calibration.tokens():.3g} tokens",
        ]
    )


def _text(
    found: "Mapping[str, RunExponents]",
    tables: "list[SizedTable]",
    carried: "list[CarriedRate]",
    evidence: "RunEvidence | None",
    path: Path,
) -> str:
    lines = [_cells(tables)]
    for name, one in found.items():
        lines += ["", *_exponents(name, one)]
    lines += ["", *_beside(tables, carried), ""]
    if evidence is not None:
        lines += [
            wrapped(f"{path}: {evidence}"),
            f"Use it: mupscale transfer STUDY --to MODEL --run {path}",
        ]
    else:
        lines.append(wrapped(_advice(found["lr"])))
    return "\n".join(lines)


def _cells(tables: "list[SizedTable]") -> str:
    from mupscale.analysis.fits import FITS

    head = ["batch", "tokens", "best log2 lr", "lowest loss", ""]
    rows: list[list[str]] = []
    for table in tables:
        places = {
            fit: next((point.place for point in table.lowest(fit) if not point.inside), "")
            for fit in FITS
        }
        left = [f"{fit}: {place}" for fit, place in places.items() if place]
        points = [point for fit in FITS if table.located(fit) for point in table.lowest(fit)]
        mean = f"{sum(p.log2_rate for p in points) / len(points):.2f}" if points else ""
        loss = f"{sum(p.loss for p in points) / len(points):.4f}" if points else ""
        rows.append([f"{table.batch:,.0f}", f"{table.tokens:,.0f}", mean, loss, "; ".join(left)])
    return text_table(head, rows, right=head[:4], details=[""])


def _exponents(name: str, found: "RunExponents") -> list[str]:
    """A table of the exponents by fit, and what all fits agree on."""
    rows: list[list[str]] = []
    for fit, one in found.by_fit.items():
        cells = [_interval(one.slopes.get(axis)) if one else "not located" for axis in found.axes]
        rows.append([fit, *cells])
    head = ["fit", *(f"exponent of {_LETTERS[axis]}" for axis in found.axes)]
    lines = [f"log2 of the best {name} over log2 of batch B and tokens D", text_table(head, rows)]
    for axis in found.axes:
        slope, bend = found.slope(axis), found.bend(axis)
        text = f"{axis}: {slope.verdict}"
        if slope.widest is not None:
            text += f", exponent {_interval(slope.widest)} by the widest interval"
        if bend.widest is not None:
            text += f"; {bend.verdict} ({_interval(bend.widest)} per doubling)"
        lines.append(wrapped(text))
    return lines


def _beside(tables: "list[SizedTable]", carried: "list[CarriedRate]") -> list[str]:
    """What each published rule makes of the smallest run's best rate."""
    head = ["rule", "moves lr by", "lands off by", "costs, nats", "source"]
    rows = [
        [
            one.choice,
            f"{one.octaves:+.2f}",
            _interval(one.off.widest),
            _interval(one.regret.widest, 4),
            one.source,
        ]
        for one in carried
    ]
    first, last = tables[0], tables[-1]
    title = (
        f"The best rate of {first.name}, carried to {last.name} by each rule, in octaves (factors "
        "of two); intervals contain those of all fits"
    )
    return [wrapped(title), text_table(head, rows, details=["source"])]


def _interval(estimate: "Estimate | None", digits: int = 2) -> str:
    if estimate is None:
        return "not known"
    if not estimate.bounded:
        return f"{estimate.value:.{digits}f} (not bounded)"
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def _advice(found: "RunExponents") -> str:
    missing = {cell for one in found.by_fit.values() if one is not None for cell in one.left_out}
    if any(one is None for one in found.by_fit.values()) or missing:
        advice = "Some cells have no best rate inside their range: widen --lr, or add seeds."
    else:
        advice = "Add seeds or more sizes."
    return f"No rule was written, because these runs do not bound the exponents. {advice}"


def _content(
    found: "Mapping[str, RunExponents]",
    tables: "list[SizedTable]",
    carried: "list[CarriedRate]",
    evidence: "RunEvidence | None",
    path: Path,
) -> dict[str, Any]:

    from mupscale.analysis.fits import FITS

    return {
        "rule": str(path) if evidence else None,
        "evidence": asdict(evidence) if evidence else None,
        "exponents": {
            name: {
                "runs": one.runs,
                "diverged": one.diverged,
                "seeds": list(one.seeds),
                "ranges": {axis: list(ends) for axis, ends in one.ranges.items()},
                "by_fit": {
                    fit: asdict(fitted) if fitted else None for fit, fitted in one.by_fit.items()
                },
                "agreed": {axis: asdict(one.slope(axis)) for axis in one.axes},
                "bend": {axis: asdict(one.bend(axis)) for axis in one.axes},
            }
            for name, one in found.items()
        },
        "carried": [asdict(one) for one in carried],
        "cells": [
            {
                "batch_tokens": table.batch,
                "tokens": table.tokens,
                "lowest": {fit: [asdict(point) for point in table.lowest(fit)] for fit in FITS},
            }
            for table in tables
        ],
    }
