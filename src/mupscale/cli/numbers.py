"""Numbers on the command line: 5, or 42,43,44, or width=512,depth=8."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

from mupscale.errors import OptionError


def _whole(_: Any, tokens: Sequence[Token]) -> int:
    """A whole number, and nothing near one: cyclopts would take 0.5 for 0."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(
            f"{tokens[0].value!r} is not a whole number."
        ) from None  # cyclopts names the option


Whole = Annotated[int, Parameter(converter=_whole)]


def whole_numbers(flag: str, text: str, example: str) -> list[int]:
    """Several of them.

    >>> whole_numbers("--seeds", "42, 43,44", "42,43,44")
    [42, 43, 44]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(
            f"{flag} {text!r} is not a list of whole numbers. Write it like {example}."
        ) from None


def dimensions(flag: str, text: str, example: str) -> dict[str, int]:
    """Numbers by name.

    >>> dimensions("--target", "n=4096,r=4", "n=4096,r=4")
    {'n': 4096, 'r': 4}
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            number = int(value)
        except ValueError:
            message = (
                f"{flag} {text!r}: {part.strip()!r} is not name=number. Write it like {example}."
            )
            raise OptionError(message) from None
        if name in found:
            raise OptionError(f"{flag} {text!r}: {name} is given twice.")
        found[name] = number
    return found
