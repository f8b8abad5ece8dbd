"""The report of a study as one HTML file."""

from mupscale.reports.page.building import study_page
from mupscale.reports.page.checks import read_check
from mupscale.reports.page.data import CheckSummary, PageData, RecipeView, StudyProgress

__all__ = ["CheckSummary", "PageData", "RecipeView", "StudyProgress", "read_check", "study_page"]
