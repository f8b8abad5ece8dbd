"""The statistics of a check: how each follows from a run's norms, what theory predicts, and
whether it is judged.

A run is the dictionary that `run_probe` returns. A statistic has one value per part (or map) and
step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Run = Mapping[str, Any]
Quantity = Literal["r", "width", "depth"]
THIN = ("readout", "router")
"""Roles with a fixed number of outputs: their initial norm, σ(√n_in + √n_out), does not scale
like the spectral target.
"""


@dataclass(frozen=True)
class PartView:
    """One part of one run."""

    run: Run
    index: int

    def __getattr__(self, name: str) -> Any:
        return self.run["parts"][name][self.index]

    def series(self, name: str) -> list[float | None]:
        return [row[self.index] for row in self.run["series"][name]]

    @property
    def is_thin(self) -> bool:
        """Whether one side does not grow, so that the initial norm does not scale like the spectral
        target.
        """
        return self.role in THIN or self.name in self.run.get("thin", ())


@dataclass(frozen=True)
class Statistic:
    """One number per part and step; None or 0 where it was not measured, or nothing moved.

    `predicted` is theory's value, up to a constant; None or 0 if theory has no estimate.
    """

    name: str
    label: str
    measured: Callable[[PartView], Sequence[float | None]]
    predicted: Callable[[PartView], float | None] = lambda _: None
    judged: bool = False
    kinds: tuple[str, ...] = ("matrix", "table")
    roles: tuple[str, ...] = ()
    first_layer: bool = False

    def label_for(self, run: Run, role: str) -> str:
        """The label, with the spectral target in place of the initial norm for thin matrices."""
        thin = "/‖W0‖" in self.label and all(part.is_thin for part in parts(run, self, role))
        return self.label.replace("‖W0‖", "√(n_out/n_in)") if thin else self.label

    def takes(self, kind: str, role: str, layer: int | None) -> bool:
        if kind not in self.kinds or (self.roles and role not in self.roles):
            return False
        return not self.first_layer or layer == 0


def _over(
    name: str, scale: Callable[[PartView], float] = lambda _: 1.0
) -> Callable[[PartView], list[float | None]]:
    """A series of the run, divided by a scale."""

    def measured(part: PartView) -> list[float | None]:
        by = scale(part)
        return [None if value is None or not by else value / by for value in part.series(name)]

    return measured


def update_scale(part: PartView) -> float:
    """The scale of an update: the initial norm, or the spectral target √(n_out/n_in) of a thin
    matrix. A matrix that starts at zero has the initial norm that theory asks for.
    """
    return math.sqrt(part.n_out / part.n_in) if part.is_thin else part.start or part.wanted


def _predicted_update(part: PartView) -> float | None:
    thin = math.sqrt(part.n_out / part.n_in)
    return _ratio(part.predicted_step, thin if part.is_thin else part.predicted_start)


def _ratio(top: float, bottom: float) -> float | None:
    return top / bottom if top and bottom else None


def _expected_scale(part: PartView) -> float:
    """‖A‖_F/√n_in is the root mean square of ‖Ax‖/‖x‖; rows of a table need no such scale."""
    return math.sqrt(part.n_in) if part.kind == "matrix" else 1.0


def _expected_start(part: PartView) -> float:
    """σ√n_out, from the spectral norm σ(√n_out + √n_in)."""
    root = math.sqrt(part.n_out)
    return part.predicted_start * root / (root + math.sqrt(part.n_in))


def _kappa(part: PartView) -> list[float | None]:
    pairs = zip(part.series("step"), part.series("step_frobenius"), strict=True)
    return [_ratio(spectral or 0, frobenius or 0) for spectral, frobenius in pairs]


def _repeats(part: PartView) -> float:
    """‖W⊕‖ = √r ‖W‖, exactly."""
    return math.sqrt(part.repetitions)


_INPUTS = ("query", "key", "value", "mlp_in")
_SHARED = ("key", "value")
_MATRIX = ("matrix",)

_ALL = (
    Statistic("update", "‖ΔW‖/‖W0‖", _over("step", update_scale), _predicted_update, judged=True),
    Statistic(
        "start",
        "‖W0‖/σ(√n_in+√n_out)",
        lambda p: [_ratio(p.start, p.wanted)],
        lambda p: _ratio(p.predicted_start, p.wanted),
        judged=True,
    ),
    Statistic("weight", "‖W0‖", lambda p: [p.start], lambda p: p.predicted_start),
    Statistic("step", "‖ΔW‖", _over("step"), lambda p: p.predicted_step),
    Statistic("total", "‖W−W0‖/‖W0‖", _over("moved", update_scale), _predicted_update),
    Statistic("moved", "‖W−W0‖", _over("moved"), lambda p: p.predicted_step),
    Statistic(
        "expected",
        "‖ΔW‖_E",
        _over("step_frobenius", _expected_scale),
        lambda p: p.predicted_step / _expected_scale(p),
    ),
    Statistic(
        "expected-weight",
        "‖W0‖_E",
        lambda p: [p.start_frobenius / _expected_scale(p)],
        _expected_start,
        kinds=_MATRIX,
    ),
    Statistic(
        "repeated",
        "‖ΔW⊕‖",
        _over("step", lambda p: 1 / _repeats(p)),
        lambda p: p.predicted_step * _repeats(p),
        roles=_SHARED,
    ),
    Statistic(
        "repeated-weight",
        "‖W0⊕‖",
        lambda p: [p.start * _repeats(p)],
        lambda p: p.predicted_start * _repeats(p),
        roles=_SHARED,
    ),
    Statistic(
        "repeated-expected",
        "‖ΔW⊕‖_E",
        _over("step_frobenius", lambda p: _expected_scale(p) / _repeats(p)),
        lambda p: p.predicted_step * _repeats(p) / _expected_scale(p),
        roles=_SHARED,
    ),
    Statistic("vector", "RMS(Δ)", _over("step"), lambda p: p.predicted_step, kinds=("vector",)),
    Statistic("h", "‖h‖", _over("h")),
    Statistic("dh", "‖Δh‖", _over("dh")),
    Statistic("dw_x", "‖ΔW·x‖", _over("dw_x"), kinds=_MATRIX),
    Statistic("w_dx", "‖W·Δx‖", _over("w_dx"), kinds=_MATRIX),
    Statistic(
        "first-layer",
        "‖ΔW·x‖, first layer",
        _over("dw_x"),
        # A coherent step is aligned with its inputs: ‖ΔW·x‖ = ‖ΔW‖‖x‖.
        lambda p: p.predicted_step * math.sqrt(p.n_in / p.n_out),
        roles=_INPUTS,
        first_layer=True,
    ),
    Statistic("coherence", "κ = ‖ΔW‖/‖ΔW‖_F", _kappa, lambda _: 1.0, kinds=_MATRIX),
)
STATISTICS: Mapping[str, Statistic] = {one.name: one for one in _ALL}
"""All statistics by name, judged ones first."""

MAPS: Mapping[str, str] = {
    "attention": "L × ‖φ(x)‖/‖x‖",
    "mlp": "L × ‖φ(x)‖/‖x‖",
    "block": "‖φ(x)‖/‖x‖",
    "stream": "‖x_L‖/‖x_0‖",
}
"""The maps inside a block, the block, and the stack of all blocks. Each of L branches may add a
share of 1/L to the stream.
"""
ONLY_GROWTH = ("block", "stream")
"""Both tend to 1 from above as branches shrink, so only growth is a failure."""


def with_thin(runs: Sequence[Run], quantity: Quantity) -> list[Run]:
    """The runs, with the names of matrices of which only one side grows with the width.

    The two factors of an adapter are examples. Keys and values are not included: the scale of
    their updates is their initial norm.
    """
    if quantity != "width":
        return list(runs)
    sizes: dict[str, set[tuple[int, int]]] = {}
    for run in runs:
        columns = (run["parts"][name] for name in ("name", "kind", "role", "n_out", "n_in"))
        for name, kind, role, n_out, n_in in zip(*columns, strict=True):
            if kind == "matrix" and role not in _SHARED:
                sizes.setdefault(name, set()).add((n_out, n_in))

    def grows(name: str, side: int) -> bool:
        return len({size[side] for size in sizes[name]}) > 1

    thin = [name for name in sizes if grows(name, 0) != grows(name, 1)]
    return [{**run, "thin": thin} for run in runs] if thin else list(runs)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def parts(run: Run, statistic: Statistic, role: str | None = None) -> list[PartView]:
    """The parts that a statistic applies to, in the order of the model."""
    columns = zip(run["parts"]["kind"], run["parts"]["role"], run["parts"]["layer"], strict=True)
    return [
        PartView(run, index)
        for index, (kind, its_role, layer) in enumerate(columns)
        if role in (None, its_role) and statistic.takes(kind, its_role, layer)
    ]


def by_role(run: Run, statistic: Statistic) -> dict[str, list[float]]:
    """`by_step` of each role, in the order of the model."""
    columns: dict[str, list[Sequence[float | None]]] = {}
    for part in parts(run, statistic):
        columns.setdefault(part.role, []).append(statistic.measured(part))
    return {role: _over_layers(several) for role, several in columns.items()}


def by_step(run: Run, statistic: Statistic, role: str) -> list[float]:
    """The geometric mean over layers at each step, starting at the first step at which all parts
    that move are moving.

    Behind a projection that starts at zero there is no gradient at first, and nothing moves.
    """
    return _over_layers([statistic.measured(part) for part in parts(run, statistic, role)])


def _over_layers(columns: Sequence[Sequence[float | None]]) -> list[float]:
    starts = [next((k for k, v in enumerate(column) if v), len(column)) for column in columns]
    moving = [
        (start, column)
        for start, column in zip(starts, columns, strict=True)
        if start < len(column) and all(column[start:])
    ]
    first = max((start for start, _ in moving), default=0)
    steps = zip(*(column[first:] for _, column in moving), strict=True)
    return [geometric_mean([value for value in layers if value]) for layers in steps]


def predicted(run: Run, statistic: Statistic, role: str) -> float | None:
    """The geometric mean over layers; None if theory has no estimate."""
    found = [statistic.predicted(p) for p in parts(run, statistic, role)]
    known = [value for value in found if value]
    return geometric_mean(known) if known and len(known) == len(found) else None


def map_by_step(run: Run, name: str) -> list[float]:
    """The geometric mean over blocks before the first and after each step; for the stream, its
    growth.
    """
    rows = run["maps"].get(name, [])
    # Branches may start at zero.
    rows = rows[next((k for k, row in enumerate(rows) if all(row)), len(rows)) :]
    if not all(value for row in rows for value in row):  # a branch whose output is zero
        return []
    if name == "stream":
        return [row[-1] / row[0] for row in rows]
    factor = run["depth"] if MAPS[name].startswith("L") else 1
    return [factor * geometric_mean(row) for row in rows]


def predicted_map(run: Run, name: str) -> float | None:
    return run["depth"] * run["beta"] if MAPS[name].startswith("L") else None


def random_coherence(n_out: int, n_in: int) -> float:
    """‖N‖/‖N‖_F of a matrix of independent noise (Bai & Yin); 1 for a matrix of rank one.

    It grows with r: fewer rows leave noise less room to spread.

    >>> round(random_coherence(768, 768), 3), round(random_coherence(64, 768), 3)
    (0.072, 0.161)
    """
    return (math.sqrt(n_in) + math.sqrt(n_out)) / math.sqrt(n_in * n_out)


def noise_coherence(run: Run, role: str) -> float:
    """κ of a role if its updates were independent noise."""
    found = [random_coherence(p.n_out, p.n_in) for p in parts(run, STATISTICS["coherence"], role)]
    return geometric_mean(found)
