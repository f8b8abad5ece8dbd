"""Where is the key/value factor, really? Ours: the paper derives (1 + √r)/2 and compares it with 1
alone.

Five factors f at r = 4 and 12, each with a search over the rate. Two questions, which need not have
one answer: which f leaves the optimum of the rate where it is at r = 1, and which gives the lowest
loss at its own optimum? Both as γ of f = ((1 + √r)/2)^γ, so that 1 is the paper's rule and 0 that
of complete-p.

At r = 1 all factors are the same training. Those runs are a study of their own in the folder
`base`; where `gqa-ablation` lies beside the folder, they are taken over from it, and so are those
of complete-p and gqa-mup.
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
from mupscale.paper.costs import study_cost
from mupscale.paper.dry_run import validate
from mupscale.paper.experiment import QUIETLY, Claim, Cost, Findings, Running, Scale, refuse_empty
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
        first, second = (
            study_cost(config, workers) for config in (self.config(scale), self.base_config(scale))
        )
        return Cost(
            first.runs + second.runs, first.tokens + second.tokens, first.hours + second.hours
        )

    def run(self, scale: Scale, folder: Path, how: Running = QUIETLY) -> None:
        known = _beside(folder, scale)
        parts = [
            Study.create(self.config(scale), folder),
            Study.create(self.base_config(scale), folder / BASE),
        ]
        totals = [sum(part.snapshot().expected.values()) for part in parts]
        for place, part in enumerate(parts):
            before = sum(totals[:place])
            part.run(
                engine=how.engine,
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
        lines = [*shown.lines, *(_line(answer) for answer in (found.still, found.loss))]
        return Findings(tuple(lines), self._claims(found), (*shown.paths, *paths))

    def claims(self, seen: SweepFinding) -> Iterator[Claim]:
        """None from this study alone: the questions are put to the runs at r = 1, too."""
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
                f"{folder / BASE} holds no runs at r = 1, and {BESIDE} does not lie beside "
                f"{folder}. Run mupscale "
                f"paper {self.name}, which makes them."
            )
        tried = factored([Study.open(folder), base], only={base.config.name: [BASE_RULE]})
        several = {
            one.r for one in tried if one.log2_factor
        }  # the ablation has more r than have factors here
        return fit_exponents([one for one in tried if one.r == 1 or one.r in several])

    def _claims(self, found: Exponents) -> tuple[Claim, ...]:
        return tuple(
            Claim(self.name, *_said(answer), found.runs, "ours")
            for answer in (found.still, found.loss)
        )


def _beside(folder: Path, scale: Scale) -> Study | None:
    """The ablation over r, in whichever folder it is kept."""
    places = (folder.parent / BESIDE, folder.parent / f"{BESIDE}-{scale}")
    kept = next((place for place in places if (place / "records.jsonl").exists()), None)
    return None if kept is None else Study.open(kept)


_TITLE = "Where is the key/value factor? Triangles: the paper's, (1 + √r)/2"
_QUESTIONS = {
    "still": "Which key/value factor f = ((1 + √r)/2)^γ leaves the best rate unmoved in r?",
    "loss": "Which key/value factor f = ((1 + √r)/2)^γ gives the lowest loss at its own best rate?",
}


def _said(answer: Exponent) -> tuple[str, str]:
    """The question, and what was seen."""
    parts = [
        f"γ {_ends(answer.gamma)}",
        *(f"r = {r:g} alone: {_ends(one)}" for r, one in answer.by_r.items()),
    ]
    if answer.one_serves is not None:
        serves = "does not serve" if answer.one_serves < _ONE_SERVES else "may serve"
        parts.append(f"one γ {serves} both (p = {answer.one_serves:.2f})")
    told = [
        name
        for value, name in ((0.0, "1"), (1.0, "(1 + √r)/2"))
        if answer.gamma and answer.gamma.excludes(value)
    ]
    parts.append(
        f"excludes f = {' and f = '.join(told)}"
        if told
        else "excludes neither f = 1 nor f = (1 + √r)/2"
    )
    return _QUESTIONS[answer.question], "; ".join(parts)


def _line(answer: Exponent) -> str:
    question, seen = _said(answer)
    return f"{question}\n  {seen}"


def _ends(one: Estimate | None) -> str:
    """With half an interval, where there is one.

    >>> _ends(Estimate(0.5, -math.inf, 1.25)), _ends(Estimate(0.5, 0.25, 0.75)), _ends(Estimate(1, -math.inf, math.inf))
    ('below 1.25 (best 0.50)', '0.50 [0.25, 0.75]', 'not bounded')
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
        FactorPanel(
            "best base rate",
            "log2 of the rate",
            _curves(found, "still"),
            reference,
            _note(found.still),
        ),
        FactorPanel(
            "loss at its own best rate", "nats", _curves(found, "loss"), None, _note(found.loss)
        ),
    ]


def _note(answer: Exponent) -> str:
    return f"γ {_ends(answer.gamma)}"


def _curves(found: Exponents, question: str) -> list[FactorCurve]:
    """Losses have no intervals of their own here: what seeds do at one r is common to all its
    factors.
    """
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
