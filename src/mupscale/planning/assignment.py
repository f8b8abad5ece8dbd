"""Facts × scaling: the factors of each parameter, and those that stay in hooks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mupscale.errors import NotExactError, UnreadableModelError
from mupscale.planning.base import matched, with_fixed_norms
from mupscale.planning.units import (
    dimensions,
    fused_dimensions,
    fused_unit,
    scaling_for,
    unit_for,
)
from mupscale.planning.values import Hook, Multipliers, PlannedParameter, RowBlock
from mupscale.reading import NOT_DRAWN, ModelFacts, ParameterFact, Role
from mupscale.theory import (
    Decay,
    Factors,
    Optimizer,
    Residual,
    Rule,
    Scaling,
    Unit,
    optimizer_named,
)


@dataclass(frozen=True)
class PlanChoices:
    """The settings of a plan."""

    optimizer: Optimizer
    rule: Rule
    decay: Decay
    reference_r: int | None = None
    multipliers: Multipliers = "fold"

    def optimizer_of(self, unit: Unit) -> Optimizer:
        """AdamW trains what an optimizer of whole matrices leaves out."""
        core = unit.branch if isinstance(unit, Residual) else unit
        left_out = self.optimizer.whole_matrix and not core.grows_both_ways
        return optimizer_named("adamw") if left_out else self.optimizer


@dataclass
class ParameterAssignment:
    """One pass over the parameters of a model and their counterparts in the base."""

    facts: ModelFacts
    base: ModelFacts
    choices: PlanChoices
    hooks: list[Hook] = field(default_factory=list[Hook])
    _known: dict[object, Factors] = field(default_factory=dict[object, Factors])

    def parameters(self) -> dict[str, PlannedParameter]:
        both = _with_norms_of(self.facts, self.base), _with_norms_of(self.base, self.facts)
        self.facts, self.base = with_fixed_norms(*both)
        self._refuse_unknown_branches()
        self._refuse_unknown_constants()
        self._refuse_mixed_zeros()
        for norm, factor in self._norms_without_gain().items():
            self._add_hook(Hook(norm, "output", factor))
        self.facts, self.base = map(_branches_end_in_norms, (self.facts, self.base))
        counterparts = matched(self.facts, self.base)
        pairs = {name: (fact, counterparts[name]) for name, fact in self.facts.parameters.items()}
        planned = {name: self._planned(*pair) for name, pair in pairs.items()}
        wanted = {name: self._missing_factor(*pair) for name, pair in pairs.items()}
        return self._applied(planned, self._with_tied_readout(wanted))

    def _refuse_unknown_branches(self) -> None:
        scaled = self.facts.depth != self.base.depth and self.choices.rule.depth != "none"
        if scaled and not self.facts.followed:
            raise UnreadableModelError(
                f"the depth differs ({self.base.depth} → {self.facts.depth}), and mupscale could "
                "not see whether the branches end in a norm: a forward pass on the meta device "
                f"raised {self.facts.not_followed} Pass the arguments of the forward pass as "
                "inputs=(…) or inputs={…}, use a small base with weights, which can run on the "
                "CPU, use a base of the same depth, or choose a rule without depth scaling."
            )

    def _refuse_unknown_constants(self) -> None:
        if (self.facts.width, self.facts.depth) == (self.base.width, self.base.depth):
            return
        for fact in (*self.facts.parameters.values(), *self.base.parameters.values()):
            if fact.unseen_constant:
                raise UnreadableModelError(
                    f"the forward pass multiplies the output of {fact.name} by a constant "
                    "(probably a buffer) that has no value on the meta device and may change with "
                    "the width. Build the model with weights on the CPU if it is small, or write "
                    "the constant as a number in the model's code."
                )

    def _refuse_mixed_zeros(self) -> None:
        """Weights that are zero in some layers only: probably memory that was never filled."""
        kinds: dict[str, dict[str, ParameterFact]] = {}
        for fact in self.facts.parameters.values():
            weight = fact.made in ("constant", "drawn") and fact.role not in NOT_DRAWN
            if weight and fact.start in (0.0, None):
                kinds.setdefault(fact.template, {}).setdefault(fact.made, fact)
        for template, by_kind in kinds.items():
            if len(by_kind) > 1:
                raise UnreadableModelError(
                    f"{template}: {by_kind['constant'].name} is constant and "
                    f"{by_kind['drawn'].name} is not. If the model was materialized with "
                    "to_empty, its values are undefined: plan it on the meta device first, then "
                    "materialize it. Otherwise initialize both the same way."
                )

    def _unit(self, fact: ParameterFact) -> Unit:
        return unit_for(fact.role, in_block=fact.depth is not None, output=fact.output)

    def _scaling(self, unit: Unit) -> Scaling:
        choices = self.choices
        return scaling_for(unit, choices.optimizer_of(unit).name, choices.rule, choices.decay)

    def _factors(self, unit: Unit, target: Mapping[str, int], base: Mapping[str, int]) -> Factors:
        key = (unit, *target.items(), *base.items())
        if key not in self._known:
            self._known[key] = self._scaling(unit).evaluate(
                target=target, base=base, reference_r=self.choices.reference_r
            )
        return self._known[key]

    def _planned(self, fact: ParameterFact, base: ParameterFact) -> PlannedParameter:
        unit = self._unit(fact)
        factors = self._factors(unit, dimensions(fact), dimensions(base))
        planned = PlannedParameter(
            name=fact.name,
            template=fact.template,
            shape=fact.shape,
            role=fact.role,
            out_axis=fact.out_axis,
            repetitions=fact.repetitions,
            optimizer=self._scaling(unit).optimizer.name,
            standing=self._scaling(unit).standing,
            target=dimensions(fact),
            base=dimensions(base),
            output=fact.output,
            **_optimized(factors),
            start=_start(fact, base),
            offset=fact.offset,
            kernel=fact.kernel,
            kept=_kept(fact, base),
            evidence=fact.evidence,
        )
        return self._with_rows(planned, fact, base) if fact.role == "fused_qkv" else planned

    def _with_rows(
        self, planned: PlannedParameter, fact: ParameterFact, base: ParameterFact
    ) -> PlannedParameter:
        """Separate factors for the rows of q, k and v.

        Where the optimizer steps each entry alone, a row multiplier gives them their own rate.
        """
        sizes = fused_dimensions(fact), fused_dimensions(base)
        fused = fused_unit(in_block=fact.depth is not None)
        factors = {name: self._factors(getattr(fused, name), *sizes) for name in "qkv"}
        alike = factors["q"] == factors["k"] == factors["v"]
        if alike and not (self.choices.optimizer.whole_matrix and fact.blocks):
            return planned
        if not fact.blocks:
            raise UnreadableModelError(
                f"{fact.name} holds queries, keys and values in an unknown order, and they need "
                f"different rates (r = {base.repetitions} → {fact.repetitions}). Split the matrix "
                "in the model."
            )
        multipliers = dict.fromkeys("qkv", 1.0)
        if not self.choices.optimizer.whole_matrix:
            blocks = self._scaling(fused).blocks
            multipliers = {
                name: block.evaluate(
                    target=sizes[0], base=sizes[1], reference_r=self.choices.reference_r
                ).multiplier
                for name, block in blocks.items()
            }
        rows = tuple(
            RowBlock(
                role=block.role,
                slices=block.slices,
                init_std=factors[name].init_std / multipliers[name],
                multiplier=multipliers[name],
                lr=factors[name].lr,
                weight_decay=factors[name].weight_decay,
            )
            for name, block in zip("qkv", fact.blocks, strict=True)
        )
        query = _optimized(factors["q"])
        return replace(planned, **query, target=sizes[0], base=sizes[1], rows=rows)

    def _missing_factor(self, fact: ParameterFact, base: ParameterFact) -> float:
        """The multiplier of the rule, over what the model's own forward pass already has."""
        if fact.made == "frozen":
            return 1.0  # its values come from elsewhere, and are right as they are
        factors = self._factors(self._unit(fact), dimensions(fact), dimensions(base))
        return factors.multiplier / (fact.forward_multiplier / base.forward_multiplier)

    def _with_tied_readout(self, wanted: dict[str, float]) -> dict[str, float]:
        """The factor of a readout that is the embedding: for the final norm, or a hook."""
        if not self.facts.tied_readout:
            return wanted
        tied, base = _tied_embedding(self.facts), _tied_embedding(self.base)
        readout = unit_for("readout", in_block=False)
        factors = self._factors(readout, {"n": tied.fan_out}, {"n": base.fan_out})
        own = self.facts.readout_multiplier / self.base.readout_multiplier
        in_weight = wanted[tied.name] if self._folds("embedding") else 1.0
        factor = factors.multiplier / own / in_weight
        gain = self.facts.final_gain if self.facts.followed else None
        if gain is None:
            self._hook_before_readout(factor)
            return wanted
        norm = gain.rpartition(".")[0]
        return wanted | {name: factor for name in wanted if name.rpartition(".")[0] == norm}

    def _hook_before_readout(self, factor: float) -> None:
        """On the readout's input or, if it is no module (x @ table.T), the final norm's output."""
        if self.facts.readout_module is not None:
            self._add_hook(Hook(self.facts.readout_module, "input", factor))
        elif self.facts.final_norm:
            self._add_hook(Hook(self.facts.final_norm, "output", factor))
        elif factor != 1:
            raise NotExactError(
                f"the readout is the embedding {self.facts.tied_table}, used as a matrix in the "
                f"forward pass, and there is no final norm to carry its factor {factor:g}. Put "
                "the factor into the model, add a final norm, or untie the two."
            )

    def _folds(self, role: Role) -> bool:
        optimizer = self.choices.optimizer_of(unit_for(role, in_block=False))
        return self.choices.multipliers == "fold" and not optimizer.not_exact

    def _applied(
        self, planned: Mapping[str, PlannedParameter], wanted: Mapping[str, float]
    ) -> dict[str, PlannedParameter]:
        siblings: dict[str, list[str]] = {}
        for name, parameter in planned.items():
            siblings.setdefault(parameter.module, []).append(name)
        result: dict[str, PlannedParameter] = {}
        for name, parameter in planned.items():
            factor = wanted[name]
            if factor != 1 and not self._folds(parameter.role):
                in_module = [wanted[other] for other in siblings[parameter.module]]
                self._hook_onto(parameter, factor, in_module)
                result[name] = replace(parameter, multiplier=factor)
            else:
                result[name] = self._folded(parameter, factor)
            if parameter.row_multipliers:
                self._add_hook(Hook(parameter.module, "rows", rows=parameter.row_multipliers))
        return result

    def _folded(self, parameter: PlannedParameter, factor: float) -> PlannedParameter:
        if factor == 1:
            return parameter
        start = parameter.start
        if start is None and (parameter.kept or not parameter.drawn):
            raise NotExactError(
                f"{parameter.name} needs a factor of {factor:g}, but keeps the values that the "
                "model gave it. Set it to a constant in the model, or use multipliers='hook'."
            )
        powers = optimizer_named(parameter.optimizer).fold_powers(self.choices.decay)
        values = {
            name: getattr(parameter, name) * factor ** powers[name]
            for name in ("init_std", "lr", "weight_decay", "eps")
        }
        if start is not None:
            start = (start + parameter.offset) * factor - parameter.offset
        return replace(parameter, **values, start=start, folded=factor)

    def _hook_onto(
        self, parameter: PlannedParameter, factor: float, in_module: list[float]
    ) -> None:
        """One hook for all parameters of a module; on its input if the bias must not get it."""
        everywhere = all(other == factor for other in in_module)
        problem = (
            f"stacks several matrices, and a hook cannot apply the multiplier {factor:g} to them"
            if len(parameter.shape) > 2 and not parameter.kernel
            else f"needs a multiplier of {factor:g} that the weight in its module does not need, "
            "which a hook cannot apply"
            if not everywhere and not parameter.drawn
            else ""
        )
        if problem:
            reason = optimizer_named(parameter.optimizer).not_exact
            why = f" with another optimizer: {reason}." if reason else "."
            raise NotExactError(f"{parameter.name} {problem}. Use multipliers='fold'{why}")
        self._add_hook(Hook(parameter.module, "output" if everywhere else "input", factor))

    def _add_hook(self, hook: Hook) -> None:
        if (hook.factor != 1 or hook.rows) and hook not in self.hooks:
            self.hooks.append(hook)

    def _norms_without_gain(self) -> dict[str, float]:
        """Norms without parameters that end a branch, with the branch's factor."""
        owners = {name.rpartition(".")[0] for name in self.facts.parameters}
        ends = [f for f in self.facts.parameters.values() if f.normed_by]
        ends = [fact for fact in ends if fact.normed_by not in owners]
        counterparts = matched(self.facts, self.base) if ends else {}
        return {
            fact.normed_by: self._missing_factor(fact, counterparts[fact.name])
            for fact in ends
            if fact.normed_by
        }


def _optimized(factors: Factors) -> dict[str, Any]:
    """The factors that a planned parameter keeps: all except the multiplier."""
    return {name: getattr(factors, name) for name in ("init_std", "lr", "weight_decay", "eps")}


def _tied_embedding(facts: ModelFacts) -> ParameterFact:
    if facts.tied_table is None:
        raise UnreadableModelError(
            "the readout is tied to the embedding in the model and not in the base."
        )
    return facts.parameters[facts.tied_table]


def _start(fact: ParameterFact, base: ParameterFact) -> float | None:
    """The stored start value: the model's own, or the base's if only the base has values."""
    known = base if fact.made == "unknown" and base.made != "unknown" else fact
    return None if known.start is None else known.start - fact.offset


def _kept(fact: ParameterFact, base: ParameterFact) -> str:
    """Why a parameter is not drawn again although its role is."""
    if fact.made == "frozen":
        return "frozen"
    known = base if fact.made == "unknown" else fact
    if known.made != "constant" or fact.role in NOT_DRAWN:
        return ""
    return f"{known.start:g} everywhere" if known.start is not None else "a fixed pattern"


def _with_norms_of(facts: ModelFacts, other: ModelFacts) -> ModelFacts:
    """Fill in from the other model what could not be followed here: both have the same code."""
    if facts.followed or not other.followed:
        return facts
    ends = {fact.template: fact for fact in other.parameters.values()}

    def seen(fact: ParameterFact) -> ParameterFact:
        like = ends.get(fact.template)
        if like is None:
            return fact
        norm = like.normed_by
        if norm is not None and "*" in fact.template:
            stack = fact.template.partition("*")[0]
            block = fact.name.removeprefix(stack).partition(".")[0]
            inside = norm.removeprefix(stack).partition(".")[2]
            norm = f"{stack}{block}.{inside}" if norm.startswith(stack) else norm
        return replace(fact, normed_by=norm, output=like.output, offset=like.offset)

    parameters = {name: seen(fact) for name, fact in facts.parameters.items()}
    return replace(facts, parameters=parameters, not_followed=None, final_gain=other.final_gain)


def _branches_end_in_norms(facts: ModelFacts) -> ModelFacts:
    """Where a norm takes a branch's output, its gain and bias end the branch, not the matrix."""
    normed = [fact for fact in facts.parameters.values() if fact.normed_by]
    if not normed:
        return facts
    constants = {fact.normed_by: fact.forward_multiplier for fact in normed}
    matrices = {fact.name.rpartition(".")[0] for fact in normed}

    def moved(fact: ParameterFact) -> ParameterFact:
        module = fact.name.rpartition(".")[0]
        if module in constants:
            return replace(fact, output=True, forward_multiplier=constants[module])
        return replace(fact, output=False, forward_multiplier=1.0) if module in matrices else fact

    return replace(facts, parameters={name: moved(fact) for name, fact in facts.parameters.items()})
