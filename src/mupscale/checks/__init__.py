"""Checks: train for a few steps at several sizes, and judge whether a rule holds on this model.

Judging needs no torch, so names are imported when they are used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mupscale.checks.charting import NormCurve, curves
    from mupscale.checks.check import Running, coordinate_check, judge
    from mupscale.checks.judging import Coherence, Criteria, Finding
    from mupscale.checks.probe import Setup
    from mupscale.checks.result import CheckResult

_HOME_OF = {
    "CheckResult": "result",
    "Coherence": "judging",
    "Criteria": "judging",
    "NormCurve": "charting",
    "Finding": "judging",
    "Running": "check",
    "Setup": "probe",
    "coordinate_check": "check",
    "curves": "charting",
    "judge": "check",
}

__all__ = [
    "CheckResult",
    "Coherence",
    "Criteria",
    "NormCurve",
    "Finding",
    "Running",
    "Setup",
    "coordinate_check",
    "curves",
    "judge",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"mupscale.checks.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'mupscale.checks' has no attribute {name!r}")
