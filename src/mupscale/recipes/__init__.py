"""Recipes: from a study to the numbers for a target, how sure they are, and exports to trainers."""

from mupscale.recipes.recipe import Recipe
from mupscale.recipes.transferring import transfer

__all__ = ["Recipe", "transfer"]
