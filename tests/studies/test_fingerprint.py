"""Trials that share a fingerprint have the same result: a fork copies one for the other."""

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mupscale.studies.cell_run import fingerprint_of
from mupscale.studies.config import Trainer
from mupscale.studies.trainers import TrialAssignment
from mupscale.training import RunConfig
from tests.studies.assignments import assigned

RUN = RunConfig.from_dict({"model": {"name": "cpu_32_r2"}, "length": {"steps": 4, "batch": 2}})
COMMAND = Trainer(command=("train", "{lr}"), environment={"A": "1"})
PLAN = {"parameters": {"w": {"lr": 0.5}}}
ROOT = Path("folder")

WITHOUT_EFFECT = {
    "machine.device",
    "machine.shard",
    "machine.compile",
    "record.log_every",
    "record.eval_every",
    "record.checkpoint_every",
    "record.tensorboard",
}
"""Where a run is trained, and what is recorded of it on the way. Nothing else: precision, for
example, changes the result."""


def settings() -> Iterator[str]:
    """Every setting of a run, by its dotted name."""
    for section in dataclasses.fields(RUN):
        value = getattr(RUN, section.name)
        inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        yield from [f"{section.name}.{one.name}" for one in inner] or [section.name]


def with_setting(name: str, value: object) -> TrialAssignment:
    """A trial of the reference model whose run differs in one setting, valid or not."""
    values = copy.deepcopy(RUN.to_dict())
    section, _, key = name.partition(".")
    if key:
        values[section][key] = value
    else:
        values[section] = value
    changed = cast(RunConfig, SimpleNamespace(to_dict=lambda: values))
    return assigned(ROOT, None, config=changed)


@pytest.mark.parametrize("name", list(settings()))
def test_every_setting_of_a_run_counts_unless_it_cannot_change_the_result(name: str) -> None:
    prints = {fingerprint_of(with_setting(name, value)) for value in ("one", "another")}
    assert len(prints) == (1 if name in WITHOUT_EFFECT else 2)


def test_the_settings_without_effect_are_settings() -> None:
    assert set(settings()) >= WITHOUT_EFFECT


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("gqa-mup", "c219531e1b552bc1"),
        ({"name": "mine", "kv_factor": "sqrt(r)"}, "b67e666ac3cd1f75"),
    ],
)
def test_fingerprints_stay_as_older_studies_recorded_them(rule: Any, expected: str) -> None:
    """A new choice of a rule is left out where it has its default."""
    tables = {"model": {"name": "cpu_32_r2"}, "length": {"steps": 4, "batch": 2}}
    config = RunConfig.from_dict({**tables, "rule": rule})
    assert fingerprint_of(assigned(ROOT, None, config=config)) == expected
    on_keys = RunConfig.from_dict({**tables, "rule": {"name": "mine", "kv_part": "keys"}})
    assert fingerprint_of(assigned(ROOT, None, config=on_keys)) != expected


@pytest.fixture
def first() -> TrialAssignment:
    return assigned(ROOT, COMMAND, plan=PLAN)


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "sp"},
        {"variant": {"n_kv_heads": 6}},
        {"seed": 6},
        {"params": {"lr": 2**-6}},
        {"params": {"lr": 2**-7, "weight_decay": 0.1}},
        {"plan": {"parameters": {"w": {"lr": 0.25}}}},
        {"plan": None},
        {"trainer": dataclasses.replace(COMMAND, command=("train", "--lr", "{lr}"))},
        {"trainer": dataclasses.replace(COMMAND, metrics="file:metrics.jsonl")},
        {"trainer": dataclasses.replace(COMMAND, environment={"A": "2"})},
        {"trainer": Trainer(function="own:train")},
        {"trainer": None, "config": RUN},
    ],
    ids=str,
)
def test_every_other_part_of_a_trial_counts(first: TrialAssignment, change: Any) -> None:
    assert fingerprint_of(dataclasses.replace(first, **change)) != fingerprint_of(first)


def test_two_functions_differ(first: TrialAssignment) -> None:
    trials = [dataclasses.replace(first, trainer=Trainer(function=f"own:{n}")) for n in "ab"]
    assert fingerprint_of(trials[0]) != fingerprint_of(trials[1])


@pytest.mark.parametrize(
    "change",
    [
        {"trial": "mup.n_kv_heads-3/0008"},
        {"folder": "elsewhere"},
        {"stop": {"shares": [], "losses": [], "far": 1.0}},
        {"ranks": 2},
        {"time_limit": 5.0},
    ],
    ids=str,
)
def test_places_limits_and_early_stopping_do_not_count(first: TrialAssignment, change: Any) -> None:
    assert fingerprint_of(dataclasses.replace(first, **change)) == fingerprint_of(first)
