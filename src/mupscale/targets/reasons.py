"""Other people's exceptions, told in one line."""

import re


def reason(error: BaseException) -> str:
    r"""What an error says, on one line, without the frame that a checked dataclass puts around it,
    or a full stop.

    >>> reason(ValueError("Validation error for field 'n':\n    TypeError: expected int, got str."))
    'expected int, got str'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^(?:Class v|V)alidation error for .*?: \w+Error: ", "", text).removesuffix(".")
