"""Does the best rate of the embedding move with the width? At three vocabularies. Ours.

One study per vocabulary searches a factor on the embedding's rate, with all other rates fixed.
results/vocabulary/README.md has the design, which was fixed before the runs.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

from mupscale import reports
from mupscale.analysis.estimates import Estimate
from mupscale.paper.catalogue import load
from mupscale.paper.experiment import Scale
from mupscale.paper.rate_study import Parts, RateRuns, RateStudy
from mupscale.paper.rate_tables import (
    FitAnswer,
    Question,
    RateTable,
    drift,
    lower_or_higher,
    measured_difference,
)
from mupscale.paper.sweeps import FIGURES, with_ends
from mupscale.paper.width import width_curve
from mupscale.reports.widths import WidthPanel, draw_widths
from mupscale.studies import StudyConfig
from mupscale.studies.config import Cell
from mupscale.studies.measured import member_label
from mupscale.theory import Rule, derive

VOCABULARIES = (256, 4096, 32768)
SEARCHED = "lr.embedding"
REACH = 2.0
"""The loss depends less on this factor than on the rate of all weights: fits reach twice as far."""

_HIGHER_OCTAVES = {32768: 1.5}
"""In the pilots, the best factor was higher for the largest vocabulary: so are its ranges."""

_TOKENIZERS: Mapping[Scale, str] = {"cpu": "bpe:{}", "paper": "file:runs/bpe-{}.json"}
"""Subwords of a corpus on the hub are made beforehand, from a part of it."""


def predicted(embedding: str) -> float:
    """The drift of the embedding's best factor in octaves per doubling of the width, if the rule
    with this choice is right; the factor is on the rate that the table of rules gives.

    >>> predicted("table"), predicted("sqrt")
    (0.0, -0.5)
    """

    def rate(n: int, choice: str) -> float:
        scaling = derive("embedding", "adamw", rule=Rule("", embedding=choice))
        return float(scaling.evaluate(base={"n": 1}, target={"n": n}).lr)

    return round(math.log2(rate(2, embedding) / rate(2, "table")), 12)


class Vocabulary(RateStudy):
    """The drift of the embedding's best factor over width, and over the vocabulary."""

    name = "vocabulary"
    searched = SEARCHED
    reach = REACH

    def parts(self, scale: Scale) -> Parts:
        whole = load(self.name, scale)

        def part(tokens: int) -> StudyConfig:
            tokenizer = "bytes" if tokens == 256 else _TOKENIZERS[scale].format(tokens)
            own = {"model": {"vocabulary": tokens}, "data": {"tokenizer": tokenizer}}
            tables = {
                name: {**table, **own.get(name, {})} if isinstance(table, Mapping) else table
                for name, table in whole.tables.items()
            }
            higher = _HIGHER_OCTAVES.get(tokens, 0.0)
            low, high = (2.0 ** (math.log2(end) + higher) for end in whole.space[SEARCHED])
            space = {**whole.space, SEARCHED: (low, high)}
            return dataclasses.replace(
                whole, name=f"{self.name}-{tokens}", space=space, tables=tables
            )

        return {str(tokens): part(tokens) for tokens in VOCABULARIES}

    def label(self, config: StudyConfig, cell: Cell) -> str:
        tokens = config.tables["model"]["vocabulary"]
        return f"{member_label(cell).replace(' = ', ' ')}, {tokens:,} tokens"

    def answers(self, scale: Scale, found: RateRuns, folder: Path) -> list[FitAnswer]:
        widths = load(self.name, scale).vary["width"]
        return [
            *(over_width(found, tokens, widths) for tokens in VOCABULARIES),
            *(carried(found, tokens, widths[0], widths[-1]) for tokens in VOCABULARIES),
            *(over_vocabulary(found, width) for width in widths),
        ]

    def figures(self, scale: Scale, folder: Path, found: RateRuns) -> list[Path]:
        if not any(table.ended for table in found.each):
            return []
        widths = load(self.name, scale).vary["width"]
        picture = draw_widths(
            [_panel(found, tokens, widths) for tokens in VOCABULARIES],
            title="Loss against a factor on the embedding's rate, at three widths",
            unit="nats per token",
            x_label="factor on the embedding's rate",
            best="best factor",
            share_losses=False,
        )
        return reports.save_figure(picture, folder / "figures" / "vocabularies", FIGURES)


def at(found: RateRuns, width: int, tokens: int) -> RateTable:
    return next(
        table
        for (_, model), table in found.tables.items()
        if model == f"width {width}, {tokens:,} tokens"
    )


def over_width(found: RateRuns, tokens: int, widths: tuple[int, ...]) -> FitAnswer:
    """The primary question."""
    table, sqrt = predicted("table"), predicted("sqrt")
    question = Question(
        f"drift over width, {tokens:,} tokens",
        f"of the best factor on the embedding's rate over widths {widths[0]} to {widths[-1]}; "
        f'embedding = "table" says {table:g}, "sqrt" {sqrt:g}',
        f"Does the best rate of the embedding move over widths {widths[0]} to {widths[-1]} with "
        f"{tokens:,} tokens under {{rule}}? Table says {table:g}, sqrt {sqrt:g}",
        "octaves per doubling",
        table_or_sqrt,
    )
    tables = {float(width): at(found, width, tokens) for width in widths}
    return drift(question, tables[widths[0]].rule, tables)


def carried(found: RateRuns, tokens: int, base: int, target: int) -> FitAnswer:
    """The loss of the target with the base's best factor, minus that with what `sqrt` makes of
    it.
    """
    octaves = predicted("sqrt") * math.log2(target / base)
    question = Question(
        f"carried, {tokens:,} tokens",
        f"the loss at width {target} with width {base}'s best factor, minus that "
        f"{-octaves:g} octaves below it, which is what sqrt carries",
        f"Is the loss at width {target} with {tokens:,} tokens under {{rule}} lower with the "
        "embedding's rate by table than by sqrt?",
        "nats",
        lower_or_higher,
    )
    own, other = at(found, base, tokens), at(found, target, tokens)
    best = own.best if own.complete else None
    terms = [(other, best), (other, None if best is None else best + octaves)]
    return measured_difference(question, other.rule, terms, [own])


def over_vocabulary(found: RateRuns, width: int) -> FitAnswer:
    span = f"{VOCABULARIES[0]:,} to {VOCABULARIES[-1]:,} tokens"
    question = Question(
        f"drift over the vocabulary, width {width}",
        f"of the best factor on the embedding's rate over {span}",
        f"Is the best rate of the embedding the same from {span} at width {width} under {{rule}}?",
        "octaves per doubling",
        lower_or_higher,
    )
    tables = {float(tokens): at(found, width, tokens) for tokens in VOCABULARIES}
    return drift(question, tables[VOCABULARIES[0]].rule, tables)


def table_or_sqrt(one: Estimate) -> str:
    """Which of the two rules an interval of the drift agrees with."""
    table, sqrt = (not one.excludes(predicted(name)) for name in ("table", "sqrt"))
    if table and sqrt:
        return "undecided"
    return "agrees with table" if table else "agrees with sqrt" if sqrt else "agrees with neither"


def _panel(found: RateRuns, tokens: int, widths: tuple[int, ...]) -> WidthPanel:
    answer = over_width(found, tokens, widths)
    widest = answer.agreement.widest
    text = f"drift: {answer.agreement.verdict}"
    if widest is not None:
        text = f"drift {with_ends(widest, 2)} octaves per doubling"
    curves = [width_curve(width, at(found, width, tokens)) for width in widths]
    base = at(found, widths[0], tokens)
    return WidthPanel(
        title=f"{tokens:,} tokens",
        curves=tuple(curve for curve in curves if curve is not None),
        log2_rate=base.best if base.complete else None,
        target=widths[-1],
        at_rate=None,
        regret=text,
        gives_up=None,
    )


EXPERIMENT = Vocabulary()
