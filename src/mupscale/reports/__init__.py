"""Reports: figures and files from plain data."""

from mupscale.reports.bands import Band, draw_bands
from mupscale.reports.checks import (
    check_panels,
    draw_check,
    draw_verdicts,
    save_findings,
    save_pictures,
)
from mupscale.reports.curves import CurvePanel, RateCurve, curve_panels, draw_curves
from mupscale.reports.maps import LossMap, MapGrid, draw_maps, map_grids
from mupscale.reports.panels import Line, Panel, draw_panels
from mupscale.reports.saving import save_csv, save_figure
from mupscale.reports.slopes import SlopeBar, draw_slopes
from mupscale.reports.study_figures import save_study_figures
from mupscale.reports.tables import save_table, study_tables

__all__ = [
    "Band",
    "CurvePanel",
    "Line",
    "LossMap",
    "MapGrid",
    "Panel",
    "RateCurve",
    "SlopeBar",
    "check_panels",
    "curve_panels",
    "draw_bands",
    "draw_check",
    "draw_curves",
    "draw_maps",
    "draw_panels",
    "draw_slopes",
    "draw_verdicts",
    "map_grids",
    "save_csv",
    "save_figure",
    "save_findings",
    "save_pictures",
    "save_study_figures",
    "save_table",
    "study_tables",
]
