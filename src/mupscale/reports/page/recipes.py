"""A recipe as the page shows it."""

from typing import TYPE_CHECKING

from mupscale.reports.page.data import RecipeView

if TYPE_CHECKING:
    from mupscale.recipes import Recipe

COLUMNS = 110
"""Width of the whole recipe in the page, which scrolls where the window is narrower."""


def recipe_view(recipe: "Recipe") -> RecipeView:
    """The same facts and tables as the recipe's text; the values per parameter stay folded."""
    from mupscale.recipes import showing

    title, *facts = showing.summary(recipe)
    headings, *values = showing.values_table(recipe)
    # Weight decay carried over in other ways: over many more steps they differ a lot.
    others = [line for line in showing.decay_table(recipe)[1:] if not line[0].startswith("→")]
    for place, (way, value, *interval, origin) in enumerate(others, start=2):
        words = [f"or with --decay {way.strip()}", value, *(interval or [""]), "", origin]
        values.insert(place, words)
    return RecipeView(
        title=title,
        headings=headings,
        rows=values,
        run=showing.run_table(recipe),
        notes=[*facts, *([f"Not known: {recipe.request}"] if recipe.request else [])],
        warnings=recipe.risks,
        text=recipe.to_text(COLUMNS),
    )


def no_recipe(target: str, reason: str) -> RecipeView:
    """For a study without an optimum."""
    return RecipeView(title=f"No recipe for {target}", notes=[f"{reason[:1].upper()}{reason[1:]}"])
