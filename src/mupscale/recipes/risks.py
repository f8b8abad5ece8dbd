"""What may go wrong with a recipe: how far the target lies from what was measured."""

from collections.abc import Iterator

from mupscale.analysis.families import RuleTransfer, StudyAnalysis
from mupscale.planning import Plan
from mupscale.recipes.crossing import RunCrossing
from mupscale.recipes.lengths import RunLength
from mupscale.recipes.options import TrainingSettings
from mupscale.recipes.shapes import ModelShape
from mupscale.recipes.swept import Swept
from mupscale.recipes.values import CarriedDecay
from mupscale.text import many
from mupscale.theory.laws import LAWS
from mupscale.training.schedule import checked_share

FEW_SEEDS = 3


def risks(
    swept: Swept,
    target: ModelShape,
    length: RunLength,
    plan: Plan,
    analysis: StudyAnalysis,
    transfer: RuleTransfer,
) -> tuple[str, ...]:
    """The risks that apply: distances from the swept models first, then weak evidence."""
    return (
        *_sizes(swept, target),
        *_sharing(swept, target, plan),
        *_architecture(swept, target),
        *_training(swept, target, length),
        *_evidence(swept, analysis, transfer),
        *plan.warnings,
    )


def schedule_risks(swept: Swept, training: TrainingSettings) -> Iterator[str]:
    """Where the target's schedule is assumed, or differs from the one that the study measured."""
    if training.origin["schedule"] == "assumed":
        yield (
            f"the study does not name its schedule; a {training.schedule} is assumed. Name it in "
            "[length] of its study.toml, or with --schedule"
        )
    known = {(name, checked_share(name, share)) for name, share in swept.schedules if name}
    ours = (training.schedule, training.decay_share)
    others = ", ".join(_schedule(*one) for one in sorted(known - {ours}, key=str))
    if others:
        yield f"the study trained with the schedule {others}; this recipe has {_schedule(*ours)}"


def _schedule(name: str, share: float | None) -> str:
    return name if share is None else f"{name} (decay share {share:g})"


def run_risks(
    crossing: RunCrossing,
    length: RunLength,
    target: ModelShape,
    decay: CarriedDecay,
    plan: Plan,
    noise_scale: float | None,
) -> Iterator[str]:
    """What may go wrong with the jump in batch and length, and with laws beyond their range."""
    rules = crossing.published
    if crossing.is_jump and rules:
        low, high = (f"{e.octaves:+.1f} ({e.choice})" for e in (rules[0], rules[-1]))
        used = "carries the rate unchanged over"
        if crossing.used != "none":
            used = f"follows {crossing.used} over"
        yield (
            f"this recipe {used} the jump in batch and length. Published rules change the rate by "
            f"{low} to {high} octaves (factors of two) there"
        )
    sizes = {
        "parameters": float(target.parameters),
        "tokens_per_parameter": length.tokens_per_parameter,
    }
    used_laws = {
        "decay": decay.chosen == "power-lines",
        "batch": length.batch_rule == "power-lines",
    }
    for name in (name for name, used in used_laws.items() if used):
        warning = LAWS[name].outside(**sizes)
        if warning is not None:
            yield f"{name} by a law beyond its range: {warning}"
    if any(used_laws.values()) and not plan.optimizer.startswith("adamw"):
        yield f"Power Lines was fitted with AdamW; this recipe is for {plan.optimizer}"
    if noise_scale is not None and length.batch_tokens > noise_scale:
        yield (
            f"batches of {amount(length.batch_tokens)} tokens are "
            f"{amount(length.batch_tokens / noise_scale)} times the gradient noise scale of the "
            f"study ({amount(noise_scale)} tokens): above it, a larger batch saves few steps, and "
            "rules that assume noise (sde, completed-p) fail. "
            "The noise scale grows as the loss falls, so the target's may be larger"
        )


def amount(number: float) -> str:
    """Three digits without a power of ten.

    >>> amount(42.6667), amount(30478.1), amount(2.0), amount(1105920)
    ('42.7', '30,478', '2', '1,105,920')
    """
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _sizes(swept: Swept, target: ModelShape) -> Iterator[str]:
    for name in ("width", "depth"):
        size, largest = getattr(target, name), max(swept.numbers(name))
        if size > largest:
            yield f"{name} {size} is {amount(size / largest)} times the largest swept ({largest})"
    growth = target.parameters / max(swept.numbers("parameters"))
    if growth > 1:
        yield f"the target has {amount(growth)} times the parameters of the largest swept model"


def _sharing(swept: Swept, target: ModelShape, plan: Plan) -> Iterator[str]:
    tried = sorted(set(swept.numbers("r")))
    if target.r not in tried:
        beyond = "" if tried[0] < target.r < tried[-1] else ", and outside their range"
        values = ", ".join(map(str, tried))
        yield f"r = {target.r} is not among the swept values of r ({values}){beyond}"
    fixed = target.kv_heads in swept.numbers("kv_heads") and target.r > max(tried)
    if fixed and not any("key/value heads stays" in warning for warning in plan.warnings):
        yield (
            f"the width grows with {target.kv_heads} key/value heads fixed, so r grows too "
            f"({max(tried)} → {target.r}): this is the least tested part of the rules"
        )


def _architecture(swept: Swept, target: ModelShape) -> Iterator[str]:
    shape = swept.variants[0].shape
    if shape.architecture != target.architecture:
        gates = ["gated" if one.gated else "not gated" for one in (shape, target)]
        differs = f"; feed-forward {gates[0]} → {gates[1]}" if shape.gated != target.gated else ""
        yield f"another architecture: {shape.architecture} → {target.architecture}{differs}"
    if shape.vocabulary and target.vocabulary and shape.vocabulary != target.vocabulary:
        data = f" ({swept.corpus})" if swept.corpus else ""
        yield (
            f"another vocabulary, so other data: {shape.vocabulary:,} tokens{data} → "
            f"{target.vocabulary:,}"
        )
    if not swept.one_base:
        yield (
            "the variants of the study have different bases; the first one's is used. Write a "
            "complete [base] table"
        )


def _training(swept: Swept, target: ModelShape, length: RunLength) -> Iterator[str]:
    for name, value, form in (
        ("tokens_per_parameter", length.tokens_per_parameter, "{} tokens per parameter"),
        ("batch_tokens", length.batch_tokens, "batches of {} tokens"),
        ("sequence", length.sequence, "sequences of {} tokens"),
    ):
        tried = [known for variant in swept.variants if (known := getattr(variant, name))]
        # A batch or a run is rounded to whole sequences: 1 % is no difference.
        if tried and value is not None and value > 1.01 * max(tried):
            times = f"{amount(value / max(tried))} times the largest swept ({amount(max(tried))})"
            yield f"{form.format(amount(value))}: {times}"
    if length.sequence and target.positions and length.sequence > target.positions:
        yield (
            f"sequences of {length.sequence:,} tokens are longer than the target's "
            f"{target.positions:,} positions"
        )


def _evidence(swept: Swept, analysis: StudyAnalysis, transfer: RuleTransfer) -> Iterator[str]:
    if len(transfer.members) < 2:
        yield "only one model was swept: transfer was not measured and rests on the rule alone"
    if len(swept.seeds) < FEW_SEEDS:
        seeds = many(len(swept.seeds), "seed")
        yield f"only {seeds}: the difference between seeds is hardly known"
    drift = transfer.drift
    if drift is not None and drift.excludes(0):
        yield (
            f"the optimum drifts with {analysis.axis} under {transfer.rule}: {drift.value:+.3f} "
            f"[{drift.low:+.3f}, {drift.high:+.3f}] octaves per doubling; the rule predicts none"
        )
    for other in analysis.comparisons:
        compared = other.quantity == "drift" and transfer.rule in (other.first, other.second)
        if compared and other.better not in (None, transfer.rule):
            yield f"the optimum drifts less under {other.better}"
    diverged = [
        cell.member.label
        for cell in analysis.cells
        if cell.rule == transfer.rule and "diverged" in cell.flags
    ]
    if diverged:
        yield f"runs diverged just above the optimum ({', '.join(diverged)})"
