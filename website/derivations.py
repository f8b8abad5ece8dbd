"""The derivations as a page: whatever `theory` derives, with its steps and sources, formulas as
MathML.
"""

import re
from collections.abc import Iterator

from latex2mathml.converter import convert

from mupscale.theory import OPTIMIZERS, Scaling, derive, parameterization
from mupscale.theory.units import NAMED

HEAD = """# Derivations

This page is written by the code that plans your model: `mupscale.derive(unit, optimizer)` for each unit, printed with
its steps, reasons and sources. It cannot disagree with what a plan does. n is a weight's own fan-in, r the number of
query heads that share a key/value head, L the number of blocks. Each formula multiplies a base value that you tuned.
How they hang together is told in [The rules](../docs/rules.md). To see one in a terminal, run `mupscale derive kv
--show-steps`; for a paper, `mupscale derive kv --show-steps --format latex`.
"""
_MATH = re.compile(r"\$([^$]+)\$")


def page() -> str:
    return "\n".join([HEAD, *_table(), *_units(), *_others()])


def mathml(text: str) -> str:
    """Text whose formulas, between dollars, browsers show by themselves.

    >>> mathml("rate $1/n$").startswith("rate <math")
    True
    """
    return _MATH.sub(lambda found: convert(found[1]), text)


def _table() -> Iterator[str]:
    yield "## The table, for AdamW\n"
    yield mathml(parameterization().to_markdown())


def _units() -> Iterator[str]:
    """Every named unit under AdamW, whole."""
    yield "\n## Units, under AdamW\n"
    for name, unit in NAMED.items():
        yield f"### {name}\n"
        yield from _shown(derive(unit))


def _others() -> Iterator[str]:
    """Shared keys and values under every other optimizer: where optimizers differ most."""
    yield "\n## Keys and values, under other optimizers\n"
    for name in OPTIMIZERS:
        if name != "adamw":
            yield f"### Under {name}\n"
            yield from _shown(derive("kv", name))


def _shown(scaling: Scaling) -> Iterator[str]:
    yield mathml(scaling.to_markdown())
    yield ""
