"""`mupscale sweep`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupscale.cli.check import folder_name
from mupscale.cli.console import print_json, remark
from mupscale.cli.flags import (
    EngineFlags,
    Json,
    ReadingFlags,
    SearchFlags,
    Settings,
    Switch,
    numbers,
    overrides,
    varied,
)
from mupscale.cli.study_progress import live
from mupscale.errors import OptionError
from mupscale.text import show

if TYPE_CHECKING:
    from mupscale.studies import Snapshot, StudyConfig


def sweep(
    study: Path | None = None,
    /,
    *,
    search: SearchFlags = SearchFlags(),  # noqa: B008
    where: EngineFlags = EngineFlags(),  # noqa: B008
    settings: Settings = (),
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    output: Path | None = None,
    fork: Path | None = None,
    retry_failed: Switch = False,
    status: Switch = False,
    show_config: Switch = False,
    as_json: Json = False,
) -> int:
    """Find the learning rate with the lowest loss for each rule and model variant, with an
    interval.

    You can interrupt a sweep at any time: every finished trial is on disk. Run the same command
    again to continue.

    Example: mupscale sweep --rule gqa-mup --vary n_kv_heads=12,3,1 --output runs/gqa

    Example: mupscale sweep study.toml --engine ray --address auto

    Example: mupscale sweep runs/gqa --status

    Parameters
    ----------
    study
        A TOML file, or the folder of a study that has begun (default: a small reference study).
    output
        Folder of the study: study.toml, records.jsonl, and study.db for optuna-dashboard (default:
        runs/NAME, or a folder in runs/sweep if there is no file).
    fork
        Folder of another study. Its results are reused for trials that are the same in both.
    retry_failed
        Run trials again that failed, ran out of memory or ran out of time.
    status
        Print the progress of the study, then exit. This works while it runs in another terminal.
    show_config
        Print the whole study as TOML, then exit.
    """
    from mupscale.studies import Study, StudyConfig
    from mupscale.studies import retry_failed as forget_failed

    begun = study is not None and study.is_dir()
    if begun and output is not None:
        raise OptionError(
            f"{study} is the folder of a study, which is its own --output. Leave out one of them."
        )
    config = StudyConfig.from_dict(study_settings(study, search, where, settings, reading))
    folder = study if study is not None and begun else output or _default_folder(study, config)
    if show_config:
        print(config.to_toml(), end="")
        return 0
    if status:
        return _print_status(Study.open(folder).snapshot(), folder, as_json)
    created = Study.create(config, folder)
    if retry_failed and (count := forget_failed(created)):
        remark(f"running {count} failed trials again; their records are in {folder}/failed.jsonl")
    with live(created) as progress:
        snapshot = created.run(
            report=progress.report, remark=progress.remark, reuse=Study.open(fork) if fork else None
        )
    return _print_status(snapshot, folder, as_json)


def _default_folder(file: Path | None, config: "StudyConfig") -> Path:
    """Named after the file; otherwise after the settings, so that a study finds its records."""
    if file is not None:
        return Path("runs") / config.name
    rules = "-".join(rule if isinstance(rule, str) else "own" for rule in config.rules)
    return Path("runs/sweep") / folder_name(rules, "-".join(config.vary), [config.identity()])


def study_settings(
    study: Path | None,
    search: SearchFlags,
    where: EngineFlags,
    settings: tuple[str, ...],
    reading: ReadingFlags,
) -> dict[str, Any]:
    """The settings of the file or folder, or of the quick study, with the flags on top."""
    from mupscale.studies.quick import QUICK
    from mupscale.training.settings import read_toml

    path = study / "study.toml" if study is not None and study.is_dir() else study
    values: dict[str, Any] = read_toml(path) if path is not None else json.loads(json.dumps(QUICK))
    for dotted, value in overrides(settings).items():
        table, _, key = dotted.rpartition(".")
        _table(values, table)[key] = value
    if search.rule:
        values["rules"] = list(search.rule)
    if search.vary:
        values["vary"] = dict(map(varied, search.vary))
    if search.seeds is not None:
        values["seeds"] = numbers("--seeds", search.seeds, "42,43,44")
    for name in ("lr", "weight_decay", "tau_epoch", "std"):
        ends = getattr(search, name)
        if ends is not None:
            _table(values, "space")[name] = [end.strip() for end in ends.split(",")]
    for text in search.factor:
        name, _, ends = text.partition("=")
        if "." not in name or not ends:
            raise OptionError(f"--factor {text!r}: write NAME=LOW,HIGH, as lr.embedding=2^-2,2^2.")
        _table(values, "space")[name.strip()] = [end.strip() for end in ends.split(",")]
    for name in ("method", "trials", "tolerance"):
        if getattr(search, name) is not None:
            _table(values, "search")[name] = getattr(search, name)
    for name in ("engine", "workers", "address", "gpus"):
        if getattr(where, name) is not None:
            _table(values, "engine")["name" if name == "engine" else name] = getattr(where, name)
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


def _print_status(snapshot: "Snapshot", folder: Path, as_json: bool) -> int:
    from mupscale.studies.sensitivity import found_in, sensitivity_text
    from mupscale.studies.summary import rows, table_text

    cells = rows(snapshot)
    found, gains = found_in(snapshot)
    nothing_finished = any(cell.ended for cell in cells) and not any(
        cell.finished for cell in cells
    )
    if as_json:
        values: dict[str, Any] = {"study": str(folder), "cells": [c.to_dict() for c in cells]}
        if found:
            values["sensitivity"] = [one.to_dict() for one in found]
            values["gains"] = [one.to_dict() for one in gains]
        print_json(values)
        return int(nothing_finished)
    show(table_text(cells))
    if found:
        print()
        show(sensitivity_text(found, gains))
    if nothing_finished:
        print("\nNo trial finished, so there is no optimum.")
    print(f"\nrecords: {folder}/records.jsonl")
    if snapshot.config.storage is None:
        print(f"dashboard: optuna-dashboard sqlite:///{folder}/study.db")
    return int(nothing_finished)
