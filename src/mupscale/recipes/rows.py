"""The plan with numbers: one row a parameter template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mupscale.planning import Plan, PlannedParameter
from mupscale.planning.groups import BaseValues


@dataclass(frozen=True)
class RecipeRow:
    """What the parameters of one template get; `*` in `pattern` stands for the number of the layer.

    `std` is None for what is not drawn, `start` for what is; both are None for what stays as the
    model made it. `folded` is the factor of the forward pass that is in the values, `multiplier`
    the one that a hook must apply.
    """

    pattern: str
    role: str
    count: int
    shape: tuple[int, ...]
    optimizer: str
    std: float | None
    start: float | None
    lr: float
    weight_decay: float
    eps: float | None
    folded: float
    multiplier: float
    rows: Mapping[str, float]
    "Of a fused matrix: what a hook multiplies the outputs of q, k and v by."

    @property
    def numbers(self) -> tuple[float | None, ...]:
        return self.std, self.start, self.lr, self.weight_decay, self.eps


def rows_of(plan: Plan, base: Mapping[str, BaseValues], std: float) -> tuple[RecipeRow, ...]:
    """Every parameter of a plan, in its order. `base` holds the tuned values of each of its
    optimizers.

    Where layers of one template differ, each parameter has a row of its own.
    """
    grouped: dict[str, list[PlannedParameter]] = {}
    for parameter in plan.parameters.values():
        grouped.setdefault(parameter.template, []).append(parameter)
    return tuple(row for group in grouped.values() for row in _rows(group, base, std))


def _rows(
    group: Sequence[PlannedParameter], base: Mapping[str, BaseValues], std: float
) -> list[RecipeRow]:
    alike = [_row(p, p.template, len(group), base, std) for p in group]
    if (
        len({(row.numbers, row.folded, row.multiplier, tuple(row.rows.items())) for row in alike})
        == 1
    ):
        return alike[:1]
    return [_row(parameter, parameter.name, 1, base, std) for parameter in group]


def _row(
    p: PlannedParameter, pattern: str, count: int, base: Mapping[str, BaseValues], std: float
) -> RecipeRow:
    values = base[p.optimizer].of(p)
    return RecipeRow(
        pattern=pattern,
        role=p.role,
        count=count,
        shape=p.shape,
        optimizer=p.optimizer,
        std=std * p.init_std if p.drawn else None,
        start=None if p.drawn else p.start,
        lr=values["lr"],
        weight_decay=values["weight_decay"],
        eps=values.get("eps"),
        folded=p.folded,
        multiplier=p.multiplier,
        rows={block.role: block.multiplier for block in p.rows if block.multiplier != 1},
    )
