"""`mupscale calibrate`."""

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from mupscale.cli.reading import ReadingFlags
from mupscale.cli.study_progress import live
from mupscale.cli.sweep import What, Where, study_settings
from mupscale.cli.theory import Json
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.analysis.estimates import Estimate
    from mupscale.analysis.exponents import Exponent, Exponents
    from mupscale.recipes.calibrating import Calibration
    from mupscale.theory.rule_files import CalibrationEvidence

INCONCLUSIVE = 3
_ASKED = {"still": "optimum still over r", "loss": "lowest loss"}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Tried:
    """What is tried, where no file says it or another value is wanted."""

    gammas: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    "Exponents of ((1 + sqrt(r))/2)^gamma (default: -1,0,1,2)."
    repetitions: str | None = None
    "Values of r, the base's first; three that the heads allow unless given."
    rule: str | None = None
    "Whose other choices are kept: gqa-mup unless the file or this says otherwise."
    seeds: str | None = None
    "Of weights and batches, 42,43,44."
    lr: str | None = None
    "Range of the base rate, 2^-8,2^-4."

    @property
    def given(self) -> bool:
        return any(value is not None for value in asdict(self).values())


def calibrate(
    study: Path | None = None,
    /,
    *,
    tried: Tried = Tried(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
    question: Literal["still", "loss"] = "still",
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    output: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
) -> int:
    """Measure which factor the rate of shared key/value heads needs on your own proxy, and write it
    as a rule.

    At the base's r and at some more, each exponent gamma gets a search over the learning rate. Then
    rule.json says which gamma keeps the optimum still over r, or gives the lowest loss, with its
    interval; every --rule takes it. Interrupt it at any time, and run the same command again.

    Exit status: 0, or 3 if the runs do not bound gamma: then no rule is written.

    Example: mupscale calibrate --dry-run

    Example: mupscale calibrate proxy.toml --repetitions 1,4,8 --output runs/calibrate

    Example: mupscale calibrate runs/calibrate --question loss

    Parameters
    ----------
    study
        A TOML file as for mupscale sweep, or the folder of a study or of a calibration that was
        begun. Without it, the small reference model.
    question
        still: gamma keeps the optimal learning rate where it is at the base's r. loss: gamma gives
        the lowest loss.
    settings
        Any setting of a run over the file, dotted: --length.steps 300 is short for --set
        length.steps=300.
    output
        Folder of the two studies and of rule.json; runs/calibrate/NAME unless given.
    dry_run
        Say what would be run, and stop.
    """
    from mupscale.recipes.calibrating import answers, calibrated_rule
    from mupscale.theory.rule_files import write_rule

    made, folder = _made(study, tried, where, settings, reading, output)
    print(_cost(made), file=sys.stdout if dry_run else sys.stderr)
    if dry_run:
        return 0
    for part in made.studies(folder):
        with live(part) as show:
            part.run(report=show.report, remark=show.remark)
    found = answers(folder)
    written = calibrated_rule(made, found, question)
    path = folder / "rule.json"
    if written is not None:
        write_rule(path, *written)
    evidence = written[1] if written else None
    print(_json(found, evidence, path) if as_json else _text(found, question, evidence, path))
    return 0 if written else INCONCLUSIVE


def _made(
    study: Path | None,
    tried: Tried,
    where: Where,
    settings: tuple[str, ...],
    reading: ReadingFlags,
    output: Path | None,
) -> "tuple[Calibration, Path]":
    """What is run, and where."""
    from mupscale.recipes.calibrating import GAMMAS, Calibration, calibration, is_calibration

    begun = study is not None and study.is_dir()
    if study is not None and begun and is_calibration(study):
        if tried.given or settings or reading.given or output is not None:
            raise OptionError(
                f"{study} is a calibration that was begun: it has its settings. Leave other "
                "options out."
            )
        return Calibration.open(study), study
    what = What(rule=(tried.rule,) if tried.rule else (), seeds=tried.seeds, lr=tried.lr)
    values = study_settings(study, begun, what, where, settings, reading)
    made = calibration(
        values,
        gammas=_numbers("--gammas", tried.gammas) or GAMMAS,
        repetitions=[
            _whole("--repetitions", one) for one in _numbers("--repetitions", tried.repetitions)
        ],
    )
    return made, output or Path("runs/calibrate") / str(values["name"])


def _numbers(flag: str, text: str | None) -> list[float]:
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise OptionError(
            f"{flag} {text!r} is not a list of numbers. Write it like 1,4,12."
        ) from None


def _whole(flag: str, value: float) -> int:
    if not value.is_integer() or value < 1:
        raise OptionError(f"{flag}: {value:g} is not a whole number above 0. Write it like 1,4,12.")
    return int(value)


def _cost(made: "Calibration") -> str:
    """Before anything runs."""
    runs, tokens = made.runs(), made.tokens()
    ((name, (first,)),), ((_, others),) = made.base.vary.items(), made.factors.vary.items()
    rules = ", ".join(cell.rule_name for cell in made.factors.cells()[:: len(others)])
    cells = len(made.base.cells()) + len(made.factors.cells())
    size = f"{cells} cells" + (
        f", {runs} runs" if runs is not None else "; each search ends by itself"
    )
    return (
        f"base: {name} = {first}\n{rules}: {name} = {', '.join(map(str, others))}\nto run: {size}"
        + (f", {tokens:.3g} tokens" if tokens is not None else "")
    )


def _text(
    found: "Exponents", question: str, evidence: "CalibrationEvidence | None", path: Path
) -> str:
    lines = [f"{'r':>4}  {'factor':>7}  {'log2 lr':>18}  {'loss':>7}"]
    for cell in (found.base, *found.cells):
        optimum = cell.analysis.optimum
        where = (
            "no run ended"
            if optimum is None
            else _interval(optimum.value, optimum.low, optimum.high)
        )
        loss = "" if optimum is None else f"{optimum.loss:.4f}"
        flags = "" if cell.usable else f"  left out: {', '.join(cell.analysis.flags) or 'diverged'}"
        lines.append(f"{cell.r:>4g}  {2**cell.log2_factor:>7.3f}  {where:>18}  {loss:>7}{flags}")
    lines += ["", *(_said(found.answer(one)) for one in ("still", "loss")), ""]
    if evidence is not None:
        return "\n".join(
            [*lines, f"{path}: {evidence}", f"Use it: mupscale plan MODEL --base ... --rule {path}"]
        )
    return "\n".join([*lines, _more(found, found.still if question == "still" else found.loss)])


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _said(answer: "Exponent") -> str:
    if answer.gamma is None:
        return f"{_ASKED[answer.question]}: too few factors with an optimum"
    one = answer.gamma
    ends = (
        f"γ = {_interval(one.value, one.low, one.high)}"
        if one.bounded
        else f"γ is not bounded: {_open(one)}"
    )
    parts = "; ".join(f"r = {r:g}: {_open(own)}" for r, own in answer.by_r.items())
    doubt = ""
    if answer.one_serves is not None and answer.one_serves < 0.05:
        doubt = f"; one γ does not serve every r (p = {answer.one_serves:.3f})"
    return f"{_ASKED[answer.question]}: {ends} ({parts}){doubt}"


def _open(one: "Estimate") -> str:
    """An interval that may lack an end."""
    low = f"[{one.low:.2f}" if math.isfinite(one.low) else "(-∞"
    high = f"{one.high:.2f}]" if math.isfinite(one.high) else "∞)"
    return f"{low}, {high}"


def _more(found: "Exponents", answer: "Exponent") -> str:
    """What would settle it."""
    left_out = [cell for cell in (found.base, *found.cells) if not cell.usable]
    said = "No rule is written: these runs do not bound γ. "
    if left_out:
        return (
            said
            + f"{len(left_out)} cells have no optimum inside of their range: widen --lr, or add "
            "seeds."
        )
    if answer.more_seeds is None:
        return (
            said
            + "More seeds alone will hardly do: try γ further out with --gammas, a larger r, or "
            "longer runs."
        )
    runs = answer.more_seeds * found.runs // max(found.seeds, 1)
    return (
        said
        + f"About {answer.more_seeds} more seeds ({runs} runs) should, if γ is where it seems to "
        "be."
    )


def _json(found: "Exponents", evidence: "CalibrationEvidence | None", path: Path) -> str:
    content: dict[str, Any] = {
        "rule": str(path) if evidence else None,
        "evidence": asdict(evidence) if evidence else None,
        "runs": found.runs,
        "seeds": found.seeds,
        "answers": {one: _answer(found.answer(one)) for one in ("still", "loss")},
        "cells": [
            {
                "r": cell.r,
                "log2_factor": cell.log2_factor,
                "usable": cell.usable,
                "flags": list(cell.analysis.flags),
            }
            | {name: asdict(one) for name, one in cell.analysis.found.items()}
            | {"loss": cell.analysis.loss}
            for cell in (found.base, *found.cells)
        ],
    }
    return json.dumps(_finite(content), ensure_ascii=False, indent=2, allow_nan=False)


def _answer(answer: "Exponent") -> dict[str, Any]:
    return asdict(answer) | {"by_r": {f"{r:g}": asdict(one) for r, one in answer.by_r.items()}}


def _finite(value: Any) -> Any:
    """Strict JSON has no infinity: an end that is not there is null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return None if isinstance(value, float) and not math.isfinite(value) else value
