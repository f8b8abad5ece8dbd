"""`mupscale sweep`."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from mupscale.cli.check import folder_name, varied
from mupscale.cli.numbers import Whole, whole_numbers
from mupscale.cli.reading import ReadingFlags
from mupscale.cli.study_progress import live
from mupscale.cli.theory import Json
from mupscale.cli.training import overrides
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.studies import Snapshot, StudyConfig


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class What:
    """What is searched, where no file says it or another value is wanted."""

    rule: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    "sp, mup, complete-p, gqa-mup, or a rule.json. May be repeated."
    vary: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    "Model variants: n_kv_heads=12,3,1, or r, width, depth. May be repeated."
    seeds: str | None = None
    "Of weights and batches, 42,43,44; every optimum is that of their mean."
    lr: str | None = None
    "Range of the base rate, 2^-8,2^-4."
    weight_decay: str | None = None
    "Range of the base weight decay, if it is searched too."
    tau_epoch: str | None = None
    "Range of the decay's time scale in runs, 1/(lr x decay x steps), in place of the decay."
    std: str | None = None
    "Range of the base standard deviation, if it is searched too."
    method: Literal["adaptive", "grid", "random", "tpe"] | None = None
    "How points are chosen; adaptive unless given."
    trials: Whole | None = None
    "At most so many trials a cell."
    tolerance: float | None = None
    """The adaptive search ends when the optimum is known to +- this many powers of two; 0.25 unless
    given.
    """


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """Where trials run, which may change from one call to the next."""

    engine: Literal["local", "ray"] | None = None
    "local (processes of this machine) or ray."
    workers: Whole | None = None
    "Processes of the local engine; one a core unless given."
    address: str | None = None
    "Of the Ray cluster; RAY_ADDRESS unless given, and else a Ray of its own."
    gpus: float | None = None
    "What Ray reserves for a trial."
    storage: str | None = None
    "Database for Optuna: postgresql://... ; SQLite in the study's folder unless given."


def sweep(
    study: Path | None = None,
    /,
    *,
    what: What = What(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    output: Path | None = None,
    fork: Path | None = None,
    retry_failed: Annotated[bool, Parameter(negative=())] = False,
    status: Annotated[bool, Parameter(negative=())] = False,
    show_config: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
) -> int:
    """Find the learning rate with the lowest loss for each rule and model variant, with an
    interval.

    Every finished trial is on disk before it is announced: interrupt it at any time, and run the
    same command again.

    Example: mupscale sweep --rule gqa-mup --vary n_kv_heads=12,3,1 --output runs/gqa

    Example: mupscale sweep study.toml --engine ray --address auto

    Example: mupscale sweep runs/gqa --status

    Parameters
    ----------
    study
        A TOML file, or the folder of a study that was begun. Without it, a small reference model is
        swept.
    settings
        Any setting of a run over the file, dotted: --length.steps 300 is short for --set
        length.steps=300.
    output
        Folder of the study: study.toml, records.jsonl, study.db (for optuna-dashboard). runs/NAME
        unless given; without a file, below runs/sweep.
    fork
        A study whose results are taken over where a trial is the same, for one whose settings were
        changed.
    retry_failed
        Run trials again that failed, ran out of memory or out of time.
    status
        Say how far the study is, also while it runs in another terminal, and stop.
    show_config
        Print the whole study as TOML, and stop.
    """
    from mupscale.studies import Study, StudyConfig
    from mupscale.studies import retry_failed as forget_failed

    begun = study is not None and study.is_dir()
    if begun and output is not None:
        raise OptionError(
            f"{study} is the folder of a study: it is its own --output. Leave one of the two out."
        )
    config = StudyConfig.from_dict(study_settings(study, begun, what, where, settings, reading))
    folder = study if study is not None and begun else output or _usual_folder(study, config)
    if show_config:
        print(config.to_toml(), end="")
        return 0
    if status:
        return _shown(Study.open(folder).snapshot(), folder, as_json)
    made = Study.create(config, folder)
    if retry_failed and (number := forget_failed(made)):
        print(
            f"{number} failed trials are run again; their records are in {folder}/failed.jsonl",
            file=sys.stderr,
        )
    with live(made) as show:
        snapshot = made.run(
            report=show.report, remark=show.remark, reuse=Study.open(fork) if fork else None
        )
    return _shown(snapshot, folder, as_json)


def _usual_folder(file: Path | None, config: "StudyConfig") -> Path:
    """Of a file, by its name; without one, a folder for each set of settings, so that a study meets
    its own records.
    """
    if file is not None:
        return Path("runs") / config.name
    rules = "-".join(rule if isinstance(rule, str) else "own" for rule in config.rules)
    return Path("runs/sweep") / folder_name(rules, "-".join(config.vary), [config.identity()])


def study_settings(
    study: Path | None,
    begun: bool,
    what: What,
    where: Where,
    settings: tuple[str, ...],
    reading: ReadingFlags,
) -> dict[str, Any]:
    """The file, or the quick study, with everything else put over it."""
    from mupscale.studies.quick import QUICK
    from mupscale.training.settings import read_toml

    path = study / "study.toml" if study is not None and begun else study
    values: dict[str, Any] = read_toml(path) if path is not None else json.loads(json.dumps(QUICK))
    for dotted, value in overrides(settings).items():
        table, _, key = dotted.rpartition(".")
        _table(values, table)[key] = value
    if what.rule:
        values["rules"] = list(what.rule)
    if what.vary:
        values["vary"] = dict(map(varied, what.vary))
    if what.seeds is not None:
        values["seeds"] = whole_numbers("--seeds", what.seeds, "42,43,44")
    for name in ("lr", "weight_decay", "tau_epoch", "std"):
        ends = getattr(what, name)
        if ends is not None:
            _table(values, "space")[name] = [end.strip() for end in ends.split(",")]
    for name in ("method", "trials", "tolerance"):
        if getattr(what, name) is not None:
            _table(values, "search")[name] = getattr(what, name)
    for name, key in (
        ("engine", "name"),
        ("workers", "workers"),
        ("address", "address"),
        ("gpus", "gpus"),
    ):
        if getattr(where, name) is not None:
            _table(values, "engine")[key] = getattr(where, name)
    if where.storage is not None:
        values["storage"] = where.storage
    reading.put_into(values)
    return values


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    table = values.setdefault(name, {})
    if isinstance(table, str):  # model = "cpu_96_r2"
        table = values[name] = {"name": table}
    if not isinstance(table, dict):
        raise OptionError(f"{name} = {table!r} is not a table of settings.")
    return table


def _shown(snapshot: "Snapshot", folder: Path, as_json: bool) -> int:
    from mupscale.studies.summary import rows, table_text

    cells = rows(snapshot)
    status = (
        0 if any(cell.finished for cell in cells) or not any(cell.ended for cell in cells) else 1
    )
    if as_json:
        content = {"study": str(folder), "cells": [cell.to_dict() for cell in cells]}
        print(json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False))
        return status
    print(table_text(cells))
    if status:
        print("\nNot one trial finished: there is no optimum to recommend.")
    database = (
        f"; optuna-dashboard sqlite:///{folder}/study.db" if snapshot.config.storage is None else ""
    )
    print(f"\nrecords: {folder}/records.jsonl{database}")
    return status
