"""Dimensions on the command line: width=512,depth=8."""

from mupscale.errors import OptionError


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
            message = f"{flag} {text!r}: {part.strip()!r} is not name=number. Write it like {example}."
            raise OptionError(message) from None
        if name in found:
            raise OptionError(f"{flag} {text!r}: {name} is given twice.")
        found[name] = number
    return found
