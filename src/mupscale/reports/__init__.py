"""Reports: pictures and files, drawn from plain data."""

from mupscale.reports.bands import Band, draw_bands
from mupscale.reports.checks import check_panels, draw_check, draw_verdicts, save_findings, save_pictures
from mupscale.reports.panels import Line, Panel, draw_panels
from mupscale.reports.saving import save_csv, save_figure
from mupscale.reports.slopes import SlopeBar, draw_slopes

__all__ = [
    "Band",
    "Line",
    "Panel",
    "SlopeBar",
    "check_panels",
    "draw_bands",
    "draw_check",
    "draw_panels",
    "draw_slopes",
    "draw_verdicts",
    "save_csv",
    "save_figure",
    "save_findings",
    "save_pictures",
]
