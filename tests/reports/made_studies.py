"""Studies whose optima are known, and names that a user should not have chosen."""

import itertools

from mupscale.analysis.families import StudyAnalysis, analyse
from mupscale.analysis.measurements import Measurement, Member

RULES = ("mup", "gqa-mup")
MEMBERS = (Member(label="small", position=1.0), Member(label="large", position=4.0))
HOSTILE = (
    "<script>alert(1)</script>",
    "$\\frac{1}{0}$ costs $5",
    "two\nlines\r\tand \x00 more",
    '=HYPERLINK("http://example.com")',
    "x" * 10_000,
    "模型 \u202e \ud800",
)


def rate_runs(
    seeds=(1, 2, 3), explode: float = 0.0, rules=RULES, members=MEMBERS
) -> list[Measurement]:
    """Parabolas of the rate with the optimum at 2^-6 for the first member and half an octave lower
    for the next.
    """
    runs: list[Measurement] = []
    for rule, (place, member), seed in itertools.product(rules, enumerate(members), seeds):
        for step in range(9):
            x = -8 + step / 2
            loss = 2 - 0.1 * place + 0.05 * (x + 6 + place / 2) ** 2 + 0.01 * seed
            loss += explode if step == 8 else 0.0
            runs.append(
                Measurement(
                    rule=rule, member=member, seed=seed, params={"lr": 2**x}, loss=loss, steps=100
                )
            )
    return runs


def surface_runs(rules=RULES, members=MEMBERS, steps: int | None = 256) -> list[Measurement]:
    """Bowls over rate and decay with the optimum at (2^-6, 2^-2); the highest rates diverge at the
    highest decays.
    """
    runs: list[Measurement] = []
    for rule, member, i, j in itertools.product(rules, members, range(7), range(7)):
        x, y = -8 + i * 2 / 3, -5 + j
        loss = 2 + 0.05 * (x + 6) ** 2 + 0.02 * (y + 2) ** 2 + 0.01 * (x + 6) * (y + 2)
        params = {"lr": 2**x, "weight_decay": 2**y}
        ended = None if i == 6 and j >= 5 else loss
        runs.append(
            Measurement(rule=rule, member=member, seed=1, params=params, loss=ended, steps=steps)
        )
    return runs


def analysed(runs: list[Measurement], axis: str | None = "r") -> StudyAnalysis:
    return analyse(runs, axis=axis)


def texts_outside(figure) -> list[str]:
    """Texts that reach beyond the figure."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    limits = figure.bbox.padded(1)
    texts = figure.findobj(
        lambda one: isinstance(one, Text) and one.get_visible() and one.get_text().strip()
    )
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [
        text for text, box in boxes if not (limits.contains(*box.min) and limits.contains(*box.max))
    ]


def taken_for_formulas(figure) -> list[str]:
    """Texts with dollars that matplotlib would typeset."""
    from matplotlib.text import Text

    texts = figure.findobj(lambda one: isinstance(one, Text) and "$" in one.get_text())
    return [text.get_text() for text in texts if text.get_parse_math()]
