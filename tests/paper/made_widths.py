"""Records of studies whose answers are known: parabolas with a stated optimum."""

import json
import math
from collections.abc import Callable
from pathlib import Path

from mupscale.paper.width import EXPERIMENT
from mupscale.studies import Study, StudyConfig
from mupscale.studies.config import Cell
from mupscale.studies.searching import grid

BEST = -6.5
Loss = Callable[[str, int, int, float], float | None]
"""Rule, width, seed and log2 of the rate; None is a run that diverged."""


CellLoss = Callable[[Cell, int, float], float | None]
"""Cell, seed and log2 of the rate; None is a run that diverged."""


def write_part(config: StudyConfig, folder: Path, loss: Loss, runs: int | None = None) -> None:
    """Of the width study: the first `runs` runs of each cell, or all of them."""

    def of_cell(cell: Cell, seed: int, rate: float) -> float | None:
        return loss(cell.rule_name, cell.dimensions["width"], seed, rate)

    write_cells(config, folder, of_cell, runs)


def write_cells(
    config: StudyConfig,
    folder: Path,
    loss: CellLoss,
    runs: int | None = None,
    parameter: str = "lr",
) -> None:
    """The first `runs` runs of each cell, or all of them. The loss depends on one parameter."""
    Study.create(config, folder)
    lines = [json.dumps({"about": {"study": config.identity()}})]
    for cell in config.cells():
        points = grid(cell.space, config.seeds, config.search.step)
        for number, point in enumerate(points[:runs]):
            found = loss(cell, point.seed, math.log2(point.params[parameter]))
            result = {
                "cell": cell.name,
                "rule": cell.rule_name,
                "variant": cell.variant,
                "number": number,
                "round": 0,
                "seed": point.seed,
                "params": dict(point.params),
                "status": "diverged" if found is None else "finished",
                "loss": found,
                "step": 300,
                "steps": 300,
                "tokens": 614400,
            }
            lines.append(json.dumps({"job": f"{cell.name}/{number:04d}", "result": result}))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_widths(folder: Path, loss: Loss, *, last: bool = True) -> None:
    """Every part; without `last`, not the runs at the base's best rate."""
    for name, config in EXPERIMENT.parts_at("cpu", BEST).items():
        if last or "at" not in name:
            write_part(config, folder / name, loss)
