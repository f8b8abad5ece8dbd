"""What measurements say: slopes, optima and surfaces with intervals, transfer over a family.
Without torch.
"""

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import StudyAnalysis, analyse
from mupscale.analysis.measurements import Measurement, Member
from mupscale.analysis.optima import Optimum, fit_optimum
from mupscale.analysis.slopes import Slope, curve_slope, fit_slope
from mupscale.analysis.surfaces import Surface, fit_surface
from mupscale.analysis.timescales import decay_of_tau, effective_tau, tau_epoch
from mupscale.analysis.verdicts import Flatness, Verdict, judge_flatness

__all__ = [
    "Estimate",
    "Flatness",
    "Measurement",
    "Member",
    "Optimum",
    "Slope",
    "StudyAnalysis",
    "Surface",
    "Verdict",
    "analyse",
    "curve_slope",
    "decay_of_tau",
    "effective_tau",
    "fit_optimum",
    "fit_slope",
    "fit_surface",
    "judge_flatness",
    "tau_epoch",
]
