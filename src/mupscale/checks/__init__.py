"""Checks: train for a few steps at several sizes, and say whether a rule holds on this model."""

from mupscale.checks.check import coordinate_check, judge
from mupscale.checks.curves import Curve, curves
from mupscale.checks.judging import Coherence, Criteria, Finding
from mupscale.checks.probe import Setup
from mupscale.checks.result import CheckResult

__all__ = ["CheckResult", "Coherence", "Criteria", "Curve", "Finding", "Setup", "coordinate_check", "curves", "judge"]
