"""Exports: a recipe as code or settings for a trainer, one module per trainer, or as JSON."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING

from mupscale.errors import UnknownNameError

if TYPE_CHECKING:
    from mupscale.recipes.recipe import Recipe

KINDS = ("pytorch", "transformers", "lightning", "torchtitan", "megatron", "json")


def export(recipe: Recipe, kind: str) -> str:
    """The text of a file for this trainer. `mupscale.Plan.from_json` reads the `whole_plan` of
    JSON.
    """
    if kind not in KINDS:
        raise UnknownNameError("export", kind, KINDS)
    if kind == "json":
        content = recipe.to_dict() | {"whole_plan": json.loads(recipe.plan.to_json())}
        return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    return importlib.import_module(f"mupscale.recipes.exports.for_{kind}").export(recipe)
