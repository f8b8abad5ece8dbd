"""Copies of the model in a folder of a test's own, under a name that no test before has
imported.
"""

import itertools
import shutil
from pathlib import Path

HERE = Path(__file__).parent
ROLES = (HERE / "mupscale.toml").read_text(encoding="utf-8")
FRESH = itertools.count()


def copied(folder: Path, beside: str | None = ROLES) -> str:
    """The module's name; `beside` is what mupscale.toml beside it holds, None for no file."""
    name = f"odd_copy_{next(FRESH)}"
    shutil.copy(HERE / "model.py", folder / f"{name}.py")
    if beside is not None:
        (folder / "mupscale.toml").write_text(beside, encoding="utf-8")
    return name
