"""The plan of a cell's model, for trainers of one's own."""

import dataclasses
import json
from functools import cache
from typing import Any

from mupscale.errors import OptionError
from mupscale.reading import Reading
from mupscale.studies.config import Cell, StudyConfig, Trainer


def plan_dict(config: StudyConfig, cell: Cell) -> dict[str, Any] | None:
    """As `plan.json` holds it; None for the reference model, which plans itself, and without a
    target.
    """
    trainer = config.trainer
    if trainer is None or trainer.target is None:
        return None
    tables = cell.tables
    base = tuple(sorted(tables.get("base", {}).items()))
    optimizer = tables.get("optimizer", {})
    least = _least(config)
    text = _planned(
        trainer.target, tuple(cell.dimensions.items()), trainer.base, base, least,
        json.dumps(cell.rule, sort_keys=True), optimizer.get("name", "adamw"), optimizer.get("decay"), config.reading,
    )  # fmt: skip
    return json.loads(text)


def _least(config: StudyConfig) -> tuple[tuple[str, int], ...]:
    """The variant that counts as tuned, where no base is given: least sharing, width and depth."""
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
            "width, depth and r, or "
            "trainer.base with a model's name."
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
    """With the mupscale.toml beside the trainer's model, where the study has no [reading] of its
    own.

    The study keeps what it says: a study must not change when the file does.
    """
    from mupscale.targets import reading_beside

    trainer = config.trainer
    if config.reading or trainer is None or trainer.target is None:
        return config
    said = reading_beside(trainer.target)
    return dataclasses.replace(config, reading=said) if said else config


def _model(target: str, dimensions: tuple[tuple[str, int], ...]) -> Any:
    from mupscale.targets import Family, resolve

    if not dimensions:
        return resolve(target).model
    if len(dimensions) > 1:
        names = ", ".join(name for name, _ in dimensions)
        raise OptionError(
            f"vary: {names} together. A target of one's own is varied in one dimension at a time."
        )
    return Family(target, device="meta")(**dict(dimensions))


def check_plan(config: StudyConfig) -> None:
    """A rule that would have no effect is refused: the trainer must get the plan that carries
    it.
    """
    trainer = config.trainer
    assert isinstance(trainer, Trainer)
    names = {rule if isinstance(rule, str) else "own" for rule in config.rules}
    if trainer.target is None and names != {"sp"}:
        raise OptionError(
            f"rules = {sorted(names)}, but without trainer.target there is no plan to hand over, "
            "and every rule would "
            'train alike. Name the model (trainer.target = "hf:llama,hidden_size=64"), or set '
            'rules = ["sp"].'
        )
    if (
        trainer.command is not None
        and trainer.target is not None
        and not any("{plan}" in a for a in trainer.command)
    ):
        raise OptionError(
            'trainer.command does not take the plan: add "--plan", "{plan}", or drop '
            "trainer.target."
        )
