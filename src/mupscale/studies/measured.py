"""Converts the trials of a study to the input of analysis."""

import dataclasses
from collections.abc import Sequence

from mupscale.analysis.families import StudyAnalysis, analyse
from mupscale.analysis.measurements import Measurement, Member
from mupscale.models import GPTConfig
from mupscale.studies.config import Cell, StudyConfig
from mupscale.studies.paired import on_the_line, replay
from mupscale.studies.study import Snapshot, Study
from mupscale.studies.trials import TrialRecord
from mupscale.training.config import RUN_SIZES


def measured(study: Study | Snapshot) -> tuple[list[Measurement], str | None]:
    """All finished and diverged runs, and the axis along which the models differ.

    Failed and stopped trials are left out: the latter show only that they were worse. Of a paired
    search, those count that differ from the best point in the rate alone.
    """
    cells = {cell.name: cell for cell in study.config.cells()}
    trials = [
        trial
        for trial in study.trials
        if trial.status in ("finished", "diverged") and trial.cell in cells
    ]
    if study.config.search.method == "paired":
        trials = _around_the_best(study.config, trials)
    axis = _axis(study.config)
    members = {
        name: Member(label=member_label(cell), position=_position(study.config, cell, axis))
        for name, cell in cells.items()
    }
    runs = [
        Measurement(
            rule=cells[trial.cell].rule_name,
            member=members[trial.cell],
            seed=trial.seed,
            params=trial.params,
            loss=trial.loss,
            steps=trial.steps,
        )
        for trial in trials
    ]
    return runs, axis


def _around_the_best(config: StudyConfig, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Of a paired search, the runs that differ from the best point in the rate alone."""
    found: list[TrialRecord] = []
    for cell in config.cells():
        own = [trial for trial in trials if trial.cell == cell.name]
        search = replay(cell.space, config.seeds, own, config.search.step)
        found += on_the_line(own, search.point)
    return found


def analysis_of(study: Study | Snapshot, confidence: float = 0.95) -> StudyAnalysis:
    """The analysis of the study's runs."""
    runs, axis = measured(study)
    return analyse(runs, axis=axis, confidence=confidence)


def member_label(cell: Cell) -> str:
    """For example "large, n_kv_heads = 3"; "the model" if nothing is varied."""
    varied = [f"{name} = {value}" for name, value in cell.dimensions.items()]
    return ", ".join([cell.label, *varied] if cell.label else varied) or "the model"


def _axis(config: StudyConfig) -> str | None:
    if len(config.cells()) == len(config.rules):
        return None
    if not config.variants and len(config.vary) == 1:
        name = next(iter(config.vary))
        return "r" if name == "n_kv_heads" and config.trainer is None else name
    if config.trainer is not None or config.vary.keys() & set(RUN_SIZES):
        return None
    models = {dataclasses.replace(_shape(config, cell), n_kv_heads=None) for cell in config.cells()}
    return "r" if len(models) == 1 else "parameters"


def _shape(config: StudyConfig, cell: Cell) -> GPTConfig:
    return config.run_config(cell, dict.fromkeys(config.space, 1.0), config.seeds[0]).model


def _position(config: StudyConfig, cell: Cell, axis: str | None) -> float | None:
    if axis is None:
        return None
    if axis in cell.dimensions:
        return float(cell.dimensions[axis])
    shape = _shape(config, cell)
    if axis == "r":
        return float(shape.repetitions)
    from mupscale.models.budgets import parameter_counts

    return float(parameter_counts(shape).non_embedding)
