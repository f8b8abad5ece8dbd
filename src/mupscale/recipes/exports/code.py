"""Pieces of generated Python: literals, formatted calls, and the docstring at the top."""

import itertools
import textwrap
from collections.abc import Sequence

from mupscale.errors import NotExactError, OptionError
from mupscale.recipes import showing
from mupscale.recipes.recipe import Recipe
from mupscale.theory import optimizer_named

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


def call(head: str, *given: str) -> list[str]:
    """The lines of a call in a list: one line if it fits, else the arguments on the next, or one
    per line.

    >>> call("f", "1", "b=2.5")
    ['    f(1, b=2.5),']
    """
    inside = ", ".join(given)
    if len(whole := f"    {head}({inside}),") <= LINE:
        return [whole]
    if len(inside) + 8 > LINE:
        return spread(head, *given)
    return [f"    {head}(", f"        {inside}", "    ),"]


def spread(head: str, *given: str) -> list[str]:
    """The same with one argument per line, however many digits a number happens to have.

    >>> spread("f", "1", "b=2.5")
    ['    f(', '        1,', '        b=2.5,', '    ),']
    """
    return [f"    {head}(", *(f"        {argument}," for argument in given), "    ),"]


def docstring(recipe: Recipe, use: Sequence[str]) -> str:
    """Where the numbers come from, how certain they are, and how to use the file.

    A line of `use` that begins with spaces is code.
    """
    import mupscale

    title, *facts = showing.summary(recipe)
    values = [
        f"{name} {value} ({source}, interval {ends})" if ends else f"{name} {value} ({source})"
        for name, value, ends, _, source in showing.values_table(recipe)[1:]
    ]
    paragraphs = [
        f"{title}. Written by mupscale {mupscale.__version__}.",
        *facts,
        f"Base values: {'; '.join(values)}.",
    ]
    lines = [line for words in paragraphs for line in (*_wrapped(words, LINE - 3), "")]
    if recipe.risks:
        risks = (_wrapped(f"{risk.rstrip('.')}.", bullet="- ") for risk in recipe.risks)
        lines += ["What may go wrong:", *itertools.chain(*risks), ""]
    for words in use:
        lines += [words, ""] if words.startswith("    ") else [*_wrapped(words), ""]
    return '"""' + "\n".join(lines[:-1]) + '\n"""'


def _wrapped(words: str, width: int = LINE, bullet: str = "") -> list[str]:
    """Lines for a docstring, without quotes and backslashes, which could end it.

    >>> _wrapped('a' + 3 * chr(34) + ' + evil()' + chr(92))
    ["a''' + evil()/"]
    """
    plain = showing.one_line(words, 4000).replace('"', "'").replace("\\", "/")
    indent = " " * len(bullet)
    return textwrap.wrap(plain, width, initial_indent=bullet, subsequent_indent=indent)
