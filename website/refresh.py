"""Run the commands that the documents show, and write into them what the commands print.

    python -m website.refresh

A ```console block that shows only its command stays as it is. The table of claims in
results/README.md comes from the recorded runs.
"""

import contextlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Generator
from pathlib import Path

from mupscale.cli import main
from mupscale.paper.verdicts import claims_in, table_lines

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
COLUMNS = "100"

_BLOCK = re.compile(r"^```(console|text)\n\$ (mupscale .*)\n((?:(?!```).*\n)+)```$", flags=re.M)
_CLAIMS = re.compile(
    r"^Of \d+ claims of the paper,(?s:.*?)^\| experiment \| .*\n(?:\|.*\n)+", flags=re.M
)


@contextlib.contextmanager
def clean_folder() -> Generator[None]:
    """An empty working folder with the committed results in it, as in a clone."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "results").symlink_to(ROOT / "results")
        with contextlib.chdir(folder):
            yield


def printed(command: str) -> str:
    """What a `mupscale` command prints; `| sed -n 3,9p` behind it keeps these lines."""
    line, _, kept = command.partition(" | sed -n ")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = main(shlex.split(line)[1:])
    if status != 0:
        raise SystemExit(f"{line}: exit status {status}")
    lines = output.getvalue().rstrip().splitlines()
    if kept:
        first, last = map(int, kept.removesuffix("p").split(","))
        lines = lines[first - 1 : last]
    return "\n".join(lines) + "\n"


def refreshed(text: str) -> str:
    """A document with its console blocks run again."""
    return _BLOCK.sub(lambda block: f"```{block[1]}\n$ {block[2]}\n{printed(block[2])}```", text)


def with_claims(text: str) -> str:
    """The page of results with the claims as the records have them now."""
    return _CLAIMS.sub(lambda _: "\n".join(table_lines(claims_in(ROOT / "results"))) + "\n", text)


def refresh() -> None:
    os.environ["COLUMNS"] = COLUMNS
    results = ROOT / "results" / "README.md"
    with clean_folder():
        for path in [*DOCUMENTS, results]:
            old = path.read_text(encoding="utf-8")
            new = with_claims(old) if path == results else refreshed(old)
            if new != old:
                path.write_text(new, encoding="utf-8")
                print(f"changed: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    refresh()
