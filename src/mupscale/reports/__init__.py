"""Reports: pictures and files, drawn from plain data."""

from mupscale.reports.bands import Band, draw_bands
from mupscale.reports.saving import save_csv, save_figure

__all__ = ["Band", "draw_bands", "save_csv", "save_figure"]
