"""Examples in docstrings become code blocks, so that their output is not read as Markdown."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n(?:^(?!>>>|\s*$).*\n?)*)+", flags=re.M)


def fenced(text: str) -> str:
    """Each sequence of examples, with its output, as a code block."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text + "\n").rstrip()


class Doctests(griffe.Extension):
    """The mkdocstrings extension that applies it to every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
