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
from collections.abc import Iterator
from pathlib import Path

from mupscale import reports
from mupscale.analysis.estimates import Estimate
from mupscale.analysis.exponents import (
    Exponent,
    Exponents,
    FactorCell,
    fit_exponents,
    log2_paper_factor,
)
from mupscale.errors import OptionError
from mupscale.paper.claims import Claim
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
        answers = [_answered(answer) for answer in (found.still, found.loss)]
        lines = [*shown.lines, *(f"{question}\n  {text}" for question, text in answers)]
        return Findings(tuple(lines), self._claims(found), (*shown.paths, *paths))

    def claims(self, finding: SweepFinding) -> Iterator[Claim]:
        """None from this study alone: the questions need the runs at r = 1, too."""
        yield from ()

    def claims_in(self, scale: Scale, folder: Path) -> tuple[Claim, ...]:
        refuse_empty(folder, "records.jsonl")
        return self._claims(self.exponents(scale, folder))

    def exponents(self, scale: Scale, folder: Path) -> Exponents:
        """γ, from this folder's runs and those at r = 1."""
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
        return fit_exponents([one for one in tried if one.r == 1 or one.r in several])

    def _claims(self, found: Exponents) -> tuple[Claim, ...]:
        return tuple(
            Claim(self.name, *_answered(answer), found.runs, "ours")
            for answer in (found.still, found.loss)
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


def _answered(answer: Exponent) -> tuple[str, str]:
    """The question and its answer."""
    parts = [
        f"γ {_ends(answer.gamma)}",
        *(f"r = {r:g} alone: {_ends(one)}" for r, one in answer.by_r.items()),
    ]
    if answer.one_serves is not None:
        fits = "does not fit" if answer.one_serves < _ONE_SERVES else "may fit"
        parts.append(f"one γ {fits} both (p = {answer.one_serves:.2f})")
    excluded = [
        name
        for value, name in ((0.0, "1"), (1.0, "(1 + √r)/2"))
        if answer.gamma and answer.gamma.excludes(value)
    ]
    parts.append(
        f"excludes f = {' and f = '.join(excluded)}"
        if excluded
        else "excludes neither f = 1 nor f = (1 + √r)/2"
    )
    return _QUESTIONS[answer.question], "; ".join(parts)


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
