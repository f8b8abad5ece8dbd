"""Recipes: from a study to the numbers for a target, how certain they are, and exports."""

from mupscale.recipes.options import TargetRun, TunedBase
from mupscale.recipes.recipe import Recipe
from mupscale.recipes.transferring import transfer

__all__ = ["Recipe", "TargetRun", "TunedBase", "transfer"]
