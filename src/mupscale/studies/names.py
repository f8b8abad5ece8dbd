"""Names that become folders: plain characters, and inside the study's folder."""

import re
from pathlib import Path

from mupscale.errors import OptionError

PLAIN = re.compile(r"[A-Za-z0-9._-]{1,64}")


def plain(kind: str, name: str) -> str:
    """The name, if it can be the name of a folder.

    >>> plain("study", "gqa-2")
    'gqa-2'
    >>> plain("study", "../gqa")
    Traceback (most recent call last):
    mupscale.errors.OptionError: study '../gqa' is not a plain name: up to 64 letters, digits, ...
    """
    if not PLAIN.fullmatch(name) or name in (".", ".."):
        shown = name if len(name) <= 80 else f"{name[:77]}..."
        raise OptionError(
            f"{kind} {shown!r} is not a plain name: up to 64 letters, digits, dots, dashes and "
            "underscores, such as 'gqa-1'."
        )
    return name


def inside(folder: Path, *names: str) -> Path:
    """A path below a folder, also after following symbolic links."""
    path = folder.joinpath(*(plain("folder", name) for name in names))
    if not path.resolve().is_relative_to(folder.resolve()):
        raise OptionError(f"{path} leads out of {folder} by a symbolic link. Remove the link.")
    return path
