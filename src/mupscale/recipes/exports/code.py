"""Pieces of generated Python: literals, calls laid out as a formatter would, and the docstring on
top.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mupscale.errors import NotExactError, OptionError
from mupscale.recipes.inert import for_docstring
from mupscale.theory import optimizer_named

if TYPE_CHECKING:
    from mupscale.recipes.recipe import Recipe
    from mupscale.recipes.rows import RecipeRow

LINE = 100
"""Generated lines are at most this long, where no name is longer."""

_EXPORTED = ("adamw", "adam")


def refuse_inexact(recipe: Recipe, kind: str) -> None:
    """What groups of parameters cannot say is refused, rather than left out."""
    elsewhere = "Apply recipe.plan with mupscale itself (plan.initialize_, plan.param_groups), or export json."
    if recipe.plan.optimizer not in _EXPORTED:
        raise OptionError(
            f"the study trained with {recipe.plan.optimizer}; the export {kind} knows AdamW. "
            f"{elsewhere}"
        )
    if recipe.plan.hooks:
        raise NotExactError(
            f"the plan needs {len(recipe.plan.hooks)} hooks in the forward pass, the first on "
            f"{recipe.plan.hooks[0].module}, which the export {kind} cannot carry. {elsewhere}"
        )
    if recipe.unknown:  # a file that a trainer runs needs every number
        raise OptionError(
            f"the export {kind} needs numbers that are not known: {recipe.request} Or export json, "
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
    """The lines of a call: on one line if it fits, its arguments on the next if they do, or one on
    each.

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
    """Where the numbers come from, how sure they are, and how the file is used."""
    import mupscale

    evidence = recipe.evidence
    power = f"2^{recipe.log2_lr.value:.2f}"
    bounds = (
        f"[{recipe.lr.low:.4g}, {recipe.lr.high:.4g}]" if recipe.lr.bounded else "without bounds"
    )
    decay, way = (
        recipe.weight_decay,
        "its value" if recipe.decay.chosen == "wd" else "its time scale",
    )
    assert recipe.eps is not None  # what takes none, or is not known, was refused
    paragraphs = [
        f"Training recipe for {for_docstring(recipe.target)}, written by mupscale "
        f"{mupscale.__version__}.",
        f"From the study {for_docstring(evidence.study)}, rule {for_docstring(recipe.rule)}: "
        f"{evidence.runs} runs, "
        f"{len(evidence.members)} models, seeds {', '.join(map(str, evidence.seeds))}.",
        f"Base rate {recipe.lr.value:.4g} = {power}, {100 * evidence.confidence:g} % interval "
        f"{bounds} if the target "
        f"is one more of these models. Base weight decay {decay.value:.4g} ({decay.source}; "
        f"carried over by {way}), "
        f"eps {recipe.eps.value:.4g} ({recipe.eps.source}), init std {recipe.std.value:.4g} "
        f"({recipe.std.source}).",
    ]
    if recipe.doubts:
        paragraphs.append("INCONCLUSIVE, do not train with it: " + "; ".join(recipe.doubts) + ".")
    lines = [line for words in paragraphs for line in (*textwrap.wrap(_plain(words), LINE - 3), "")]
    if recipe.risks:
        lines += [
            "What may go wrong:",
            *(part for risk in recipe.risks for part in _bullet(risk)),
            "",
        ]
    lines += [line for words in use for line in (*_kept(words), "")]
    return '"""' + "\n".join(lines[:-1]) + '\n"""'


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
    """The patterns of a recipe with their values, to the last digit."""
    lines: list[str] = []
    for row in rows:
        values = {
            "std": row.std,
            "start": row.start,
            "lr": row.lr,
            "weight_decay": row.weight_decay,
            "eps": row.eps,
        }
        values |= {"folded": row.folded} if folded and row.folded != 1 else {}
        given = {name: value for name, value in values.items() if value is not None}
        lines += call(f"{string(row.pattern)}: Row", given, ",", indent=4)
    return "\n".join(["TABLE = {", *lines, "}"])
