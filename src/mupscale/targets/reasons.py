"""The message of a foreign exception, on one line."""

import re


def reason(error: BaseException) -> str:
    r"""The message without the prefix of a validated dataclass and without a full stop.

    >>> reason(ValueError("Validation error for field 'n':\n    TypeError: expected int, got str."))
    'expected int, got str'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^(?:Class v|V)alidation error for .*?: \w+Error: ", "", text).removesuffix(".")
