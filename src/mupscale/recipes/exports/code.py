"""Pieces of generated Python: literals, formatted calls, and the docstring at the top."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mupscale.errors import NotExactError, OptionError
from mupscale.recipes import showing
from mupscale.recipes.inert import for_docstring
from mupscale.theory import optimizer_named

if TYPE_CHECKING:
    from mupscale.recipes.recipe import Recipe
    from mupscale.recipes.rows import RecipeRow

LINE = 100
"""Longest generated line, unless a single name is longer."""

_EXPORTED = ("adamw", "adam")


def refuse_inexact(recipe: Recipe, kind: str) -> None:
    """Raise for a recipe that parameter groups alone cannot express."""
    elsewhere = (
        "Apply recipe.plan with mupscale (plan.initialize_, plan.param_groups), or export json."
    )
    if recipe.plan.optimizer not in _EXPORTED:
        raise OptionError(
            f"the study trained with {recipe.plan.optimizer}; the export {kind} supports AdamW "
            f"and Adam. {elsewhere}"
        )
    if recipe.plan.hooks:
        raise NotExactError(
            f"the plan needs {len(recipe.plan.hooks)} hooks in the forward pass, the first on "
            f"{recipe.plan.hooks[0].module}, which the export {kind} cannot express. {elsewhere}"
        )
    if recipe.unknown:  # a file that a trainer runs needs every number
        raise OptionError(
            f"the export {kind} needs values that are not known: {recipe.request} Or export json, "
            "where they are null."
        )


def optimizer_class(recipe: Recipe) -> str:
    return optimizer_named(recipe.plan.optimizer).torch_class.rpartition(".")[2]


def string(words: str) -> str:
    """A literal in double quotes where Python's own repr allows.

    >>> print(string("model.norm.weight"), string('"; evil()'))
    "model.norm.weight" '"; evil()'
    """
    plain = repr(words)
    return (
        f'"{plain[1:-1]}"' if '"' not in plain and "\\'" not in plain and plain[0] == "'" else plain
    )


def raw_string(pattern: str) -> str:
    assert '"' not in pattern
    assert pattern.isprintable()
    return f'r"{pattern}"'


def call(
    head: str, arguments: Mapping[str, object] | Sequence[str], tail: str = "", indent: int = 0
) -> list[str]:
    """The lines of a call: one line if it fits, else the arguments on the next, or one per line.

    >>> call("x = f", {"a": 1, "b": 2.5})
    ['x = f(a=1, b=2.5)']
    """
    given = (
        [f"{k}={v!r}" for k, v in arguments.items()]
        if isinstance(arguments, Mapping)
        else list(arguments)
    )
    space, within = " " * indent, " " * (indent + 4)
    whole = f"{space}{head}({', '.join(given)}){tail}"
    if len(whole) <= LINE:
        return [whole]
    inside = f"{within}{', '.join(given)}"
    lines = [inside] if len(inside) <= LINE else [f"{within}{argument}," for argument in given]
    return [f"{space}{head}(", *lines, f"{space}){tail}"]


def docstring(recipe: Recipe, use: Sequence[str]) -> str:
    """Where the numbers come from, how certain they are, and how to use the file."""
    import mupscale

    title, *facts = showing.summary(recipe)
    values = [line for line in showing.values_table(recipe)[1:] if line[1]]
    paragraphs = [
        f"{title}. Written by mupscale {mupscale.__version__}.",
        *facts,
        "Base values: "
        + "; ".join(f"{name} {value} ({_note(rest)})" for name, value, *rest in values)
        + ".",
    ]
    lines = [line for words in paragraphs for line in (*textwrap.wrap(_plain(words), LINE - 3), "")]
    if recipe.risks:
        risks = (part for risk in recipe.risks for part in _bullet(risk))
        lines += ["What may go wrong:", *risks, ""]
    lines += [line for words in use for line in (*_kept(words), "")]
    return '"""' + "\n".join(lines[:-1]) + '\n"""'


def _note(cells: Sequence[str]) -> str:
    interval, _, source = cells
    return f"{source}, interval {interval}" if interval else source


def _plain(words: str) -> str:
    return for_docstring(words, 4000)


def _bullet(words: str) -> list[str]:
    return textwrap.wrap(
        f"{_plain(words).rstrip('.')}.", LINE, initial_indent="- ", subsequent_indent="  "
    )


def _kept(words: str) -> list[str]:
    """A paragraph, or a line of code that begins with spaces."""
    return [words] if words.startswith("    ") else textwrap.wrap(_plain(words), LINE)


def table(rows: Sequence[RecipeRow], *, folded: bool = False) -> str:
    """The patterns of a recipe with their exact values."""
    lines: list[str] = []
    for row in rows:
        names = ["std", "start", "lr", "weight_decay", "eps"]
        names += ["folded"] if folded and row.folded != 1 else []
        values = {name: value for name in names if (value := getattr(row, name)) is not None}
        lines += call(f"{string(row.pattern)}: Row", values, ",", indent=4)
    return "\n".join(["TABLE = {", *lines, "}"])
