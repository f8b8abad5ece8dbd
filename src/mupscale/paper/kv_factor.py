"""Which key/value factor is best? Ours: the paper derives (1 + √r)/2 and compares it only with 1.

Five factors f at r = 4 and 12, each with a search over the learning rate. Two questions, which may
have different answers: which f leaves the optimal rate where it is at r = 1, and which gives the
lowest loss at its own optimum? Both answers are a γ in f = ((1 + √r)/2)^γ: γ = 1 is the paper's
rule, and γ = 0 is complete-p.

At r = 1 all factors are the same training. Those runs are a study of their own in the folder
`base`. If `gqa-ablation` is next to the folder, its runs at r = 1 and under complete-p and gqa-mup
are reused.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mupscale import reports
from mupscale.analysis.estimates import Estimate
from mupscale.analysis.exponents import (
    Exponent,
    Exponents,
    FactorCell,
    Factored,
    fit_exponents,
    log2_paper_factor,
    still_by_fit,
)
from mupscale.errors import OptionError
from mupscale.paper.claims import Claim, combined, decided
from mupscale.paper.costs import study_cost
from mupscale.paper.dry_run import validate
from mupscale.paper.experiment import QUIETLY, Cost, Execution, Findings, Scale, refuse_empty
from mupscale.paper.sweeps import FIGURES, Sweep, SweepFinding, with_ends
from mupscale.recipes.calibrating import factored
from mupscale.reports.factors import FactorCurve, FactorPanel, draw_factors
from mupscale.studies import Study, StudyConfig

BASE, BASE_RULE = "base", "complete-p"
BESIDE = "gqa-ablation"
_ONE_SERVES = 0.05
# With fewer seeds left, an interval says little of the seed that was left out.
_LEAST_LEFT = 3


class KvFactor(Sweep):
    """γ for both questions, from r = 4 and 12."""

    name = "kv-factor"
    study = "kv-factor"

    def base_config(self, scale: Scale) -> StudyConfig:
        """The model without sharing."""
        config = self.config(scale)
        heads = config.run_config(config.cells()[0], {"lr": 1.0}, config.seeds[0]).model.n_heads
        return dataclasses.replace(
            config, name=f"{config.name}-{BASE}", rules=(BASE_RULE,), vary={"n_kv_heads": (heads,)}
        )

    def cost(self, scale: Scale, workers: int) -> Cost:
        own, base = self.config(scale), self.base_config(scale)
        return study_cost(own, workers) + study_cost(base, workers)

    def run(self, scale: Scale, folder: Path, how: Execution = QUIETLY) -> None:
        known = _beside(folder, scale)
        parts = [
            Study.create(self.config(scale), folder),
            Study.create(self.base_config(scale), folder / BASE),
        ]
        totals = [sum(part.snapshot().expected.values()) for part in parts]
        for place, part in enumerate(parts):
            before = sum(totals[:place])
            part.run(
                engine=how.on(part.engine),
                report=lambda now, before=before: how.report(before + len(now.trials), sum(totals)),
                remark=how.remark,
                reuse=known,
            )

    def dry_run(self, scale: Scale) -> Iterator[str]:
        yield from validate(self.base_config(scale))
        yield from validate(self.config(scale))

    def findings(self, scale: Scale, folder: Path) -> Findings:
        shown = super().findings(scale, folder)
        found = self.exponents(scale, folder)
        rows = [_row(cell) for cell in (found.base, *found.cells)]
        paths = [
            reports.save_csv(rows, folder / "factors.csv"),
            *reports.save_figure(
                draw_factors(_panels(found), title=_TITLE), folder / "figures" / "factors", FIGURES
            ),
        ]
        claims = self._claims(found, self.tried(scale, folder))
        lines = [*shown.lines, *(f"{one.says}\n  {one.seen}" for one in claims)]
        return Findings(tuple(lines), claims, (*shown.paths, *paths))

    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        """None from this study alone: the questions need the runs at r = 1, too."""
        yield from ()

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        refuse_empty(folder, "records.jsonl")
        tried = self.tried(scale, folder)
        return self._claims(fit_exponents(tried), tried)

    def exponents(self, scale: Scale, folder: Path) -> Exponents:
        """γ, from this folder's runs and those at r = 1."""
        return fit_exponents(self.tried(scale, folder))

    def tried(self, scale: Scale, folder: Path) -> list[Factored]:
        """The folder's runs and those at r = 1, by r and factor."""
        base = (
            Study.open(folder / BASE)
            if (folder / BASE / "records.jsonl").exists()
            else _beside(folder, scale)
        )
        if base is None:
            raise OptionError(
                f"{folder / BASE} holds no runs at r = 1, and there is no {BESIDE} next to "
                f"{folder}. Run: mupscale paper {self.name}"
            )
        tried = factored([Study.open(folder), base], only={base.config.name: [BASE_RULE]})
        # The ablation has values of r that have no factors here.
        several = {one.r for one in tried if one.log2_factor}
        return [one for one in tried if one.r == 1 or one.r in several]

    def _claims(self, found: Exponents, tried: Sequence[Factored]) -> tuple[Claim, ...]:
        fits = still_by_fit(tried)
        checks = [
            f"by the other fits: {', '.join(f'{fit} γ {_ends(one)}' for fit, one in fits.items())}",
            _without_a_seed(tried),
            _steps(tried),
        ]
        still = [
            *_parts(found.still),
            *filter(None, checks),
            _against([found.still.gamma, *fits.values()]),
        ]
        loss = [*_parts(found.loss), _against([found.loss.gamma, None])]
        return tuple(
            Claim(self.name, "best rates", _QUESTIONS[question], seen, found.runs, "ours")
            for question, parts in (("still", still), ("loss", loss))
            for seen in [f"{'; '.join(parts)} ({found.seeds} seeds)"]
        )


def _beside(folder: Path, scale: Scale) -> Study | None:
    """The ablation over r, in either of its usual folders."""
    places = (folder.parent / BESIDE, folder.parent / f"{BESIDE}-{scale}")
    kept = next((place for place in places if (place / "records.jsonl").exists()), None)
    return None if kept is None else Study.open(kept)


_TITLE = "Where is the key/value factor? Triangles: the paper's, (1 + √r)/2"
_QUESTIONS = {
    "still": "With which key/value factor f = ((1 + √r)/2)^γ is the best learning rate the same "
    "for every r?",
    "loss": "Which key/value factor f = ((1 + √r)/2)^γ gives the lowest loss at its own best "
    "learning rate?",
}


def _parts(answer: Exponent) -> list[str]:
    """γ from all r and from each r alone, and whether one γ fits both."""
    parts = [
        f"γ {_ends(answer.gamma)}",
        *(f"r = {r:g} alone: {_ends(one)}" for r, one in answer.by_r.items()),
    ]
    if answer.one_serves is not None:
        fits = "does not fit" if answer.one_serves < _ONE_SERVES else "may fit"
        parts.append(f"one γ {fits} both (p = {answer.one_serves:.2f})")
    return parts


def _against(by_fit: Sequence[Estimate | None]) -> str:
    """What the fits say of the two known rules. Only what all of them exclude is excluded; with one
    fit alone, the others are None.

    >>> _against([Estimate(0, -1, 0.9), Estimate(0, -1, 1.2)])
    'points against f = (1 + √r)/2, and excludes neither it nor f = 1'
    >>> _against([Estimate(0.5, 0.2, 0.9), Estimate(0.5, 0.1, 0.8)])
    'excludes f = 1 and f = (1 + √r)/2'
    """
    found = {
        name: combined([decided(False, one is not None and one.excludes(value)) for one in by_fit])
        for value, name in ((0.0, "f = 1"), (1.0, "f = (1 + √r)/2"))
    }
    excluded = [name for name, verdict in found.items() if verdict == "disagrees"]
    doubted = [name for name, verdict in found.items() if verdict == "points against"]
    if excluded:
        also = f", and points against {doubted[0]}" if doubted else ""
        return f"excludes {' and '.join(excluded)}{also}"
    if len(doubted) == 1:
        other = next(name for name in found if name not in doubted)
        return f"points against {doubted[0]}, and excludes neither it nor {other}"
    points = f"points against {' and '.join(doubted)}, but " if doubted else ""
    return f"{points}excludes neither {' nor '.join(found)}"


def _without_a_seed(tried: Sequence[Factored]) -> str:
    """How far the upper end of γ moves if any one seed is left out."""
    seeds = sorted({run.seed for one in tried for run in one.runs})
    if len(seeds) < _LEAST_LEFT + 1:
        return ""
    ends: dict[int, float] = {}
    for seed in seeds:
        rest = [replace(one, runs=[run for run in one.runs if run.seed != seed]) for one in tried]
        gamma = fit_exponents(rest).still.gamma
        ends[seed] = math.inf if gamma is None else gamma.high
    least, most = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
    return (
        f"without one seed, the upper end is between {ends[least]:.2f} (without {least}) and "
        f"{ends[most]:.2f} (without {most})"
    )


def _steps(tried: Sequence[Factored]) -> str:
    """The length of the runs, if it differs from r to r."""
    steps = {one.r: run.steps for one in tried for run in one.runs if run.steps}
    if len(set(steps.values())) < 2:
        return ""
    words = ", ".join(f"{steps[r]} at r = {r:g}" for r in sorted(steps))
    return f"runs are shorter at larger r, which may move the optimum by itself (steps: {words})"


def _ends(one: Estimate | None) -> str:
    """With a one-sided interval, where there is one.

    >>> _ends(Estimate(0.5, -math.inf, 1.25)), _ends(Estimate(1, -math.inf, math.inf))
    ('below 1.25 (best 0.50)', 'not bounded')
    """
    if one is None or one.bounded:
        return with_ends(one)
    if math.isfinite(one.high):
        return f"below {one.high:z.2f} (best {one.value:z.2f})"
    return (
        f"above {one.low:z.2f} (best {one.value:z.2f})" if math.isfinite(one.low) else "not bounded"
    )


def _row(cell: FactorCell) -> dict[str, object]:
    optimum, lever = cell.analysis.optimum, log2_paper_factor(cell.r)
    return {
        "r": cell.r,
        "factor": 2**cell.log2_factor,
        "gamma": cell.log2_factor / lever if lever else None,
        "log2_lr": optimum.value if optimum else None,
        "log2_lr_low": optimum.low if optimum and math.isfinite(optimum.low) else None,
        "log2_lr_high": optimum.high if optimum and math.isfinite(optimum.high) else None,
        "loss": optimum.loss if optimum else None,
        "runs": cell.analysis.runs,
        "flags": " ".join(cell.analysis.flags),
    }


def _panels(found: Exponents) -> list[FactorPanel]:
    base = found.base.analysis.optimum
    reference = (
        (base.value, base.low, base.high) if base and math.isfinite(base.high - base.low) else None
    )
    return [
        FactorPanel(title, unit, _curves(found, question), line, f"γ {_ends(answer.gamma)}")
        for title, unit, question, line, answer in (
            ("best base rate", "log2 of the rate", "still", reference, found.still),
            ("loss at its own best rate", "nats", "loss", None, found.loss),
        )
    ]


def _curves(found: Exponents, question: str) -> list[FactorCurve]:
    """Losses have no intervals here: the effect of seeds at one r is common to all its factors."""
    curves: list[FactorCurve] = []
    for r in sorted({cell.r for cell in found.cells}):
        cells = [cell for cell in found.cells if cell.r == r and cell.usable]
        optima = [cell.analysis.optimum for cell in cells if cell.analysis.optimum]
        values = [one.value if question == "still" else one.loss for one in optima]
        lows = [one.low for one in optima] if question == "still" else values
        highs = [one.high for one in optima] if question == "still" else values
        x = [cell.log2_factor for cell in cells]
        curves.append(FactorCurve(f"r = {r:g}", x, values, lows, highs, log2_paper_factor(r)))
    return curves


EXPERIMENT = KvFactor()
