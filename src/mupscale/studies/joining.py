"""Several studies in the folders of one folder, read as one: its parts.

The parts of a large study may differ in models, rules, seeds and ranges. Everything else must be
the same, so that their cells can be compared.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mupscale.errors import OptionError
from mupscale.records import differences
from mupscale.studies.config import Cell, StudyConfig, rule_name

_OWN = ("name", "rules", "seeds", "space", "vary", "variants")
"""What may differ between parts."""

Ranges = Mapping[str, tuple[float, float]]


def joined_config(name: str, parts: Sequence[StudyConfig]) -> StudyConfig:
    """A study of every rule, model and seed of the parts, over ranges that contain theirs."""
    first = parts[0]
    for other in parts[1:]:
        changed = [
            *differences(_shared(first), _shared(other)),
            *([] if first.vary.keys() == other.vary.keys() else ["vary"]),
            *([] if bool(first.variants) == bool(other.variants) else ["variants"]),
            *_differing_variants(first, other),
        ]
        if changed:
            raise OptionError(
                f"{first.name} and {other.name} cannot be read as one study: they differ in more "
                f"than models, rules, seeds and ranges ({'; '.join(changed)}). Open one of them."
            )
    rules = {
        rule_name(rule): rule
        for part in sorted(parts, key=lambda one: -len(one.rules))
        for rule in part.rules
    }
    return dataclasses.replace(
        first,
        name=name,
        rules=tuple(rules.values()),
        seeds=tuple(sorted({seed for part in parts for seed in part.seeds})),
        space=_widest(cell.space for part in parts for cell in part.cells()),
        rule_space={},
        vary={
            axis: tuple(sorted({value for part in parts for value in part.vary[axis]}))
            for axis in first.vary
        },
        variants=tuple(_variants(parts).values()),
    )


def _variants(parts: Sequence[StudyConfig]) -> dict[str | None, Mapping[str, Any]]:
    return {one.get("name"): one for part in parts for one in part.variants}


def _differing_variants(first: StudyConfig, other: StudyConfig) -> list[str]:
    """Variants of the same name must be the same model."""
    own, theirs = _variants([first]), _variants([other])
    return [
        f"variants: {name}" for name in own if name in theirs and dict(own[name]) != theirs[name]
    ]


def _shared(config: StudyConfig) -> dict[str, object]:
    return {name: value for name, value in config.identity().items() if name not in _OWN}


def _widest(spaces: Iterable[Ranges]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name, (low, high) in (item for space in spaces for item in space.items()):
        before = found.get(name, (low, high))
        found[name] = (min(low, before[0]), max(high, before[1]))
    return found


def same_training(config: StudyConfig, cell: Cell, other: Cell) -> bool:
    """Whether two rules give a model the same values: at the base, all of them do."""
    from mupscale.training.preparation import plan_for

    if config.trainer is not None or cell.variant != other.variant:
        return False
    params = {name: low for name, (low, _) in cell.space.items()}
    runs = [config.run_config(one, params, config.seeds[0]) for one in (cell, other)]
    values = [
        {name: parameter.values for name, parameter in plan_for(run).parameters.items()}
        for run in runs
    ]
    return values[0] == values[1]
