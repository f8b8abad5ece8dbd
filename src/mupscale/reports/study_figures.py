"""All figures and tables of a study as files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mupscale.analysis.families import StudyAnalysis
from mupscale.analysis.measurements import Measurement
from mupscale.reports.curves import curve_panels, draw_curves
from mupscale.reports.maps import draw_maps, map_grids
from mupscale.reports.parquet import require_parquet
from mupscale.reports.saving import save_figure
from mupscale.reports.tables import save_table, study_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


def save_study_figures(
    analysis: StudyAnalysis,
    runs: Sequence[Measurement],
    folder: Path,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Save what the runs allow: loss against rate, maps of two parameters, and every table.

    Without runs, no file is written.
    """
    require_parquet()
    paths: list[Path] = []
    for name, figure in _figures(analysis, runs):
        paths += save_figure(figure, folder / name, formats)
    for name, rows in study_tables(analysis, runs).items():
        if rows:
            paths += save_table(rows, folder / name)
    return paths


def _figures(
    analysis: StudyAnalysis, runs: Sequence[Measurement]
) -> "Iterator[tuple[str, Figure]]":
    panels = curve_panels(analysis, runs)
    if panels:
        yield "loss-by-lr", draw_curves(panels, axis=analysis.axis, confidence=analysis.confidence)
    for grid in map_grids(analysis, runs):
        name = f"map-lr-{grid.names[1].replace('_', '-')}"
        yield name, draw_maps(grid, axis=analysis.axis, confidence=analysis.confidence)
