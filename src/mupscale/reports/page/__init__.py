"""The report of a study as one HTML file, from plain data."""

from mupscale.reports.page.building import study_page
from mupscale.reports.page.checks import read_check
from mupscale.reports.page.data import CheckSummary, PageData, Progress, RecipeView

__all__ = ["CheckSummary", "PageData", "Progress", "RecipeView", "read_check", "study_page"]
