"""`transfer`: from a study to a recipe for a target."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from torch import nn

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import RuleTransfer, StudyAnalysis
from mupscale.errors import (
    DimensionError,
    OptionError,
    StudyFailedError,
    UnknownNameError,
    UnreadableModelError,
)
from mupscale.planning import Plan, plan
from mupscale.planning.base import Base
from mupscale.planning.factors import GROUPS
from mupscale.planning.groups import BaseValues, takes_no_eps
from mupscale.reading import Reading
from mupscale.reading.structure import class_of
from mupscale.recipes.choosing import choose
from mupscale.recipes.crossing import Averages, crossed
from mupscale.recipes.lengths import (
    RunLength,
    batch_choice,
    length_for,
    sequence_for,
    total_tokens,
)
from mupscale.recipes.options import (
    TargetRun,
    TrainingSettings,
    TunedBase,
    how_to_set,
    in_words,
    refuse_ungrouped,
)
from mupscale.recipes.predicting import doubts, extrapolated, predicted, rule_optima
from mupscale.recipes.recipe import Recipe, StudyEvidence
from mupscale.recipes.risks import risks, run_risks, schedule_risks
from mupscale.recipes.rows import rows_of
from mupscale.recipes.shapes import shape_of
from mupscale.recipes.swept import Swept, swept_under
from mupscale.recipes.values import BaseValue, Carrying, DecayLaw, carried, settled
from mupscale.studies import Study
from mupscale.studies.config import factors_in
from mupscale.studies.measured import analysis_of
from mupscale.targets import Target, resolve
from mupscale.theory import Rule, RunFactors, RunSize, optimizer_named
from mupscale.theory.laws import LAWS
from mupscale.theory.rule_files import with_run

TORCH_EPS = 1e-8


def transfer(
    study: Study | Path | str,
    *,
    to: str | nn.Module | Target,
    rule: str | None = None,
    decay: Carrying = "wd",
    run: TargetRun | None = None,
    base: TunedBase | Base | None = None,
    reading: Reading | None = None,
    analysis: StudyAnalysis | None = None,
    **ungrouped: Any,
) -> Recipe:
    """A recipe for a target, with intervals, from a study of small models.

    What neither the study nor you say is left open and listed in `recipe.unknown`.

    study     a study, or its folder
    to        the target: a name that `mupscale plan` takes, a model (also on the meta device) or a
              `Target`
    rule      a rule of the study (default: the one with the lowest loss at the proxy's optimum)
    decay     what to keep of weight decay: its value ("wd"), its time scale in runs ("tau"), or
              neither: take the time scale from a law ("power-lines")
    run       the target's run: `TargetRun(tokens=1e12, run="completed-p")`
    base      what you know about the base: `TunedBase(weight_decay=0.1)`, or its model or config
    reading   what the target cannot say by itself: roles, ignored keys, inputs (default: the
              mupscale.toml next to a target given by name)
    analysis  of the study, if you already have it
    """
    refuse_ungrouped(ungrouped)
    study = study if isinstance(study, Study) else Study.open(study)
    target, run = _target(to), run or TargetRun()
    base = base if isinstance(base, TunedBase) else TunedBase(model=base)
    reading = target.reading if reading is None else reading
    _check(study, base, run, rule, decay)
    analysis = analysis_of(study) if analysis is None else analysis
    name, why = choose(analysis, rule)
    swept, shape = swept_under(study, name), shape_of(target.model, reading)
    optima = rule_optima(analysis, name)
    training = TrainingSettings.of(_with_betas(swept.settings, optima), base, run)
    moved = next(one for one in analysis.transfers if one.rule == name)
    if not optima:
        raise StudyFailedError(f"no trial of {name} finished, so there is no optimum to transfer.")
    factors = _factors(swept.settings, optima, analysis.confidence)
    swept = replace(swept, rule=with_run(swept.rule, run.run))
    planned = _plan(target, swept, base.model, reading)
    planned = planned.with_factors({name: one.value for name, one in factors.items()})
    sequence = sequence_for(shape, run.sequence)
    tokens = total_tokens(shape.parameters, run, swept.variants[0].tokens_per_parameter)
    eps = _eps(base.eps, swept.settings, planned, custom=study.config.trainer is not None)
    if "eps" in optima:
        eps = BaseValue.of_log2(predicted(optima["eps"], None, analysis.confidence))
    unknown = _unknown(planned, training, eps, sequence[0])
    missing = _missing(swept.settings, optima, base, tokens)
    if missing or tokens is None:
        raise OptionError(
            f"the study does not give {in_words(missing)}, which a recipe needs"
            + (f", nor {in_words(unknown)}, which it would leave open" if unknown else "")
            + f". {how_to_set([*missing, *unknown])}"
        )
    batch = batch_choice(run, swept.settings["batch_rule"])
    length = length_for(shape.parameters, tokens, sequence, batch)
    training.check_fit(length.steps, length.warmup)
    planned, crossing = crossed(
        planned,
        swept.runs,
        RunSize(length.batch_tokens, length.tokens),
        used_source="as requested" if run.run else f"as the study's rule {name} says",
        averages=_averages(planned, training, swept.settings),
    )

    log2_lr = predicted(optima["lr"], moved.mean, analysis.confidence)
    values = {
        parameter: BaseValue.of_log2(predicted(members, None, analysis.confidence))
        for parameter, members in optima.items()
    } | {"lr": BaseValue.of_log2(log2_lr)}
    for fixed in ("weight_decay", "std"):
        if fixed not in _with_decay(values):
            values[fixed] = settled(fixed, getattr(base, fixed), swept.settings)
    carried_decay = carried(
        decay,
        values["lr"].value,
        values.get("weight_decay"),
        values.get("tau_epoch"),
        proxy_steps=swept.steps,
        target_steps=length.steps,
        kind=planned.decay,
        factors=_run_factors(planned),
        law=_decay_law(planned, length, values["lr"].value, swept.settings),
    )
    noise_scale = base.noise_scale or _noise_scale(swept)
    numbers = (values["lr"].value, carried_decay.value.value, eps.value if eps else None)
    rows = rows_of(planned, _base_values(planned, *numbers, swept.settings), values["std"].value)
    unbounded = [] if values["lr"].bounded else ["nothing bounds the rate: add rates or seeds"]
    return Recipe(
        target=target.name,
        shape=shape,
        rule=name,
        why=why,
        log2_lr=log2_lr,
        lr=values["lr"],
        decay=carried_decay,
        eps=eps,
        std=values["std"],
        factors=factors,
        training=training,
        unknown=unknown,
        settings=swept.settings,
        length=length,
        crossing=crossing,
        noise_scale=noise_scale,
        plan=planned,
        rows=tuple(replace(row, eps=None) for row in rows) if "eps" in unknown else rows,
        evidence=_evidence(swept, analysis, moved, 6.0 * shape.active_parameters * length.tokens),
        extrapolated=extrapolated(analysis, moved, shape),
        risks=(
            *schedule_risks(swept, training),
            *risks(swept, shape, length, planned, analysis, moved),
            *run_risks(crossing, length, shape, carried_decay, planned, noise_scale),
        ),
        doubts=tuple(doubts(analysis, name) or unbounded),
    )


def _target(to: object) -> Target:
    if isinstance(to, Target):
        return to
    if isinstance(to, nn.Module):
        return Target(class_of(to).__name__, to)
    if isinstance(to, str):
        return resolve(to)
    raise OptionError(f"to={to!r} is not a target. Give a name such as 'llama-3-8b', or a model.")


def _check(study: Study, base: TunedBase, run: TargetRun, rule: str | None, decay: str) -> None:
    """Find wrong arguments before anything is computed."""
    if decay not in get_args(Carrying):
        raise UnknownNameError("way to carry decay over", decay, get_args(Carrying))
    with_run(Rule("given"), run.run)
    noise = base.noise_scale
    if noise is not None and not (math.isfinite(noise) and noise > 0):
        raise OptionError(f"noise_scale={noise:g} must be a positive number of tokens.")
    rules = dict.fromkeys(cell.rule_name for cell in study.config.cells())
    if rule is not None and rule not in rules:
        raise UnknownNameError("rule of this study", rule, rules)
    searched = _with_decay(study.config.space)
    for name in ("weight_decay", "eps", "std"):
        value = getattr(base, name)
        if value is not None and name in searched:
            raise OptionError(
                f"{name}={value:g}, but the study searched it. Leave it out: the recipe uses the "
                "optimum."
            )
    if not study.trials:
        raise OptionError(
            f"{study.folder} has no finished trial yet. Run it: mupscale sweep {study.folder}"
        )
    if not any(trial.loss is not None for trial in study.trials):
        raise StudyFailedError(
            f"{study.folder}: no trial finished, so there is no optimum to transfer."
        )


def _factors(
    settings: Mapping[str, Any], optima: Mapping[str, Sequence[Estimate]], confidence: float
) -> dict[str, BaseValue]:
    """By kind of weight: those that the study searched, and those that it trained with."""
    fixed = {
        name: BaseValue.fixed(value, "not searched")
        for name, value in (settings.get("factors") or {}).items()
    }
    searched = {
        name: BaseValue.of_log2(predicted(optima[name], None, confidence))
        for name in factors_in(dict.fromkeys(optima, 1.0))
    }
    return fixed | searched


def _with_betas(
    settings: Mapping[str, Any], optima: Mapping[str, Sequence[Estimate]]
) -> Mapping[str, Any]:
    """The study's settings, with the β2 that it found if it searched one."""
    if "one_minus_beta2" not in optima or settings.get("betas") is None:
        return settings
    found = predicted(optima["one_minus_beta2"])
    return {**settings, "betas": (settings["betas"][0], 1 - 2**found.value)}


def _averages(planned: Plan, training: TrainingSettings, settings: Mapping[str, Any]) -> Averages:
    """What the optimizer averages with, as far as it is known."""
    row = optimizer_named(planned.optimizer)
    return Averages(
        betas=None if row.betas is None else training.betas,
        momentum=settings.get("momentum") if row.momentum else None,
    )


def _run_factors(planned: Plan) -> RunFactors:
    """What the rule for the run multiplies the base values of the matrices by."""
    if planned.run is None:
        return RunFactors()
    return planned.run.factors(planned.rule, planned.optimizer, planned.decay)


def _decay_law(
    planned: Plan, length: RunLength, lr: float, settings: Mapping[str, Any]
) -> DecayLaw | None:
    """τ_epoch of the hidden weights by a law: their geometric mean where the rule does not scale
    decay, so that it differs between them.
    """
    if planned.decay == "l2":
        return None
    base = _base_values(planned, lr, 1.0, None, settings)
    products = [
        values["lr"] * values["weight_decay"]
        for parameter in planned.parameters.values()
        if parameter.role in GROUPS["hidden"]
        for values in [base[parameter.optimizer].of(parameter)]
    ]
    decayed = [product for product in products if product > 0]
    if not decayed:
        return None
    ratio = length.tokens_per_parameter
    return DecayLaw(LAWS["decay"].at(TPP=ratio), ratio, statistics.geometric_mean(decayed))


def _noise_scale(swept: Swept) -> float | None:
    """The median over the trials that recorded one."""
    found = [trial.noise_scale_tokens for trial in swept.trials if trial.noise_scale_tokens]
    return statistics.median(found) if found else None


def _with_decay(searched: Mapping[str, Any]) -> set[str]:
    """Searched parameters; the time scale of decay stands for decay itself."""
    return {*searched, *(["weight_decay"] if "tau_epoch" in searched else [])}


def _missing(
    settings: Mapping[str, Any], optima: Mapping[str, Any], base: TunedBase, tokens: float | None
) -> list[str]:
    """What a recipe needs and nobody gives."""
    names = ["weight_decay", "std"]
    known = {n for n in names if getattr(base, n) is not None or settings.get(n) is not None}
    known |= _with_decay(optima)
    return [name for name in names if name not in known] + (["tokens"] if tokens is None else [])


def _unknown(
    planned: Plan, training: TrainingSettings, eps: BaseValue | None, sequence: int | None
) -> tuple[str, ...]:
    """What a recipe leaves open, since nobody gives it."""
    optimizers = {parameter.optimizer for parameter in planned.parameters.values()}
    with_betas = any(optimizer_named(name).betas is not None for name in optimizers)
    missing = {
        "betas": training.betas is None and with_betas,
        "eps": eps is None and _takes_eps(planned),
        "clip": training.clip is None,
        "floor": training.floor is None,
        "sequence": sequence is None,
    }
    return tuple(name for name, is_missing in missing.items() if is_missing)


def _takes_eps(planned: Plan) -> bool:
    """Whether an optimizer of the plan has an epsilon that is compared with gradient entries."""
    return any(
        optimizer_named(parameter.optimizer).epsilon == "entry" and not takes_no_eps(parameter)
        for parameter in planned.parameters.values()
    )


def _plan(target: Target, swept: Swept, base: Base | None, reading: Reading) -> Plan:
    settings = swept.settings
    try:
        return plan(
            target.model,
            base=swept.base if base is None else base,
            optimizer=settings["name"],
            rule=swept.rule,
            decay=settings["decay"],
            multipliers=settings["multipliers"],
            reading=reading,
        )
    except (DimensionError, UnreadableModelError) as error:
        sizes = ", ".join(f"{name} {value}" for name, value in swept.base.items())
        message = f"{target.name} cannot be planned from the study's base ({sizes}): {error}"
        raise type(error)(f"{message} In Python, pass transfer(…, base=model).") from error


def _eps(
    given: float | None, settings: Mapping[str, Any], planned: Plan, *, custom: bool
) -> BaseValue | None:
    """None if unknown, or if no optimizer takes one. The reference model trains with torch's."""
    if not _takes_eps(planned):
        return None
    if given is None and settings["eps"] is None:
        return None if custom else BaseValue.fixed(TORCH_EPS, "torch's default")
    return settled("eps", given, settings)


def _base_values(
    planned: Plan, lr: float, decay: float, eps: float | None, settings: Mapping[str, Any]
) -> dict[str, BaseValues]:
    """By optimizer: next to Muon, AdamW may have a rate of its own."""
    values: dict[str, BaseValues] = {}
    for name in dict.fromkeys(parameter.optimizer for parameter in planned.parameters.values()):
        second = name != planned.optimizer and settings.get("adamw_lr") is not None
        own_eps = eps if optimizer_named(name).epsilon == "entry" else None
        rate = settings["adamw_lr"] if second else lr
        values[name] = BaseValues(rate, decay, own_eps, planned.decay)
    return values


def _evidence(
    swept: Swept, analysis: StudyAnalysis, moved: RuleTransfer, target_flops: float
) -> StudyEvidence:
    return StudyEvidence(
        study=swept.study,
        runs=len(swept.trials),
        seeds=swept.seeds,
        members=tuple(member.label for member in moved.members),
        axis={None: "nothing", "parameters": "size"}.get(analysis.axis, analysis.axis or ""),
        drift=moved.drift,
        drift_verdict=analysis.drift_verdict(moved.rule).sentence.replace(":", ";", 1),
        regret=max((one.loss for one in moved.regrets), key=lambda x: x.value, default=None),
        confidence=analysis.confidence,
        study_flops=swept.flops,
        target_flops=target_flops,
    )
