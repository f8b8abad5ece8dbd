"""For the API's page: examples inside docstrings become code, so that their output is not read as
Markdown.
"""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n(?:^(?!>>>|\s*$).*\n?)*)+", flags=re.M)


def fenced(text: str) -> str:
    """Every run of examples, with what they print, as a code block."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text + "\n").rstrip()


class Doctests(griffe.Extension):
    """Applied to every docstring that is shown."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
