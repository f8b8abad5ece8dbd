"""`mupscale report`."""

import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from mupscale.cli.console import print_json, remark
from mupscale.cli.flags import Json, ReadingFlags, Switch
from mupscale.errors import OptionError
from mupscale.text import show

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
    check: Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False)] = (),
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    figures: Path | None = None,
    watch: Switch = False,
    as_json: Json = False,
) -> int:
    """Write the results of a study as one HTML file that loads nothing from elsewhere.

    Exit status: 0, or 1 if all trials that ended failed.

    Example: mupscale report runs/gqa --output page.html

    Example: mupscale report runs/gqa --to llama-3-8b --check runs/check/gqa-mup-n-kv-heads-1a2b3c4d

    Example: mupscale report runs/gqa --figures runs/gqa/figures

    Example: mupscale report runs/gqa --watch

    Parameters
    ----------
    study
        Folder of a study, made by mupscale sweep, or a folder with such folders, which are then
        shown as one study.
    output
        The HTML file (default: report.html in the study's folder).
    to
        A model to train, named as for mupscale plan. The page then begins with its recipe.
    check
        Folder of a mupscale check, to show its verdict and slopes. Can be repeated.
    figures
        Also write the figures (PNG, SVG, PDF) and their data (CSV, Parquet) to this folder.
    watch
        Write the page again whenever a trial ends. An open page follows. Stops when the study is
        done, or on Ctrl-C.
    """
    from mupscale.reports.page import read_check
    from mupscale.studies import Study

    page = output or study / "report.html"
    if page.is_dir():
        raise OptionError(f"--output {page} is a folder. Name the file: {page / 'report.html'}.")
    summaries, target = [read_check(folder) for folder in check], _target(to, reading)
    data = (_watched if watch else write_page)(Study.open(study), page, target, summaries)
    saved: list[Path] = []
    if figures is not None:
        from mupscale.reports.study_figures import save_study_figures

        saved = save_study_figures(data.analysis, data.runs, figures, sensitivity=data.sensitivity)
    _print_answer(data, page, saved, as_json)
    return 0 if any(run.loss is not None for run in data.runs) or not data.trials else 1


def _target(to: str | None, reading: ReadingFlags) -> "Target | None":
    from mupscale.targets import resolve

    if to is not None:
        return dataclasses.replace(resolve(to), reading=reading.of_target(to))
    if reading.given:
        raise OptionError(
            "--role, --ignore, --inputs and --reading describe the target. Name it with --to."
        )
    return None


def write_page(
    study: "Study",
    page: Path,
    to: "str | Target | None",
    checks: Sequence["CheckSummary"],
    refresh: int | None = None,
) -> "PageData":
    from mupscale.records import write_whole
    from mupscale.reports.page import study_page
    from mupscale.reports.page.of_study import page_data

    data = page_data(study, to=to, checks=checks, refresh_seconds=refresh)
    # The message of a trial may hold a lone surrogate, which UTF-8 cannot encode.
    write_whole(page, study_page(data).encode("utf-8", errors="replace"))
    return data


def _watched(
    study: "Study", page: Path, to: "Target | None", checks: Sequence["CheckSummary"]
) -> "PageData":
    """Write the page again whenever the records change. The last page does not reload itself."""
    seen = _state(study)
    data = write_page(study, page, to, checks, _REFRESH_SECONDS)
    with _status() as say:
        try:
            while not data.progress.done:
                say(
                    f"{data.name}: {data.progress.text}; {page} is up to date. Ctrl-C stops "
                    "watching; the study continues."
                )
                time.sleep(_LOOK_SECONDS)
                now = _state(study)
                if now != seen:
                    seen = now
                    data = write_page(study, page, to, checks, _REFRESH_SECONDS)
        except KeyboardInterrupt:
            data = write_page(study, page, to, checks)
    return data


def _state(study: "Study") -> list[tuple[int, int] | None]:
    """A value that changes whenever a trial is recorded."""
    return [_stamp(records) for records in study.records]


def _stamp(records: Path) -> tuple[int, int] | None:
    try:
        stat = records.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


@contextmanager
def _status() -> Generator[Callable[[str], None]]:
    """Yield a function that updates one line on a terminal, or prints one every 30 seconds."""
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
            remark(text)

    yield say


def _print_answer(data: "PageData", page: Path, saved: Sequence[Path], as_json: bool) -> None:
    from mupscale.reports.page.answer import answer

    result = answer(data)
    if as_json:
        rules = [
            {"rule": rule.rule, "verdict": rule.verdict, "lines": rule.lines}
            for rule in result.rules
        ]
        print_json(
            {
                "study": data.name,
                "page": str(page),
                "bytes": page.stat().st_size,
                "done": data.progress.done,
                "answer": result.lead,
                "rules": rules,
                "comparisons": result.comparisons,
                "figures": [str(path) for path in saved],
            }
        )
        return
    verdicts = [f"- {rule.rule}: {rule.verdict}" for rule in result.rules]
    show("\n".join([*result.lead, *verdicts, *result.comparisons]))
    more = f", and {len(saved)} files in {saved[0].parent}" if saved else ""
    print(f"\nwritten: {page} ({page.stat().st_size / 1e6:.1f} MB){more}")
