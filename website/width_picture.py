"""The picture of the width study, from its records: light and dark.

    python -m website.width_picture docs/assets            # while runs are missing, what there is
    python -m website.width_picture docs/assets --readme   # and put it into README.md

README.md shows it only once all runs have ended.
"""

import json
import re
import sys
import textwrap
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from mupscale.paper.carried import FactorsRuns, measured_mean
from mupscale.paper.factors import EXPERIMENT as FACTORS
from mupscale.paper.sweeps import with_ends
from mupscale.paper.width import EXPERIMENT, WidthRuns, panels
from mupscale.reports.style import SETTINGS
from mupscale.reports.widths import DARK, LIGHT, Theme, draw_widths
from website.picture import drawn

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "width"
RULES = ("sp-fan-in", "gqa-mup")
THEMES = {"light": LIGHT, "dark": DARK}

_PICTURE = re.compile(r"^(?:!\[Left:|<picture>).*?(?=^## )", flags=re.M | re.S)
"""In README.md: the picture and the text below it."""


def recorded(results: Path = RESULTS) -> WidthRuns:
    return EXPERIMENT.runs("cpu", results)


def width_picture(found: WidthRuns, theme: Theme = LIGHT) -> Figure:
    """The usual initialization beside ours; the study's own figure has the third rule, too."""
    title = EXPERIMENT.headline("cpu")
    return draw_widths(panels(found, RULES), title=title, theme=theme)


def save(found: WidthRuns, folder: Path) -> list[Path]:
    paths: list[Path] = []
    for name, theme in THEMES.items():
        made = width_picture(found, theme)
        about = {"Software": "", "Description": json.dumps(drawn(made))}
        paths.append(folder / f"width-{name}.png")
        with mpl.rc_context(dict(SETTINGS)):
            made.savefig(paths[-1], dpi=160, metadata=about)
    return paths


def readme_text(found: WidthRuns, further: str = "") -> str:
    """The picture with its text, in Markdown; `further` is what another study adds to it."""
    if not found.complete:
        raise SystemExit(
            f"{found.ended} of {found.expected} runs have ended, and open ranges must grow first. "
            "README.md keeps its picture until then. See: mupscale paper width --output "
            "results/width"
        )
    costs = {rule: _cost(found, rule) for rule in RULES}
    base, target = found.widths[0], found.target
    alt = (
        f"Loss against the learning rate at widths {base} to {target}. Left, the standard "
        f"parameterization with initial std ∝ 1/√n: the best rate of width {base} costs "
        f"{costs['sp-fan-in']} at width {target}. Right, gqa-mup: it costs {costs['gqa-mup']}."
    )
    seeds = len(found.regret(RULES[0]).seeds)
    text = (
        f"The dashed line is the learning rate that was best at width {base}. Left, with the usual "
        f"initialization and no scaling of rates, it costs {costs['sp-fan-in']} (natural "
        f"logarithms of the likelihood per byte) at width {target}. Right, with mupscale's rule, "
        f"it costs {costs['gqa-mup']}. Brackets hold 95 % intervals over {seeds} seeds, the widest "
        f"of three fits; {found.ended} runs in all. {_tuned_at_target(found)} {further}[How it was "
        "measured](results/width/README.md), [the same over r](docs/assets/overview.png) (query "
        "heads per key/value head), and [every claim of the paper with what we measured]"
        "(results/README.md)."
    )
    lines = [
        "<picture>",
        '  <source media="(prefers-color-scheme: dark)" srcset="docs/assets/width-dark.png">',
        *textwrap.wrap(f'<img alt="{alt}"', 96, initial_indent="  ", subsequent_indent="    "),
        '    src="docs/assets/width-light.png">',
        "</picture>",
        "",
        *textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False),
    ]
    return "\n".join(lines)


def _tuned_at_target(found: WidthRuns) -> str:
    """How the usual initialization ends if its rate is tuned at the largest width itself."""
    answer, target = found.above_reference(RULES[0]), found.target
    verdict, widest = answer.agreement.verdict, answer.agreement.widest
    if widest is None:
        return f"Tuned at width {target} itself, the two cannot be compared: {verdict}."
    fits = [one.value for fit in answer.by_fit if (one := answer.estimate(fit))]
    ends = f"{with_ends(widest, 3)} nats"
    if widest.low > 0 or widest.high < 0:
        decided = "ends " + ("higher" if widest.low > 0 else "lower")
    elif max(fits) < 0:
        decided = "ends lower in the mean, with an interval that contains 0"
    else:
        decided = "is indistinguishable from ours"
    return (
        f"**With its rate tuned at width {target} itself, the usual initialization {decided}: its "
        f"lowest loss minus ours is {ends}.**"
    )


def carried_text() -> str:
    """What values for each kind of weight, found at the base, change; empty until they have run."""
    found = FACTORS.runs("cpu", ROOT / "results" / FACTORS.name)
    assert isinstance(found, FactorsRuns)
    base, target = found.width.widths[0], found.width.target
    primary = found.compared(target)[0]
    mean = measured_mean(primary)
    if not found.complete or mean is None:
        return ""
    factors = ", ".join(f"`{name}` × {value:g}" for name, value in found.carried.factors.items())
    return (
        f"A search at width {base} for values by kind of weight found {factors}. With it, our loss "
        f"at width {target} minus that of the usual initialization tuned there is "
        f"{with_ends(mean, 3)} nats ({len(primary.seeds)} seeds, "
        "[factors](results/factors/README.md)), where the latter has one rate for all weights. The "
        "search costs "
        f"{FACTORS.cost_words('cpu', found)}. "
    )


def _cost(found: WidthRuns, rule: str) -> str:
    answer = found.regret(rule)
    widest = answer.agreement.widest
    return answer.agreement.verdict if widest is None else f"{with_ends(widest, 3)} nats"


def with_picture(readme: str, found: WidthRuns, further: str = "") -> str:
    """README.md with this picture in place of the one that it shows."""
    block = readme_text(found, further) + "\n\n"
    text, count = _PICTURE.subn(lambda _: block, readme, count=1)
    if count != 1:
        raise SystemExit("README.md shows no picture that could be replaced.")
    return text


def main(arguments: list[str]) -> None:
    folders = [one for one in arguments if not one.startswith("--")]
    if len(folders) != 1 or set(arguments) - {*folders, "--readme"}:
        raise SystemExit("Usage: python -m website.width_picture FOLDER [--readme]")
    found, readme = recorded(), ROOT / "README.md"
    text = (
        with_picture(readme.read_text(encoding="utf-8"), found, carried_text())
        if "--readme" in arguments
        else ""
    )
    for path in save(found, Path(folders[0])):
        print(path)
    if text:
        readme.write_text(text, encoding="utf-8")
        print(readme)


if __name__ == "__main__":
    main(sys.argv[1:])
