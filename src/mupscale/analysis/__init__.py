"""What measurements say: the slope of a statistic, its interval at a few seeds, and whether it is flat."""

from mupscale.analysis.slopes import Slope, curve_slope, fit_slope
from mupscale.analysis.verdicts import Flatness, Verdict, judge_flatness

__all__ = ["Flatness", "Slope", "Verdict", "curve_slope", "fit_slope", "judge_flatness"]
