"""The plan of a cell's model, for the user's own trainer."""

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from mupscale.errors import OptionError
from mupscale.planning.run_sizes import RunJump
from mupscale.reading import Reading
from mupscale.studies.config import Cell, StudyConfig, Trainer, factors_in
from mupscale.theory import RunSize
from mupscale.training.config import RUN_SIZES, model_sizes, rule_from


def plan_dict(
    config: StudyConfig, cell: Cell, params: Mapping[str, float]
) -> dict[str, Any] | None:
    """The content of `plan.json`, with the factors by kind of weight; None without a target, and
    for the reference model, which plans itself.
    """
    trainer = config.trainer
    if trainer is None or trainer.target is None:
        return None
    given = model_sizes(cell.tables.get("base", {}))
    optimizer = cell.tables.get("optimizer", {})
    least = {
        n: max(v) if n == "n_kv_heads" else min(v) for n, v in model_sizes(config.vary).items()
    }
    if trainer.base is not None:
        base: Any = (trainer.base, {})
    elif given or config.vary:
        base = dict(sorted(given.items())) if given else (trainer.target, least)
    else:
        raise OptionError(
            "the plan needs a base: the model that the rates are tuned on. Write [base] with "
            "width, depth and r, or trainer.base with the name of a model."
        )
    asked = {
        "model": (trainer.target, cell.model_sizes),
        "base": base,
        "optimizer": optimizer.get("name", "adamw"),
        "rule": cell.rule,
        "decay": optimizer.get("decay"),
        "run": None if (jump := own_run_jump(config, cell)) is None else jump.to_dict(),
    }
    factors = {**optimizer.get("factors", {}), **factors_in(params)}
    return json.loads(_planned(json.dumps(asked), config.reading, json.dumps(factors)))


def own_run_jump(config: StudyConfig, cell: Cell) -> RunJump | None:
    """From the run in which the values of the user's own trainer were tuned to a cell's; None if
    the rule does not scale with batch and tokens.
    """
    rule = rule_from(cell.rule)
    if rule.run == "none":
        return None
    length, base = cell.tables.get("length", {}), cell.tables.get("base", {})
    sequence = cell.tables.get("data", {}).get("sequence")
    own: dict[str, Any] = {name: cell.dimensions.get(name, length.get(name)) for name in RUN_SIZES}
    missing = [f"length.{name}" for name in RUN_SIZES if own[name] is None]
    missing += [] if sequence else ["data.sequence"]
    if not (config.vary.keys() | base.keys()) & set(RUN_SIZES):
        missing.append("base.batch and base.tokens")
    if missing:
        raise OptionError(
            f"the rule {rule} scales with batch and tokens (run = {rule.run!r}), but the study "
            f"does not give {', '.join(missing)}. Set them: batch in sequences, tokens of the "
            "whole run."
        )
    least = {name: min(config.vary.get(name, [own[name]])) for name in RUN_SIZES}
    tuned = least | {name: base[name] for name in RUN_SIZES if name in base}
    sizes = [RunSize(batch=one["batch"] * sequence, tokens=one["tokens"]) for one in (tuned, own)]
    return RunJump(*sizes)


@lru_cache(maxsize=64)
def _planned(asked: str, reading: Reading, factors: str) -> str:
    from mupscale.planning import Plan

    if factors == "{}":
        return _without_factors(asked, reading)
    plan = Plan.from_json(_without_factors(asked, reading))
    return plan.with_factors(json.loads(factors)).to_json()


@cache
def _without_factors(asked: str, reading: Reading) -> str:
    """A model or base that is not given by its dimensions is the name of one, and its changes."""
    from mupscale.planning import plan

    values: dict[str, Any] = json.loads(asked)
    model, base = _model(*values.pop("model")), values.pop("base")
    reference = base if isinstance(base, dict) else _model(*base)
    rule, run = rule_from(values.pop("rule")), values.pop("run")
    planned = plan(model, base=reference, rule=rule, reading=reading, **values)
    if run is not None:
        jump = RunJump.from_dict(run)
        planned = planned.with_run(base=jump.base, target=jump.target)
    return planned.to_json()


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


def _model(target: str, dimensions: dict[str, int]) -> Any:
    from mupscale.targets import Family, resolve

    if not dimensions:
        return resolve(target).model
    if len(dimensions) > 1:
        raise OptionError(
            f"vary: {', '.join(dimensions)} together. Vary a trainer's target in one dimension at "
            "a time."
        )
    return Family(target, device="meta")(**dimensions)


def check_plan(config: StudyConfig) -> None:
    """Raise an error for a rule without effect: the trainer must get the plan that implements
    it.
    """
    trainer = config.trainer
    assert isinstance(trainer, Trainer)
    names = {rule if isinstance(rule, str) else "own" for rule in config.rules}
    factors = list(factors_in(dict.fromkeys(config.space, 1.0)))
    if trainer.target is None and factors:
        raise OptionError(
            f"space: {factors[0]} reaches a trainer in its plan, but without trainer.target there "
            'is no plan. Name the model (trainer.target = "hf:llama,hidden_size=64").'
        )
    if factors:  # the model must have such weights
        middle = {name: math.sqrt(low * high) for name, (low, high) in config.space.items()}
        for cell in config.cells():
            plan_dict(config, cell, middle)
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
