"""Facts × scaling: what each parameter gets, and which factors are left to hooks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mupscale.errors import NotExactError, UnreadableModelError
from mupscale.planning.base import matched, with_fixed_norms
from mupscale.planning.units import dimensions, fused_dimensions, fused_unit, unit_for
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
    derive,
    optimizer_named,
)


@dataclass(frozen=True)
class PlanChoices:
    """What a plan is made with."""

    optimizer: Optimizer
    rule: Rule
    decay: Decay
    reference_r: int | None = None
    multipliers: Multipliers = "fold"

    def optimizer_of(self, unit: Unit) -> Optimizer:
        """AdamW trains what an optimizer of whole matrices leaves out."""
        core = unit.branch if isinstance(unit, Residual) else unit
        beside = self.optimizer.whole_matrix and not core.grows_both_ways
        return optimizer_named("adamw") if beside else self.optimizer


@dataclass
class ParameterAssignment:
    """One pass over the parameters of a model and their counterparts in the base."""

    facts: ModelFacts
    base: ModelFacts
    choices: PlanChoices
    hooks: list[Hook] = field(default_factory=list[Hook])
    _scalings: dict[Unit, Scaling] = field(default_factory=dict[Unit, Scaling])
    _known: dict[object, Factors] = field(default_factory=dict[object, Factors])

    def parameters(self) -> dict[str, PlannedParameter]:
        self.facts, self.base = (
            _with_norms_of(self.facts, self.base),
            _with_norms_of(self.base, self.facts),
        )
        self.facts, self.base = with_fixed_norms(self.facts, self.base)
        self._refuse_unseen_branches()
        self._refuse_unseen_constants()
        self._refuse_mixed_zeros()
        for norm, factor in self._norms_without_gain().items():
            self._add_hook(Hook(norm, "output", factor))
        self.facts, self.base = (
            _branches_end_in_norms(self.facts),
            _branches_end_in_norms(self.base),
        )
        counterparts = matched(self.facts, self.base)
        planned = {
            name: self._planned(fact, counterparts[name])
            for name, fact in self.facts.parameters.items()
        }
        wanted = {
            name: self._missing_factor(fact, counterparts[name])
            for name, fact in self.facts.parameters.items()
        }
        return self._applied(planned, self._with_tied_readout(wanted))

    def _refuse_unseen_branches(self) -> None:
        scaled = self.facts.depth != self.base.depth and self.choices.rule.depth != "none"
        if scaled and not self.facts.followed:
            raise UnreadableModelError(
                f"the depth differs ({self.base.depth} → {self.facts.depth}), and whether the "
                "branches end in a norm "
                "could not be seen: a forward pass on the meta device raised "
                f"{self.facts.not_followed} Pass "
                "inputs=(…) or inputs={…}, the arguments of its forward pass; or a small base with "
                "weights, which can "
                "run on the CPU; or take a base of the same depth; or a rule without depth scaling."
            )

    def _refuse_unseen_constants(self) -> None:
        if (self.facts.width, self.facts.depth) == (self.base.width, self.base.depth):
            return
        for facts in (self.facts, self.base):
            unseen = [fact.name for fact in facts.parameters.values() if fact.unseen_constant]
            if unseen:
                raise UnreadableModelError(
                    f"the forward pass multiplies what comes out of {unseen[0]} by a constant (a "
                    "buffer, it seems), "
                    "whose value the meta device does not have, and which may change with the "
                    "width. Build the model "
                    "with weights on the CPU if it is small, or write the constant as a number in "
                    "the model's code."
                )

    def _refuse_mixed_zeros(self) -> None:
        """Weights that are zero in some layers alone: most likely memory that was set aside and
        never filled.
        """
        kinds: dict[str, dict[str, ParameterFact]] = {}
        for fact in self.facts.parameters.values():
            if (
                fact.made in ("constant", "drawn")
                and fact.role not in NOT_DRAWN
                and fact.start in (0.0, None)
            ):
                kinds.setdefault(fact.template, {}).setdefault(fact.made, fact)
        for template, several in kinds.items():
            if len(several) > 1:
                raise UnreadableModelError(
                    f"{template}: {several['constant'].name} is constant and "
                    f"{several['drawn'].name} is not. If the "
                    "model was materialized with to_empty, its numbers mean nothing: plan it on "
                    "the meta device first, "
                    "then materialize it. Otherwise give both the same start."
                )

    def _unit(self, fact: ParameterFact) -> Unit:
        return unit_for(fact.role, in_block=fact.depth is not None, output=fact.output)

    def _scaling(self, unit: Unit) -> Scaling:
        if unit not in self._scalings:
            choices = self.choices
            optimizer = choices.optimizer_of(unit)
            self._scalings[unit] = derive(unit, optimizer, rule=choices.rule, decay=choices.decay)
        return self._scalings[unit]

    def _factors(self, unit: Unit, high: Mapping[str, int], low: Mapping[str, int]) -> Factors:
        key = (unit, *high.items(), *low.items())
        if key not in self._known:
            self._known[key] = self._scaling(unit).evaluate(
                target=high, base=low, reference_r=self.choices.reference_r
            )
        return self._known[key]

    def _planned(self, fact: ParameterFact, low: ParameterFact) -> PlannedParameter:
        unit = self._unit(fact)
        factors = self._factors(unit, dimensions(fact), dimensions(low))
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
            base=dimensions(low),
            output=fact.output,
            init_std=factors.init_std,
            lr=factors.lr,
            weight_decay=factors.weight_decay,
            eps=factors.eps,
            start=_start(fact, low),
            offset=fact.offset,
            kernel=fact.kernel,
            kept=_kept(fact, low),
            evidence=fact.evidence,
        )
        return self._with_rows(planned, fact, low) if fact.role == "fused_qkv" else planned

    def _with_rows(
        self, planned: PlannedParameter, fact: ParameterFact, low: ParameterFact
    ) -> PlannedParameter:
        """Rows of k and v: factors of their own, by a row multiplier where the optimizer steps
        entry by entry.
        """
        in_block = fact.depth is not None
        high, base = fused_dimensions(fact), fused_dimensions(low)
        fused = fused_unit(in_block=in_block)
        own = {name: self._factors(getattr(fused, name), high, base) for name in ("q", "k", "v")}
        same = own["q"] == own["k"] == own["v"]
        if same and not (self.choices.optimizer.whole_matrix and fact.blocks):
            return planned
        if not fact.blocks:
            raise UnreadableModelError(
                f"{fact.name} holds queries, keys and values in an order that is not known here, "
                "and they need "
                f"different rates (r = {low.repetitions} → {fact.repetitions}). Split the matrix "
                "in the model."
            )
        multipliers = self._row_multipliers(fused, high, base)
        blocks = tuple(
            RowBlock(
                role=block.role,
                slices=block.slices,
                init_std=own[name].init_std / multipliers[name],
                multiplier=multipliers[name],
                lr=own[name].lr,
                weight_decay=own[name].weight_decay,
            )
            for name, block in zip("qkv", fact.blocks, strict=True)
        )
        q = own["q"]
        return replace(
            planned, init_std=q.init_std, lr=q.lr, weight_decay=q.weight_decay, eps=q.eps, target=high, base=base,
            rows=blocks,
        )  # fmt: skip

    def _row_multipliers(
        self, fused: Unit, high: Mapping[str, int], base: Mapping[str, int]
    ) -> dict[str, float]:
        if self.choices.optimizer.whole_matrix:
            return dict.fromkeys("qkv", 1.0)
        return {
            name: block.evaluate(
                target=high, base=base, reference_r=self.choices.reference_r
            ).multiplier
            for name, block in self._scaling(fused).blocks.items()
        }

    def _missing_factor(self, fact: ParameterFact, low: ParameterFact) -> float:
        """The multiplier that the rule asks for, over what the model's own forward pass already
        has.
        """
        if fact.made == "frozen":
            return 1.0  # its numbers come from elsewhere, and are right as they are
        factors = self._factors(self._unit(fact), dimensions(fact), dimensions(low))
        return factors.multiplier / (fact.forward_multiplier / low.forward_multiplier)

    def _with_tied_readout(self, wanted: dict[str, float]) -> dict[str, float]:
        """A readout that is the embedding: its factor goes to the final norm, or to a hook before
        the readout.
        """
        if not self.facts.tied_readout:
            return wanted
        tied, low = _tied_embedding(self.facts), _tied_embedding(self.base)
        factors = self._factors(
            unit_for("readout", in_block=False), {"n": tied.fan_out}, {"n": low.fan_out}
        )
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
        """On what the readout takes; where it is no module (x @ table.T), on what the final norm
        gives.
        """
        if self.facts.readout_module is not None:
            self._add_hook(Hook(self.facts.readout_module, "input", factor))
        elif self.facts.final_norm:
            self._add_hook(Hook(self.facts.final_norm, "output", factor))
        elif factor != 1:
            raise NotExactError(
                f"the readout is the embedding {self.facts.tied_table}, used as a matrix in the "
                "forward pass, and "
                f"there is no final norm that could take its factor {factor:g}. Put the factor "
                "into the model, give "
                "it a final norm, or untie the two."
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
                self._hook_onto(
                    parameter, factor, [wanted[other] for other in siblings[parameter.module]]
                )
                result[name] = replace(parameter, multiplier=factor)
            else:
                result[name] = self._folded(parameter, factor)
            rows = tuple(
                (block.slices, block.multiplier)
                for block in parameter.rows
                if block.multiplier != 1
            )
            if rows:
                self._add_hook(Hook(parameter.module, "rows", rows=rows))
        return result

    def _folded(self, parameter: PlannedParameter, factor: float) -> PlannedParameter:
        if factor == 1:
            return parameter
        powers = optimizer_named(parameter.optimizer).fold_powers(self.choices.decay)
        values = {
            name: getattr(parameter, name) * factor ** powers[name]
            for name in ("init_std", "lr", "weight_decay", "eps")
        }
        start = (
            None
            if parameter.start is None
            else (parameter.start + parameter.offset) * factor - parameter.offset
        )
        left = parameter.start is None and (parameter.kept or not parameter.drawn)
        if left:
            raise NotExactError(
                f"{parameter.name} needs a factor of {factor:g}, and starts as the model made it, "
                "with numbers of its "
                "own. Set it to a constant in the model, or use multipliers='hook'."
            )
        return replace(parameter, **values, start=start, folded=factor)

    def _hook_onto(self, parameter: PlannedParameter, factor: float, beside: list[float]) -> None:
        """One hook for all parameters of a module; on its input where a bias is not to feel it."""
        if len(parameter.shape) > 2 and not parameter.kernel:
            raise NotExactError(
                f"{parameter.name} stacks several matrices, whose multiplier {factor:g} a hook "
                "cannot carry. "
                "Use multipliers='fold'" + self._why_not_folded(parameter)
            )
        everywhere = all(other == factor for other in beside)
        if not everywhere and not parameter.drawn:
            raise NotExactError(
                f"{parameter.name} needs a multiplier of {factor:g} that the weight beside it does "
                "not, which a hook "
                "cannot carry. Use multipliers='fold'" + self._why_not_folded(parameter)
            )
        self._add_hook(Hook(parameter.module, "output" if everywhere else "input", factor))

    def _why_not_folded(self, parameter: PlannedParameter) -> str:
        reason = optimizer_named(parameter.optimizer).not_exact
        return f" with another optimizer: {reason}." if reason else "."

    def _add_hook(self, hook: Hook) -> None:
        if (hook.factor != 1 or hook.rows) and hook not in self.hooks:
            self.hooks.append(hook)

    def _norms_without_gain(self) -> dict[str, float]:
        """Norms without parameters that end a branch, with the branch's factor."""
        owners = {name.rpartition(".")[0] for name in self.facts.parameters}
        ends = [
            f for f in self.facts.parameters.values() if f.normed_by and f.normed_by not in owners
        ]
        counterparts = matched(self.facts, self.base) if ends else {}
        return {
            fact.normed_by: self._missing_factor(fact, counterparts[fact.name])
            for fact in ends
            if fact.normed_by
        }


def _tied_embedding(facts: ModelFacts) -> ParameterFact:
    if facts.tied_table is None:
        raise UnreadableModelError(
            "the readout is tied to the embedding in the model and not in the base."
        )
    return facts.parameters[facts.tied_table]


def _start(fact: ParameterFact, low: ParameterFact) -> float | None:
    """The stored number that a parameter starts at: the model's own, or the base's where only that
    has numbers.
    """
    known = low if fact.made == "unknown" and low.made != "unknown" else fact
    return None if known.start is None else known.start - fact.offset


def _kept(fact: ParameterFact, low: ParameterFact) -> str:
    """Why a parameter is not drawn again, although its role is."""
    if fact.made == "frozen":
        return "frozen"
    known = low if fact.made == "unknown" else fact
    if known.made != "constant" or fact.role in NOT_DRAWN:
        return ""
    return f"{known.start:g} everywhere" if known.start is not None else "a fixed pattern"


def _with_norms_of(facts: ModelFacts, other: ModelFacts) -> ModelFacts:
    """What could not be followed here, from the other of the two models: both have the same
    code.
    """
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
    """Where a norm takes a branch's output, the branch ends in that norm's gain and bias instead of
    in the matrix.
    """
    constants = {
        f.normed_by: f.forward_multiplier for f in facts.parameters.values() if f.normed_by
    }
    if not constants:
        return facts
    matrices = {f.name.rpartition(".")[0] for f in facts.parameters.values() if f.normed_by}

    def moved(fact: ParameterFact) -> ParameterFact:
        module = fact.name.rpartition(".")[0]
        if module in constants:
            return replace(fact, output=True, forward_multiplier=constants[module])
        return replace(fact, output=False, forward_multiplier=1.0) if module in matrices else fact

    return replace(facts, parameters={name: moved(fact) for name, fact in facts.parameters.items()})
