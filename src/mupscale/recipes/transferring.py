"""`transfer`: from a study to a recipe for a target."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

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
from mupscale.planning.groups import BaseValues, takes_no_eps
from mupscale.reading import Reading
from mupscale.reading.structure import class_of
from mupscale.recipes.choosing import choose
from mupscale.recipes.lengths import RunLength, length_for, sequence_for, total_tokens
from mupscale.recipes.predicting import doubts, extrapolated, found_optima, predicted
from mupscale.recipes.recipe import Recipe, StudyEvidence
from mupscale.recipes.risks import risks
from mupscale.recipes.rows import rows_of
from mupscale.recipes.shapes import ModelShape, shape_of
from mupscale.recipes.swept import Swept, rules_of, swept_under
from mupscale.recipes.told import Betas, Told, in_words, request
from mupscale.recipes.values import BaseValue, CarriedDecay, Carrying, carried, settled
from mupscale.studies import Study
from mupscale.studies.measured import analysis_of
from mupscale.targets import Target, resolve
from mupscale.theory import Decay, optimizer_named

TORCH_EPS = 1e-8


def transfer(
    study: Study | Path | str,
    *,
    to: str | nn.Module | Target,
    rule: str | None = None,
    decay: Carrying = "wd",
    tokens: float | None = None,
    tokens_per_parameter: float | None = None,
    sequence: int | None = None,
    weight_decay: float | None = None,
    eps: float | None = None,
    std: float | None = None,
    betas: Betas | None = None,
    clip: float | None = None,
    floor: float | None = None,
    base: Base | None = None,
    reading: Reading | None = None,
    analysis: StudyAnalysis | None = None,
) -> Recipe:
    """What to train a target with, from what a study found on small models, each number with its
    interval.

    What neither the study nor you say is not made up: the recipe lists it as not known
    (`recipe.unknown`).

    study                 a study, or its folder to                    the target: a name that
    `mupscale plan` takes, a model (also on the meta device), a `Target` rule                  one
    that was swept (default: the one with the lowest loss at the proxy's optimum) decay
    carry weight decay over by its value ("wd"), or by its time scale in runs ("tau") tokens
    of the target's run; or tokens_per_parameter  (default: the study's own) sequence
    tokens of a sequence (default: the target's positions, at most 8192) weight_decay, eps, std,
    betas   of the base, in place of what the study used, where it did not search them clip
    the norm to which gradients are clipped, 0 for none, in place of the study's floor
    the share of the rate at which the cosine ends, in place of the study's base
    what was tuned, as a model or config of the target's kind, where the study's sizes are not
                          enough: `mupscale.proxy(config, width=…, depth=…)`
    reading               what the target cannot say by itself: roles, ignored keys, inputs
    (default: the
                          mupscale.toml beside a target by name)
    analysis              of the study, if it was made before
    """
    study = study if isinstance(study, Study) else Study.open(study)
    target = _target(to)
    said = target.reading if reading is None else reading
    if decay not in ("wd", "tau"):
        raise UnknownNameError("way to carry decay over", decay, ("wd", "tau"))
    _check(study, {"weight_decay": weight_decay, "eps": eps, "std": std}, rule)
    found = analysis_of(study) if analysis is None else analysis
    name, why = choose(found, rule)
    swept, shape = swept_under(study, name), shape_of(target.model, said)
    told = Told.of(swept.settings, {"betas": betas, "clip": clip, "floor": floor})
    optima, moved = found_optima(found, name), _transfer_of(found, name)
    if not optima:
        raise StudyFailedError(
            f"under {name}, not one trial finished well: there is no optimum to carry over."
        )
    made = _plan(target, swept, swept.base if base is None else base, said)
    length = _length(swept, shape, tokens, tokens_per_parameter, sequence)
    known_eps = _eps(eps, swept.settings, made, own=study.config.trainer is not None)
    lacking = _lacking(swept, optima, {"weight_decay": weight_decay, "std": std}, length)
    unknown = _unknown(made, told, known_eps, shape, sequence)
    if lacking or length is None:
        raise OptionError(
            f"the study does not say {in_words(lacking)}, without which there is no recipe"
            + (f"; nor {in_words(unknown)}, which it would leave open" if unknown else "")
            + f". {request([*lacking, *unknown])}"
        )

    log2_lr = predicted(optima["lr"], moved.mean, found.confidence)
    values = {
        parameter: BaseValue.of_log2(
            log2_lr if parameter == "lr" else predicted(several, None, found.confidence)
        )
        for parameter, several in optima.items()
    }
    decayed = _decay(decay, values, weight_decay, swept, length.steps, made.decay)
    base_std = values.get("std") or settled("std", std, swept.settings)
    bases = _base_values(made, values["lr"].value, decayed.value.value, known_eps, swept.settings)
    rows = rows_of(made, bases, base_std.value)
    reasons = doubts(found, name)
    return Recipe(
        target=target.name,
        shape=shape,
        rule=name,
        why=why,
        log2_lr=log2_lr,
        lr=values["lr"],
        decay=decayed,
        eps=known_eps,
        std=base_std,
        told=told,
        unknown=unknown,
        settings=swept.settings,
        length=length,
        plan=made,
        rows=tuple(replace(row, eps=None) for row in rows) if "eps" in unknown else rows,
        evidence=_evidence(swept, found, moved, 6.0 * shape.active_parameters * length.tokens),
        extrapolated=extrapolated(found, moved, shape),
        risks=risks(swept, shape, length, made, found, moved),
        doubts=tuple(reasons or _unbounded(values["lr"])),
    )


def _length(
    swept: Swept,
    shape: ModelShape,
    tokens: float | None,
    per_parameter: float | None,
    sequence: int | None,
) -> RunLength | None:
    """None where nothing says how many tokens the run has."""
    if tokens is None and per_parameter is None:
        per_parameter = swept.variants[0].tokens_per_parameter
    total = total_tokens(shape.parameters, tokens, per_parameter)
    asked = sequence_for(shape, sequence)
    return (
        None
        if total is None
        else length_for(shape.parameters, total, asked, swept.settings["batch_rule"])
    )


def _lacking(
    swept: Swept,
    searched: Collection[str],
    given: Mapping[str, float | None],
    length: RunLength | None,
) -> tuple[str, ...]:
    """What a recipe cannot do without."""
    found = [
        name for name, value in given.items() if value is None and swept.settings.get(name) is None
    ]
    same = {"weight_decay": {"weight_decay", "tau_epoch"}, "std": {"std"}}
    return (
        *(name for name in found if not same[name] & set(searched)),
        *(() if length else ("tokens",)),
    )


def _unknown(
    made: Plan, told: Told, eps: BaseValue | None, shape: ModelShape, sequence: int | None
) -> tuple[str, ...]:
    """What is left open in a recipe, since nobody said it."""
    found = {
        "betas": told.betas is None and _takes_betas(made),
        "eps": eps is None and _takes_eps(made),
        "clip": told.clip is None,
        "floor": told.floor is None,
        "sequence": sequence_for(shape, sequence).tokens is None,
    }
    return tuple(name for name, missing in found.items() if missing)


def _takes_betas(made: Plan) -> bool:
    return any(
        optimizer_named(parameter.optimizer).betas is not None
        for parameter in made.parameters.values()
    )


def _takes_eps(made: Plan) -> bool:
    """Whether some of its optimizers have an epsilon that is compared with a gradient's entries."""
    return any(
        optimizer_named(parameter.optimizer).epsilon == "entry" and not takes_no_eps(parameter)
        for parameter in made.parameters.values()
    )


def _target(to: object) -> Target:
    if isinstance(to, Target):
        return to
    if isinstance(to, nn.Module):
        return Target(class_of(to).__name__, to)
    if isinstance(to, str):
        return resolve(to)
    raise OptionError(f"to={to!r} is not a target. Give a name such as 'llama-3-8b', or a model.")


def _check(study: Study, given: Mapping[str, float | None], rule: str | None) -> None:
    """What can be told before anything is computed."""
    if rule is not None and rule not in rules_of(study.config):
        raise UnknownNameError("rule of this study", rule, rules_of(study.config))
    for name, value in given.items():
        same = {"weight_decay", "tau_epoch"} if name == "weight_decay" else {name}
        if value is not None and same & set(study.config.space):
            raise OptionError(
                f"{name}={value:g}, but the study searched it. Leave it out: its optimum is taken."
            )
    if not study.trials:
        raise OptionError(
            f"{study.folder} has no finished trial yet. Run it: mupscale sweep {study.folder}"
        )
    if not any(trial.loss is not None for trial in study.trials):
        raise StudyFailedError(
            f"{study.folder}: not one trial finished well, so there is no optimum to carry over."
        )


def _transfer_of(analysis: StudyAnalysis, rule: str) -> RuleTransfer:
    return next(one for one in analysis.transfers if one.rule == rule)


def _plan(target: Target, swept: Swept, base: Base, reading: Reading) -> Plan:
    settings = swept.settings
    try:
        return plan(
            target.model,
            base=base,
            optimizer=settings["name"],
            rule=swept.rule,
            decay=settings["decay"],
            multipliers=settings["multipliers"],
            reading=reading,
        )
    except (DimensionError, UnreadableModelError) as error:
        sizes = ", ".join(f"{name} {value}" for name, value in swept.base.items())
        message = f"{target.name} cannot be planned from the study's base ({sizes}): {error}"
        raise type(error)(f"{message} In Python, transfer(…, base=model) takes one.") from error


def _decay(
    way: Carrying,
    values: Mapping[str, BaseValue],
    given: float | None,
    swept: Swept,
    steps: int,
    kind: Decay,
) -> CarriedDecay:
    tau = values.get("tau_epoch")
    decay = values.get("weight_decay")
    if decay is None and tau is None:
        decay = settled("weight_decay", given, swept.settings)
    return carried(
        way, values["lr"].value, decay, tau, proxy_steps=swept.steps, target_steps=steps, kind=kind
    )  # fmt: skip


def _eps(
    given: float | None, settings: Mapping[str, Any], made: Plan, *, own: bool
) -> BaseValue | None:
    """None where nobody says it, or no optimizer of the plan takes one. The reference model trains
    with torch's.
    """
    if not _takes_eps(made):
        return None
    if given is None and settings["eps"] is None:
        return None if own else BaseValue.fixed(TORCH_EPS, "torch's default")
    return settled("eps", given, settings)


def _base_values(
    made: Plan, lr: float, decay: float, eps: BaseValue | None, settings: Mapping[str, Any]
) -> dict[str, BaseValues]:
    """By optimizer: beside Muon, AdamW may have a rate of its own."""
    found: dict[str, BaseValues] = {}
    for name in dict.fromkeys(parameter.optimizer for parameter in made.parameters.values()):
        beside = name != made.optimizer and settings.get("adamw_lr") is not None
        own_eps = eps.value if eps and optimizer_named(name).epsilon == "entry" else None
        found[name] = BaseValues(settings["adamw_lr"] if beside else lr, decay, own_eps, made.decay)
    return found


def _evidence(
    swept: Swept, analysis: StudyAnalysis, moved: RuleTransfer, target_flops: float
) -> StudyEvidence:
    members = tuple(member.label for member in moved.members)
    axis = {None: "nothing", "parameters": "size"}.get(analysis.axis, analysis.axis or "")
    worst = max((one.loss for one in moved.regrets), key=lambda loss: loss.value, default=None)
    return StudyEvidence(
        swept.study, len(swept.trials), swept.seeds, members, axis, moved.drift, worst, analysis.confidence,
        swept.flops, target_flops,
    )  # fmt: skip


def _unbounded(lr: BaseValue) -> list[str]:
    return [] if lr.bounded else ["nothing bounds the rate: add rates or seeds"]
