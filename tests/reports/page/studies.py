"""Studies for the page's tests: a recorded one, and some whose truth is known."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mupscale.analysis.families import analyse
from mupscale.analysis.measurements import Measurement, Member
from mupscale.reports.page import PageData, StudyProgress, read_check
from mupscale.reports.page.of_study import page_data

RESULTS = Path(__file__).parents[3] / "results"
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\"'`=cmd|' /C calc'!A0 %{x} {{7*7}} \u2028\u202e"
)


@cache
def recorded() -> PageData:
    """The dense table of this repository, with a check that failed and one that passed."""
    from mupscale.studies import Study

    checks = [
        read_check(RESULTS / "coordinate-check" / "cpu" / rule) for rule in ("mup", "gqa-mup")
    ]
    return page_data(Study.open(RESULTS / "gqa-dense"), checks=checks)


def trial(run: Measurement, number: int, **more: Any) -> dict[str, Any]:
    status = "diverged" if run.loss is None else "finished"
    row = {
        "cell": f"{run.rule}.{run.member.label}",
        "rule": run.rule,
        "variant": {"variant": run.member.label},
        "number": number,
        "seed": run.seed,
        "params": dict(run.params),
        "status": status,
        "loss": run.loss,
        "steps": run.steps,
        "tokens": 1000,
        "seconds": 1.5,
        "attempts": 1,
        "error": None,
    }
    return row | more


def page_of(runs: list[Measurement], **more: Any) -> PageData:
    values: dict[str, Any] = {
        "name": "made",
        "config": 'name = "made"\n',
        "analysis": analyse(runs, axis="width"),
        "runs": runs,
        "trials": [trial(run, number) for number, run in enumerate(runs)],
        "progress": StudyProgress(ended=len(runs), expected=len(runs)),
        "made_at": "2026-01-01 00:00 UTC",
        "version": "0",
    }
    return PageData(**(values | more))


def curves(
    drift: float = 0.0,
    *,
    rules: tuple[str, ...] = ("sp", "mup"),
    seeds: int = 3,
    noise: float = 0.003,
) -> list[Measurement]:
    """Parabolas in log2 lr. The optimum is at -6, and moves by `drift` per doubling of the width
    under the first rule.
    """
    random = np.random.default_rng(0)
    return [
        Measurement(
            rule=rule,
            member=Member(label=f"width {width}", position=width),
            seed=seed,
            params={"lr": 2.0**x},
            loss=2
            + 0.05 * (x - _optimum(rule == rules[0], width, drift)) ** 2
            + noise * random.standard_normal(),
            steps=100,
        )
        for rule in rules
        for width in (64, 128, 256)
        for x in np.arange(-9, -3.4, 0.5)
        for seed in range(seeds)
    ]


def _optimum(moves: bool, width: int, drift: float) -> float:
    return -6 + (drift * math.log2(width / 64) if moves else 0.0)


def surfaces(points: int = 60) -> list[Measurement]:
    """Bowls over lr and decay, with the lowest at (2^-6, 2^-3) for every model and rule; the
    hottest runs diverge.
    """
    random = np.random.default_rng(1)
    runs: list[Measurement] = []
    for rule in ("sp", "mup"):
        for width in (64, 128):
            for x, y in random.uniform((-9, -6), (-3, 0), size=(points, 2)):
                bowl = 2 + 0.05 * (x + 6) ** 2 + 0.03 * (y + 3) ** 2 + 0.02 * (x + 6) * (y + 3)
                runs.append(
                    Measurement(
                        rule=rule,
                        member=Member(label=f"width {width}", position=width),
                        seed=1,
                        steps=200,
                        params={"lr": 2.0**x, "weight_decay": 2.0**y},
                        loss=None if x > -3.2 else bowl + 0.002 * random.standard_normal(),
                    )
                )
    return runs


def many(trials: int) -> PageData:
    """As many trials as a large sweep has."""
    random = np.random.default_rng(2)
    rules, widths = ("sp", "mup", "complete-p", "gqa-mup"), (64, 128, 256, 512, 1024)
    runs: list[Measurement] = []
    for number in range(trials):
        x, width = random.uniform(-9, -3), widths[number % 5]
        runs.append(
            Measurement(
                rule=rules[number // 5 % 4],
                member=Member(label=f"width {width}", position=width),
                seed=number % 3,
                params={"lr": 2.0**x, "weight_decay": 2.0 ** random.uniform(-6, 0)},
                loss=2 + 0.05 * (x + 6) ** 2 + 0.01 * random.standard_normal(),
                steps=1000,
            )
        )
    return page_of(runs, name="large")


def hostile() -> PageData:
    """Every name and text that a study can hold, as an attacker would write it; one is very
    long.
    """
    runs = [
        Measurement(
            rule=HOSTILE if number % 2 else "mup",
            member=Member(label=f"{HOSTILE} {width}", position=width),
            seed=seed,
            params={"lr": 2.0**x},
            loss=2 + 0.05 * (x + 6) ** 2 + 0.001 * seed,
            steps=100,
        )
        for number, width in enumerate((64, 64, 128, 128))
        for x in range(-9, -3)
        for seed in (1, 2)
    ]
    trials = [
        trial(run, n, error=HOSTILE * (n == 1) + "x" * 10_000 * (n == 2))
        for n, run in enumerate(runs)
    ]
    trials.append(
        trials[0]
        | {"status": "failed", "loss": None, "error": "\ud800 half a character", "number": 99}
    )
    return page_of(runs, name=f"{HOSTILE} {'n' * 10_000}", config=HOSTILE, trials=trials)
