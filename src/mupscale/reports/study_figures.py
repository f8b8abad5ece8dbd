"""All figures and tables of a study as files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mupscale.analysis.families import StudyAnalysis
from mupscale.analysis.measurements import Measurement
from mupscale.reports.curves import curve_panels, draw_curves
from mupscale.reports.maps import draw_maps, map_grids
from mupscale.reports.parquet import require_parquet
from mupscale.reports.saving import FORMATS, save_figure
from mupscale.reports.sensitivity import draw_sensitivity
from mupscale.reports.style import Look
from mupscale.reports.tables import save_table, study_tables

if TYPE_CHECKING:
    from mupscale.studies.sensitivity import Sensitivity


def save_study_figures(
    analysis: StudyAnalysis,
    runs: Sequence[Measurement],
    folder: Path,
    formats: Sequence[str] = FORMATS,
    sensitivity: Sequence["Sensitivity"] = (),
) -> list[Path]:
    """Save what the runs allow: loss against rate, maps of two parameters, the sensitivity of a
    paired search, and every table.

    Without runs, no file is written.
    """
    require_parquet()
    paths: list[Path] = []
    looks: Look = {"axis": analysis.axis, "confidence": analysis.confidence}
    if panels := curve_panels(analysis, runs):
        paths += save_figure(draw_curves(panels, **looks), folder / "loss-by-lr", formats)
    for grid in map_grids(analysis, runs):
        name = f"map-lr-{grid.names[1].replace('_', '-')}"
        paths += save_figure(draw_maps(grid, **looks), folder / name, formats)
    if any(row.points for row in sensitivity):
        title = "Loss around the best point, paired by seed, with 95 % intervals"
        paths += save_figure(
            draw_sensitivity(sensitivity, title=title), folder / "sensitivity", formats
        )
    for name, rows in study_tables(analysis, runs).items():
        if rows:
            paths += save_table(rows, folder / name)
    return paths
