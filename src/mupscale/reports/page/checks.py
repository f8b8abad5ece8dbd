"""The summary of a coordinate check, read from its folder."""

import json
from pathlib import Path
from typing import Any

from mupscale.errors import OptionError, StorageError
from mupscale.records import read_lines
from mupscale.reports.page.data import CheckSummary

_NEEDED = ("label", "role", "judged", "slope", "low", "high", "verdict")


def read_check(folder: Path) -> CheckSummary:
    """Read a folder that `mupscale check` wrote."""
    path = folder / "findings.jsonl"
    if not path.is_file():
        raise OptionError(
            f"{folder} holds no coordinate check: {path.name} is missing. Run mupscale check."
        )
    rows, _ = read_lines(path)
    if any(name not in row for row in rows for name in _NEEDED):
        raise StorageError(
            f"{path} was not written by mupscale check: a row lacks one of {', '.join(_NEEDED)}."
        )
    judged = [row for row in rows if row["judged"]]
    about = _about(folder / "runs.jsonl")
    rule = about.get("rule")
    return CheckSummary(
        name=folder.name,
        rule=str(rule.get("name", "")) if isinstance(rule, dict) else "",
        # Slopes over key/value heads are slopes in r.
        quantity={"n_kv_heads": "r", "": "the size"}.get(vary := str(about.get("vary", "")), vary),
        verdict=_verdict([str(row["verdict"]) for row in judged]),
        findings=judged,
    )


def _about(path: Path) -> dict[str, Any]:
    """What was checked: the first line of the runs, if that file is there."""
    try:
        with path.open(encoding="utf-8") as file:
            about = json.loads(file.readline() or "{}").get("about", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return about if isinstance(about, dict) else {}


def _verdict(verdicts: list[str]) -> str:
    """The verdict on the check, from those on its slopes.

    >>> _verdict(["pass", "fail"]), _verdict(["pass"]), _verdict([])
    ('fail', 'pass', 'inconclusive')
    """
    if "fail" in verdicts:
        return "fail"
    return "pass" if set(verdicts) == {"pass"} else "inconclusive"
