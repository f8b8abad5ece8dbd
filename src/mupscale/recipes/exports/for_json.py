"""JSON: the recipe with its whole plan, for tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mupscale.recipes.recipe import Recipe


def export(recipe: Recipe) -> str:
    """The recipe; `mupscale.Plan.from_json` reads its `whole_plan`."""
    content = recipe.to_dict() | {"whole_plan": json.loads(recipe.plan.to_json())}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
