"""`study_page`: one self-contained HTML file."""

import itertools
from collections import Counter
from importlib import resources
from typing import Any

from mupscale.errors import MissingExtraError
from mupscale.reports.octaves import short_count
from mupscale.reports.page import tables
from mupscale.reports.page.answer import answer
from mupscale.reports.page.curves import curve_figure
from mupscale.reports.page.data import PageData
from mupscale.reports.page.embedding import embedded_json, embedded_script, powers, source_hash
from mupscale.reports.page.maps import map_figures
from mupscale.reports.page.trials import trial_columns
from mupscale.reports.style import COLOURS, mark_of
from mupscale.reports.words import NAMES
from mupscale.studies.trials import FAILED

_SCRIPTS = ("theme.js", "figures.js", "trials.js", "page.js")


def study_page(data: PageData) -> str:
    """The page. It loads and sends nothing; answer and results are readable without scripts."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mupscale.reports.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(_content(data))


def _content(data: PageData) -> dict[str, Any]:
    curves, maps = curve_figure(data.analysis, data.runs), map_figures(data.analysis, data.runs)
    scripts = _scripts(bool(curves))
    return {
        "powers": powers,
        "mark_of": mark_of,
        "unique": itertools.count(1).__next__,
        "data": data,
        "answer": answer(data),
        "tables": tables,
        "counts": _counts(data),
        "curves": curves,
        "maps": maps,
        "names": NAMES,
        "style": embedded_script(_file("page.css")),
        "scripts": [embedded_script(source) for source in scripts],
        "policy": _policy(scripts),
        "embedded": embedded_json(
            {
                "name": data.name,
                "colours": COLOURS,
                "labels": NAMES,
                "curves": curves,
                "maps": maps,
                "columns": trial_columns(data.trials),
                "refresh_seconds": data.refresh_seconds,
            }
        ),
    }


def _scripts(with_figures: bool) -> list[str]:
    """A page without a figure does not need plotly, which is 5 MB."""
    own = "\n".join(_file(name) for name in _SCRIPTS)
    if not with_figures:
        return [own]
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError("plotly", "report") from error
    return [get_plotlyjs(), own]


def _policy(scripts: list[str]) -> str:
    """Only these scripts run, nothing is loaded, and no form or base URL can lead elsewhere.

    Plotly writes style attributes, which no hash can allow. Since images and fonts cannot be
    loaded, a style cannot send anything.
    """
    hashes = " ".join(map(source_hash, scripts))
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    )


def _counts(data: PageData) -> list[tuple[str, str]]:
    """The numbers at the top of the page: the evidence for the answer. Runs that rules share count
    once.
    """
    trials = [trial for trial in data.trials if trial["cell"] not in data.copies]
    status = Counter(str(trial["status"]) for trial in trials)
    failed = sum(status[one] for one in FAILED)
    cells = data.analysis.cells
    seeds = {trial["seed"] for trial in trials}
    tokens = sum(trial.get("tokens") or 0 for trial in trials)
    seconds = sum(trial.get("seconds") or 0.0 for trial in trials)
    rules, models = {one.rule for one in cells}, {one.member.label for one in cells}
    hours = f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
    counts = [
        ("trials", f"{len(trials):,}"),
        ("finished", f"{status['finished']:,}"),
        ("diverged", f"{status['diverged']:,}"),
        ("stopped early", f"{status['stopped']:,}"),
        ("failed", f"{failed:,}"),
        ("rules × models", f"{len(rules)} × {len(models)}"),
        ("seeds", str(len(seeds))),
        ("tokens trained", short_count(tokens)),
        ("total run time", hours),
    ]
    always = ("trials", "finished", "rules × models", "seeds")
    return [
        (name, value) for name, value in counts if name in always or value not in ("0", "0 min")
    ]


def _file(name: str) -> str:
    return resources.files("mupscale.reports.page").joinpath(name).read_text(encoding="utf-8")
