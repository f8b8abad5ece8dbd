"""Text from users made harmless: one line, short, nothing that code or a terminal would act on."""

LONGEST = 120


def one_line(words: str, longest: int = LONGEST) -> str:
    r"""The words on one line: unprintable characters become spaces, long text is cut.

    >>> one_line("gqa\n\x1b[31m red"), len(one_line("x" * 500))
    ('gqa [31m red', 120)
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in words)
    plain = " ".join(plain.split())
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


def for_docstring(words: str, longest: int = LONGEST) -> str:
    r"""The words for a docstring, without quotes and backslashes, which could end it.

    >>> for_docstring('a' + 3 * chr(34) + ' + evil()' + chr(92))
    "a''' + evil()/"
    """
    return one_line(words, longest).replace('"', "'").replace("\\", "/")
