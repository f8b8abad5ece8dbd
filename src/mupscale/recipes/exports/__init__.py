"""Exports: a recipe as code or settings for a trainer, one module per trainer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mupscale.errors import UnknownNameError

if TYPE_CHECKING:
    from mupscale.recipes.recipe import Recipe

KINDS = ("pytorch", "transformers", "lightning", "torchtitan", "megatron", "json")


def export(recipe: Recipe, kind: str) -> str:
    """The text of a file for this trainer."""
    if kind not in KINDS:
        raise UnknownNameError("export", kind, KINDS)
    module = importlib.import_module(f"mupscale.recipes.exports.for_{kind}")
    return module.export(recipe)
