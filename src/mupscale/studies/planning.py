"""The plan of a cell's model, for the user's own trainer."""

import dataclasses
import json
from functools import cache
from typing import Any

from mupscale.errors import OptionError
from mupscale.reading import Reading
from mupscale.studies.config import Cell, StudyConfig, Trainer


def plan_dict(config: StudyConfig, cell: Cell) -> dict[str, Any] | None:
    """The content of `plan.json`; None without a target, and for the reference model, which plans
    itself.
    """
    trainer = config.trainer
    if trainer is None or trainer.target is None:
        return None
    tables = cell.tables
    base = tuple(sorted(tables.get("base", {}).items()))
    optimizer = tables.get("optimizer", {})
    text = _planned(
        trainer.target,
        tuple(cell.dimensions.items()),
        trainer.base,
        base,
        _least(config),
        json.dumps(cell.rule, sort_keys=True),
        optimizer.get("name", "adamw"),
        optimizer.get("decay"),
        config.reading,
    )
    return json.loads(text)


def _least(config: StudyConfig) -> tuple[tuple[str, int], ...]:
    """The variant that serves as the base by default: least sharing, width and depth."""
    return tuple(
        (name, max(v) if name == "n_kv_heads" else min(v)) for name, v in config.vary.items()
    )


@cache
def _planned(
    target: str,
    dimensions: tuple[tuple[str, int], ...],
    base_name: str | None,
    base: tuple[tuple[str, int], ...],
    least: tuple[tuple[str, int], ...],
    rule: str,
    optimizer: str,
    decay: Any,
    reading: Reading,
) -> str:
    from mupscale.planning import plan
    from mupscale.training.config import rule_from

    model = _model(target, dimensions)
    if base_name is not None:
        reference: Any = _model(base_name, ())
    elif base:
        reference = dict(base)
    elif least:
        reference = _model(target, least)
    else:
        raise OptionError(
            "the plan needs a base: the model that the rates are tuned on. Write [base] with "
            "width, depth and r, or trainer.base with the name of a model."
        )
    made = plan(
        model,
        base=reference,
        optimizer=optimizer,
        rule=rule_from(json.loads(rule)),
        decay=decay,
        reading=reading,
    )
    return made.to_json()


def with_reading(config: StudyConfig) -> StudyConfig:
    """Add the mupscale.toml beside the trainer's model, unless the study has its own [reading].

    The content becomes part of the study, so that the study does not change when the file does.
    """
    from mupscale.targets import reading_beside

    trainer = config.trainer
    if config.reading or trainer is None or trainer.target is None:
        return config
    reading = reading_beside(trainer.target)
    return dataclasses.replace(config, reading=reading) if reading else config


def _model(target: str, dimensions: tuple[tuple[str, int], ...]) -> Any:
    from mupscale.targets import Family, resolve

    if not dimensions:
        return resolve(target).model
    if len(dimensions) > 1:
        names = ", ".join(name for name, _ in dimensions)
        raise OptionError(
            f"vary: {names} together. Vary a trainer's target in one dimension at a time."
        )
    return Family(target, device="meta")(**dict(dimensions))


def check_plan(config: StudyConfig) -> None:
    """Raise an error for a rule without effect: the trainer must get the plan that implements
    it.
    """
    trainer = config.trainer
    assert isinstance(trainer, Trainer)
    names = {rule if isinstance(rule, str) else "own" for rule in config.rules}
    if trainer.target is None and names != {"sp"}:
        raise OptionError(
            f"rules = {sorted(names)}, but without trainer.target there is no plan for the "
            "trainer, and all rules would train alike. Name the model "
            '(trainer.target = "hf:llama,hidden_size=64"), or set rules = ["sp"].'
        )
    if (
        trainer.command is not None
        and trainer.target is not None
        and not any("{plan}" in a for a in trainer.command)
    ):
        raise OptionError(
            'trainer.command does not use the plan. Add "--plan", "{plan}", or remove '
            "trainer.target."
        )
