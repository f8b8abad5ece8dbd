"""Studies written by hand, without training anything."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mupscale.studies import Study, StudyConfig

ROOT = Path(__file__).parent.parent.parent
DENSE = ROOT / "results" / "gqa-dense"

TINY = (
    "hf:llama,hidden_size=64,intermediate_size=96,num_hidden_layers=3,num_attention_heads=8,num_key_value_heads=2,"
    "vocab_size=128,max_position_embeddings=64"
)
"""A Llama like the large ones: r = 4, a gated feed-forward part, a readout of its own."""


def written(folder: Path, config: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]) -> Study:
    """A study with these trials, as if they had been run."""
    study = Study(folder, StudyConfig.from_dict(config))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(study.config.to_toml())
    rows: list[dict[str, Any]] = [{"about": {"study": study.config.identity()}}]
    numbers: dict[str, int] = {}
    for trial in trials:
        number = numbers[trial["cell"]] = numbers.get(trial["cell"], -1) + 1
        values = {"status": "finished", "round": 0, "variant": {}, **trial, "number": number}
        rows.append({"job": f"{trial['cell']}/{number:04d}", "result": values})
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Study.open(folder)


def dense(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Study:
    """The committed table with its trials changed; those that become None are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(DENSE / "study.toml", folder)
    head, *rows = (DENSE / "records.jsonl").read_text().splitlines()
    kept = [json.loads(row) for row in rows]
    changed = [(row, change(row["result"])) for row in kept]
    lines = [json.dumps({**row, "result": result}) for row, result in changed if result is not None]
    (folder / "records.jsonl").write_text("\n".join([head, *lines]) + "\n")
    return Study.open(folder)
