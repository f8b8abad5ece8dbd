"""Assignments for tests, and what every result must be."""

import json
from pathlib import Path
from typing import Any

from mupscale.studies.config import Trainer
from mupscale.studies.trainers import TrialAssignment

NEVER = {"shares": [0.0, 1.0], "losses": [100.0, 100.0], "far": 1.0}
HALFWAY = {"shares": [0.0, 1.0], "losses": [0.1, 0.0], "far": 1.0}
FIELDS = {
    *("status", "loss", "train_loss", "step", "steps"),
    *("tokens", "curve", "seconds", "error", "attempts"),
}


def assigned(root: Path, trainer: Trainer | None, /, **changes: Any) -> TrialAssignment:
    values: dict[str, Any] = {
        "trial": "mup.n_kv_heads-3/0007",
        "rule": "mup",
        "variant": {"n_kv_heads": 3},
        "seed": 5,
        "params": {"lr": 2**-7},
        "folder": str(root / "trials" / "mup.n_kv_heads-3" / "0007"),
        "trainer": trainer,
    }
    return TrialAssignment(**values | changes)


def strict(result: dict) -> dict:
    assert set(result) == FIELDS
    json.dumps(result, allow_nan=False)
    assert len(result["curve"]) <= 64
    return result
