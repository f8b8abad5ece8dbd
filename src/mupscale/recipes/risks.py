"""What may go wrong between what was swept and the target, in words and with numbers."""

from collections.abc import Iterator

from mupscale.analysis.families import RuleTransfer, StudyAnalysis
from mupscale.planning import Plan
from mupscale.recipes.lengths import RunLength
from mupscale.recipes.shapes import ModelShape
from mupscale.recipes.swept import Swept

FEW_SEEDS = 3


def risks(
    swept: Swept,
    target: ModelShape,
    length: RunLength,
    plan: Plan,
    analysis: StudyAnalysis,
    transfer: RuleTransfer,
) -> tuple[str, ...]:
    """Those that apply, the furthest from what was measured first."""
    return (
        *_distances(swept, target),
        *_sharing(swept, target, plan),
        *_architecture(swept, target),
        *_training(swept, length),
        *_positions(target, length),
        *_evidence(swept, analysis, transfer),
        *plan.warnings,
    )


def amount(number: float) -> str:
    """Three digits, and no power of ten.

    >>> amount(42.6667), amount(30478.1), amount(2.0), amount(1105920)
    ('42.7', '30,478', '2', '1,105,920')
    """
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _distances(swept: Swept, target: ModelShape) -> Iterator[str]:
    for what in ("width", "depth"):
        here, largest = getattr(target, what), max(swept.numbers(what))
        if here > largest:
            yield f"{what} {here} is {amount(here / largest)} times the largest that was swept ({largest})"
    grown = target.parameters / max(swept.numbers("parameters"))
    if grown > 1:
        yield f"the target has {amount(grown)} times the parameters of the largest model that was swept"


def _sharing(swept: Swept, target: ModelShape, plan: Plan) -> Iterator[str]:
    tried = sorted(set(swept.numbers("r")))
    if target.r not in tried:
        beyond = "" if tried[0] < target.r < tried[-1] else ", and lies beyond them"
        yield f"r = {target.r} is not among the r that were swept ({', '.join(map(str, tried))}){beyond}"
    fixed = target.kv_heads in swept.numbers("kv_heads") and target.r > max(tried)
    if fixed and not any("key/value heads stays" in warning for warning in plan.warnings):
        yield (
            f"{target.kv_heads} key/value heads are kept while the width grows, so r grows with it "
            f"({max(tried)} → {target.r}): the least tested part of the rules"
        )


def _architecture(swept: Swept, target: ModelShape) -> Iterator[str]:
    shape = swept.variants[0].shape
    if shape.architecture != target.architecture:
        kinds = ["gated" if one.gated else "not gated" for one in (shape, target)]
        differs = (
            f"; its feed-forward part was {kinds[0]} and is {kinds[1]}"
            if shape.gated != target.gated
            else ""
        )
        yield f"another architecture: {shape.architecture} was swept, and this is {target.architecture}{differs}"
    if shape.vocabulary and target.vocabulary and shape.vocabulary != target.vocabulary:
        data = f" ({swept.corpus})" if swept.corpus else ""
        yield f"another vocabulary, and so other data: {shape.vocabulary} tokens{data} there, {target.vocabulary} here"
    if not swept.one_base:
        yield "the variants of the study have different bases: that of the first is taken. Write all of [base]"


def _training(swept: Swept, length: RunLength) -> Iterator[str]:
    for what, here, form in (
        ("tokens_per_parameter", length.tokens_per_parameter, "{} tokens per parameter"),
        ("batch_tokens", length.batch_tokens, "a batch of {} tokens"),
        ("sequence", length.sequence, "sequences of {} tokens"),
    ):
        tried = [value for variant in swept.variants if (value := getattr(variant, what))]
        if tried and here is not None and here > 1.01 * max(tried):
            silent = ". The rules say nothing on batch size" if what == "batch_tokens" else ""
            most = max(tried)
            times = f"{amount(here / most)} times the most that was swept ({amount(most)})"
            yield f"{form.format(amount(here))}, {times}{silent}"


def _positions(target: ModelShape, length: RunLength) -> Iterator[str]:
    if (
        length.sequence is not None
        and target.positions is not None
        and length.sequence > target.positions
    ):
        yield f"sequences of {length.sequence:,} tokens are longer than the target's {target.positions:,} positions"


def _evidence(swept: Swept, analysis: StudyAnalysis, transfer: RuleTransfer) -> Iterator[str]:
    if len(transfer.members) < 2:
        yield "one model was swept: that its optimum is the target's rests on the rule alone and was not measured"
    if len(swept.seeds) < FEW_SEEDS:
        yield f"{len(swept.seeds)} seed{'s' * (len(swept.seeds) != 1)} only: how far seeds differ is hardly known"
    drift = transfer.drift
    if drift is not None and drift.excludes(0):
        yield (
            f"the optimum moves with {analysis.axis} under {transfer.rule}: {drift.value:+.3f} "
            f"[{drift.low:+.3f}, "
            f"{drift.high:+.3f}] octaves for each doubling. It does not stand still, as the rule "
            "would have it"
        )
    for other in analysis.comparisons:
        compared = other.quantity == "drift" and transfer.rule in (other.first, other.second)
        if compared and other.better not in (None, transfer.rule):
            yield f"the optimum moves less under {other.better}"
    diverged = [
        c.member.label for c in analysis.cells if c.rule == transfer.rule and "diverged" in c.flags
    ]
    if diverged:
        yield f"runs diverged beyond the optimum ({', '.join(diverged)}): the stable range ends near it"
