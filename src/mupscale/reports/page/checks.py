"""The summary of a coordinate check, read from its folder."""

import json
from pathlib import Path
from typing import Any

from mupscale.errors import OptionError, StorageError
from mupscale.records import read_lines
from mupscale.reports.page.data import CheckSummary

_NEEDED = ("label", "role", "judged", "slope", "low", "high", "verdict")


def read_check(folder: Path) -> CheckSummary:
    """Of a folder that `mupscale check` wrote."""
    path = folder / "findings.jsonl"
    if not path.is_file():
        raise OptionError(
            f"{folder} holds no coordinate check: {path.name} is not there. mupscale check makes "
            "one."
        )
    rows, _ = read_lines(path)
    if any(name not in row for row in rows for name in _NEEDED):
        raise StorageError(
            f"{path} is not what mupscale check writes: a row lacks one of {', '.join(_NEEDED)}."
        )
    judged = [row for row in rows if row["judged"]]
    about = _about(folder / "runs.jsonl")
    rule = about.get("rule")
    return CheckSummary(
        name=folder.name,
        rule=str(rule.get("name", "")) if isinstance(rule, dict) else "",
        quantity=_axis(str(about.get("vary", ""))),
        verdict=_verdict([str(row["verdict"]) for row in judged]),
        findings=judged,
    )


def _about(path: Path) -> dict[str, Any]:
    """What was checked: the first line of the runs, which may have been left behind."""
    try:
        with path.open(encoding="utf-8") as file:
            about = json.loads(file.readline() or "{}").get("about", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return about if isinstance(about, dict) else {}


def _axis(vary: str) -> str:
    """Slopes over key/value heads are given in the repetitions r."""
    return {"n_kv_heads": "r", "": "the size"}.get(vary, vary)


def _verdict(verdicts: list[str]) -> str:
    """Of the check, from those of its slopes.

    >>> _verdict(["pass", "fail"]), _verdict(["pass"]), _verdict([])
    ('fail', 'pass', 'inconclusive')
    """
    if "fail" in verdicts:
        return "fail"
    return "pass" if set(verdicts) == {"pass"} else "inconclusive"
