"""`mupscale report`."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mupscale.cli.reading import ReadingFlags
from mupscale.cli.theory import Json
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.reports.page import CheckSummary, PageData
    from mupscale.studies import Study
    from mupscale.targets import Target

_LOOK_SECONDS = 2.0
_REFRESH_SECONDS = 15
_LINE_SECONDS = 30.0


def report(
    study: Path,
    /,
    *,
    output: Path | None = None,
    to: str | None = None,
    check: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    figures: Path | None = None,
    watch: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
) -> int:
    """Write all that a study found as one HTML file, which opens anywhere and loads nothing from
    elsewhere.

    Exit status: 0, or 1 if trials ended and not one of them finished.

    Example: mupscale report runs/gqa --output page.html

    Example: mupscale report runs/gqa --to llama-3-8b --check runs/check/gqa-mup-n-kv-heads-1a2b3c4d

    Example: mupscale report runs/gqa --figures runs/gqa/figures

    Example: mupscale report runs/gqa --watch

    Parameters
    ----------
    study
        Folder of a study, made by mupscale sweep.
    output
        The page; report.html in the folder of the study unless given.
    to
        A target, named as for mupscale plan: its recipe then stands at the top.
    check
        Folder of a mupscale check, whose verdict and slopes are shown, too. May be repeated.
    figures
        Folder for the figures as PNG, SVG and PDF, and their data as CSV and Parquet.
    watch
        Write the page again whenever a trial ends; an open page follows. Ends when the study does,
        or on Ctrl-C.
    """
    from mupscale.reports.page import read_check
    from mupscale.studies import Study

    found, page = Study.open(study), output or study / "report.html"
    if page.is_dir():
        raise OptionError(f"--output {page} is a folder. Name the file: {page / 'report.html'}.")
    summaries, target = [read_check(folder) for folder in check], _target(to, reading)
    data = (
        _watched(found, page, target, summaries)
        if watch
        else _written(found, page, target, summaries)
    )
    saved = [] if figures is None else _figures(data, figures)
    _say(data, page, saved, as_json)
    return 0 if any(run.loss is not None for run in data.runs) or not data.trials else 1


def _target(to: str | None, reading: ReadingFlags) -> "Target | None":
    from mupscale.targets import resolve

    if to is not None:
        return dataclasses.replace(resolve(to), reading=reading.of_target(to))
    if reading.given:
        raise OptionError(
            "--role, --ignore, --inputs and --reading are about the target. Name it with --to."
        )
    return None


def _written(
    study: "Study",
    page: Path,
    to: "Target | None",
    checks: Sequence["CheckSummary"],
    refresh: int | None = None,
) -> "PageData":
    from mupscale.records import write_whole
    from mupscale.reports.page import study_page
    from mupscale.reports.page.of_study import page_data

    data = page_data(study, to=to, checks=checks, refresh_seconds=refresh)
    # A message of a trial may hold half a character, which UTF-8 does not know.
    write_whole(page, study_page(data).encode("utf-8", errors="replace"))
    return data


def _watched(
    study: "Study", page: Path, to: "Target | None", checks: Sequence["CheckSummary"]
) -> "PageData":
    """Write the page again whenever the records have changed. What is left behind does not refresh
    itself.
    """
    from mupscale.studies.study import RECORDS

    seen = _state(study.folder / RECORDS)
    data = _written(study, page, to, checks, _REFRESH_SECONDS)
    with _status() as say:
        try:
            while not data.progress.done:
                say(
                    f"{data.name}: {data.progress.text}; {page} is up to date. Ctrl-C ends "
                    "watching, not the study."
                )
                time.sleep(_LOOK_SECONDS)
                now = _state(study.folder / RECORDS)
                if now != seen:
                    seen = now
                    data = _written(study, page, to, checks, _REFRESH_SECONDS)
        except KeyboardInterrupt:
            data = _written(study, page, to, checks)
    return data


def _state(records: Path) -> tuple[int, int] | None:
    """Changes with every trial that is recorded."""
    try:
        found = records.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@contextmanager
def _status() -> Generator[Callable[[str], None]]:
    """A line that stays in place on a terminal; elsewhere, one now and then."""
    from rich.console import Console
    from rich.text import Text

    console, due = Console(stderr=True), 0.0
    if console.is_terminal:
        with console.status("") as status:
            yield lambda text: status.update(Text(text))
        return

    def say(text: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _LINE_SECONDS
            print(text, file=sys.stderr, flush=True)

    yield say


def _figures(data: "PageData", folder: Path) -> list[Path]:
    from mupscale.reports.study_figures import save_study_figures

    return save_study_figures(data.analysis, data.runs, folder)


def _say(data: "PageData", page: Path, saved: Sequence[Path], as_json: bool) -> None:
    from mupscale.reports.page.answer import answer

    said = answer(data)
    if as_json:
        content: dict[str, Any] = {
            "study": data.name,
            "page": str(page),
            "bytes": page.stat().st_size,
            "done": data.progress.done,
            "answer": list(said.lead),
            "rules": [
                {"rule": one.rule, "verdict": one.verdict, "lines": list(one.lines)}
                for one in said.sayings
            ],
            "comparisons": list(said.comparisons),
            "figures": [str(path) for path in saved],
        }
        print(json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False))
        return
    print(
        "\n".join(
            [
                *said.lead,
                *(f"- {one.rule}: {one.verdict}" for one in said.sayings),
                *said.comparisons,
            ]
        )
    )
    more = f", and {len(saved)} files in {saved[0].parent}" if saved else ""
    print(f"\nwritten: {page} ({page.stat().st_size / 1e6:.1f} MB){more}")
