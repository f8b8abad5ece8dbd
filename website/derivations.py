"""The page of derivations: everything that `theory` derives, with steps, sources and MathML."""

import re
from collections.abc import Iterator

from latex2mathml.converter import convert

from mupscale.theory import OPTIMIZERS, RULES, Scaling, derive, parameterization
from mupscale.theory.units import NAMED

HEAD = """# Derivations

The code that plans your model generates this page: it is the output of
`mupscale.derive(unit, optimizer)` for each unit, with steps, reasons and sources. n is the fan-in
of the weight, r the number of query heads per key/value head, L the number of blocks. Each formula
multiplies a base value that you tuned. [The rules](../docs/rules.md) explains how they fit
together. To print one in a terminal, run `mupscale derive kv --show-steps`; for LaTeX, add
`--format latex`.
"""
_MATH = re.compile(r"\$([^$]+)\$")


def page() -> str:
    return "\n".join([HEAD, *_table(), *_units(), *_others()])


def mathml(text: str) -> str:
    """Text with its formulas, written between dollar signs, as MathML.

    >>> mathml("rate $1/n$").startswith("rate <math")
    True
    """
    return _MATH.sub(lambda found: convert(found[1]), text)


def _table() -> Iterator[str]:
    yield "## The table, for AdamW\n"
    yield mathml(parameterization().to_markdown())


def _units() -> Iterator[str]:
    yield "\n## Units, under AdamW\n"
    for name, unit in NAMED.items():
        yield f"### {name}\n"
        yield from _shown(derive(unit))


def _others() -> Iterator[str]:
    """Keys and values, where assumptions and optimizers differ most."""
    yield "\n## Keys and values, with one norm for initial matrix and update\n"
    yield "`mupscale derive kv --kv-factor rms --show-steps`, under AdamW.\n"
    yield from _shown(derive("kv", rule=RULES["gqa-mup"].with_(kv_factor="rms")))
    yield "\n## Keys and values, under other optimizers\n"
    for name in OPTIMIZERS:
        if name != "adamw":
            yield f"### Under {name}\n"
            yield from _shown(derive("kv", name))


def _shown(scaling: Scaling) -> Iterator[str]:
    yield mathml(scaling.to_markdown())
    yield ""
