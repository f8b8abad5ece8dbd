"""Plain PyTorch: a table of patterns, the groups, the initialization and the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupscale.recipes.exports.python import module

if TYPE_CHECKING:
    from mupscale.recipes.recipe import Recipe

_USE = (
    "Needs only torch. Save it as recipe.py, then:",
    "    initialize_(model, seed=0); optimizer, schedule = optimizer_and_schedule(model)",
)


def export(recipe: Recipe) -> str:
    """A module that a training script imports."""
    return module(recipe, "pytorch", use=_USE)
