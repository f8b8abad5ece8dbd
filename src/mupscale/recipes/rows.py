"""The plan in numbers: one row per parameter template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mupscale.planning import Plan, PlannedParameter
from mupscale.planning.groups import BaseValues


@dataclass(frozen=True)
class RecipeRow:
    """Values for the parameters of one template; `*` in `pattern` stands for the layer's number."""

    pattern: str
    role: str
    count: int
    shape: tuple[int, ...]
    optimizer: str
    std: float | None
    "None for parameters that are not drawn."
    start: float | None
    "Constant initial value; with `std` also None, the parameter stays as the model made it."
    lr: float
    weight_decay: float
    eps: float | None
    folded: float
    "Factor of the forward pass that is folded into the values."
    multiplier: float
    "Factor of the forward pass that a hook must apply."
    rows: Mapping[str, float]
    "For a fused matrix: what a hook multiplies the outputs of q, k and v by."


def rows_of(plan: Plan, base: Mapping[str, BaseValues], std: float) -> tuple[RecipeRow, ...]:
    """Every parameter of a plan, in its order. `base` holds the tuned values per optimizer.

    Where the layers of one template differ, each parameter has a row of its own.
    """
    templates: dict[str, list[PlannedParameter]] = {}
    for parameter in plan.parameters.values():
        templates.setdefault(parameter.template, []).append(parameter)
    return tuple(row for layers in templates.values() for row in _rows(layers, base, std))


def _rows(
    layers: Sequence[PlannedParameter], base: Mapping[str, BaseValues], std: float
) -> list[RecipeRow]:
    rows = [_row(parameter, base[parameter.optimizer], std) for parameter in layers]
    first = rows[0]
    if any(replace(row, pattern=first.pattern, shape=first.shape) != first for row in rows):
        return rows
    return [replace(first, pattern=layers[0].template, count=len(layers))]


def _row(parameter: PlannedParameter, base: BaseValues, std: float) -> RecipeRow:
    values = base.of(parameter)
    return RecipeRow(
        pattern=parameter.name,
        role=parameter.role,
        count=1,
        shape=parameter.shape,
        optimizer=parameter.optimizer,
        std=std * parameter.init_std if parameter.drawn else None,
        start=None if parameter.drawn else parameter.start,
        lr=values["lr"],
        weight_decay=values["weight_decay"],
        eps=values.get("eps"),
        folded=parameter.folded,
        multiplier=parameter.multiplier,
        rows={block.role: block.multiplier for block in parameter.rows if block.multiplier != 1},
    )
