"""`derive`: from a unit and an optimizer to its scaling by the spectral condition, one recorded
step at a time.
"""

from dataclasses import dataclass, field, replace

import sympy

from mupscale.errors import NotDerivedError, NotExactError, OptionError, UnknownNameError
from mupscale.theory import estimates, formulas
from mupscale.theory.assumptions import Assumption
from mupscale.theory.formulas import Expr, inline, tidy
from mupscale.theory.optimizers import DECAYS, Decay, Optimizer, StepSizes, optimizer_named
from mupscale.theory.rule_files import rule_named
from mupscale.theory.rules import Rule
from mupscale.theory.scaling import Scaling
from mupscale.theory.steps import Step
from mupscale.theory.units import Fused, KeyValue, Residual, Standing, Unit, unit_named

_ZERO, _ONE = sympy.Integer(0), sympy.Integer(1)
_PAPER = "GQA-μP (arXiv 2605.15290)"

# A quantity has a name for terminals and one for LaTeX.
_SIGMA = ("σ", r"\sigma")
_RATE = ("η", r"\eta")
_DECAY = ("λ", r"\lambda")
_EPSILON = ("ε", r"\varepsilon")


def derive(
    unit: Unit | str,
    optimizer: Optimizer | str | type = "adamw",
    *,
    rule: Rule | str = "gqa-mup",
    decay: Decay = "lr_coupled",
) -> Scaling:
    """Init, multiplier, learning rate, weight decay and epsilon of a unit, with every step of the
    derivation.

    >>> kv = derive("kv", "adamw")
    >>> kv.lr, kv.weight_decay
    ((sqrt(r) + 1)/(2*n), 2*n/(sqrt(r) + 1))
    """
    unit = unit_named(unit) if isinstance(unit, str) else unit
    optimizer = optimizer_named(optimizer)
    rule = rule_named(rule) if isinstance(rule, str) else rule
    if not isinstance(unit, Unit):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(
            f"{unit!r} is not a unit. Give a name such as 'kv', or a Unit such as Dense('n', 'n')."
        )
    if decay not in DECAYS:
        raise UnknownNameError("decay", decay, DECAYS)
    if isinstance(unit, Fused):
        return _derive_fused(unit, optimizer, rule, decay)
    return _Derivation(unit, optimizer, rule, decay).scaling()


@dataclass(frozen=True)
class _Compared:
    """Size and step of a stored matrix, and of the dense one that it stands in for."""

    size: Expr
    step: Expr
    dense_size: Expr
    dense_step: Expr

    @property
    def factor(self) -> Expr:
        """The rate of the stored matrix over that of the dense one, if steps follow sizes."""
        return tidy(self.size / self.step / (self.dense_size / self.dense_step))


@dataclass
class _Derivation:
    """The steps for one parameter W that the forward pass multiplies by a.

    `core` is the unit without its residual branch. `reference` is the dense unit that it stands in
    for: for shared key/value heads, the matrix without sharing.
    """

    unit: Unit
    optimizer: Optimizer
    rule: Rule
    decay: Decay
    steps: list[Step] = field(default_factory=list[Step])

    def scaling(self) -> Scaling:
        self.core = self.unit.branch if isinstance(self.unit, Residual) else self.unit
        self.reference = self.core.reference()
        self.kv_rule = self._rule_of_part()
        if self.optimizer.whole_matrix and not self.core.grows_both_ways:
            raise NotDerivedError(
                f"{self.optimizer} steps whole hidden matrices only; {self.core} is trained by "
                f"AdamW. Use derive({self.core}, 'adamw')."
            )
        self.beta = self._branch()
        self.own_multiplier = self.core.multiplier() if self.rule.width == "scaled" else _ONE
        if self.rule.width == "scaled":
            self.sigma = self._initial_size()
            rate = self._embedding_rate(self._hidden_rate())
        else:
            self.sigma = self._sigma_by_fan_in() if self.rule.width == "init" else _ONE
            rate = self._width_unscaled()
        dense_rate, rate = rate, self._own_rate(rate)
        carries_beta = isinstance(self.unit, Residual) and self.unit.output
        return Scaling(
            unit=self.unit,
            optimizer=self.optimizer,
            rule=self.rule,
            decay=self.decay,
            init_std=self._initial_std(),
            multiplier=tidy(self.own_multiplier * (self.beta if carries_beta else 1)),
            lr=tidy(rate),
            weight_decay=self._weight_decay(rate),
            eps=self._epsilon(),
            steps=tuple(self.steps),
            assumption=self._assumption(tidy(rate / dense_rate)),
        )

    def _rule_of_part(self) -> Rule:
        """The rule, without its factor where that is for the other one of keys and values."""
        if self.rule.kv_part == "both" or self.reference == self.core:
            return self.rule
        part = self.core.part if isinstance(self.core, KeyValue) else None
        if part is None:
            raise OptionError(
                f"kv_part={self.rule.kv_part!r} treats keys and values differently, and "
                f"{self.core} does not say which it is. Derive 'k' or 'v', or set part='key' or "
                "part='value'."
            )
        return self.rule.of_part(part)

    def _assumption(self, factor: Expr) -> Assumption | None:
        if self.reference == self.core:
            return None
        return Assumption(
            rule=self.rule,
            part=self.core.part if isinstance(self.core, KeyValue) else None,
            updates=self.optimizer.assumes,
            factor=factor,
            two_norms=self._compared("derived").factor,
            one_norm=self._compared("rms").factor,
        )

    def _record(
        self,
        title: str,
        quantity: tuple[str, str],
        value: Expr,
        reason: str,
        source: str,
        standing: Standing = "derived",
    ) -> Expr:
        value = tidy(value)
        self.steps.append(Step(title, quantity, value, reason, source, standing))
        return value

    def _branch(self) -> Expr:
        if not isinstance(self.unit, Residual):
            return _ONE
        beta = self.rule.beta(self.unit.L)
        if beta == 1:
            return beta
        carrier = "this matrix" if self.unit.output else "the branch's last matrix"
        return self._record(
            "Residual branch",
            ("β", r"\beta"),
            beta,
            "L coherent branches add up to (1 + β)^L, which stays bounded for β = Θ(1/L); "
            f"{carrier} carries it, and every gradient inside the branch shrinks by it",
            f"{_PAPER}, section 3.3; rule {self.rule}",
        )

    # Rules that do not follow the spectral condition

    def _sigma_by_fan_in(self) -> Expr:
        return self._record(
            "Initial standard deviation, by the fan-in",
            ("σ = 1/√n_in", r"\sigma = 1/\sqrt{n_\text{in}}"),
            1 / sympy.sqrt(self.core.shape()[1]),
            "the entries of Wx then start at the same size at every width; the update is not "
            "constrained",
            f"LeCun et al. 1998, section 4.6; PyTorch's default; rule {self.rule}",
        )

    def _width_unscaled(self) -> Expr:
        """The rate of a rule that does not follow the width: it compensates only for gradients
        that shrink for other reasons.

        How gradients shrink with width follows from the spectral condition, which such a rule does
        not satisfy: with a constant std, the gradients of embedding, gains and readout do not
        shrink at all.
        """
        by_fan_in = self.rule.width == "init"
        self._record(
            "Width",
            _RATE if by_fan_in else ("σ = η", r"\sigma = \eta"),
            _ONE,
            f"this rule keeps the base {'learning rate' if by_fan_in else 'values'} at every width",
            f"rule {self.rule}",
        )
        rate = tidy(self._gradient_factor() ** -self.optimizer.gradient_degree)
        if rate == 1:
            return rate
        return self._record(
            "Learning rate",
            _RATE,
            rate,
            "the step is as long as the gradient, which shrinks with depth and with the share of "
            "tokens like 1/η",
            self.optimizer.source,
        )

    def _gradient_factor(self) -> Expr:
        """How much a gradient shrinks for other reasons than width."""
        return self.core.token_share() * self.beta

    # Initial size

    def _target(self) -> Expr:
        """The norm of the parameter. The condition is on its effect, which includes the
        multiplier.
        """
        return estimates.spectral_target(*self.reference.shape()) / self.own_multiplier

    def _initial_size(self) -> Expr:
        a = self.own_multiplier
        if a != 1:
            self._record(
                "Multiplier",
                ("a", "a"),
                a,
                "the forward pass multiplies the output by it, so that the base std and rate hold "
                "at every width",
                f"{_PAPER}, table 1",
            )
        over_a = "" if a == 1 else "/a"
        self._record(
            "Spectral condition",
            (
                f"‖W‖ = ‖ΔW‖ = √(n_out/n_in){over_a}",
                r"\|W\| = \|\Delta W\| = \sqrt{n_\text{out}/n_\text{in}}" + over_a,
            ),
            self._target(),
            "features and their updates then keep unit size at every width; this is the definition "
            "of feature learning",
            f"{_PAPER}, eq. 1; Yang, Simon & Bernstein 2023",
        )
        if self.core.thin_readout:
            return self._sigma_by_spectral_norm()
        if self.reference != self.core and self.kv_rule.kv_factor == "rms":
            return self._sigma_from_rms_to_rms()
        return self._sigma_by_expected_norm()

    def _sigma_by_spectral_norm(self) -> Expr:
        return self._record(
            "Initial standard deviation, by the spectral norm",
            ("σ = ‖W‖/√n_in", r"\sigma = \|W\|/\sqrt{n_\text{in}}"),
            self._target() / estimates.bai_yin_thin(_ONE, self.core.shape()[1]),
            "training aligns the features with the few rows that read them, so the spectral norm "
            "is attained: Bai–Yin, ‖W‖ = σ√n_in for a fixed n_out",
            f"{_PAPER}, appendix A.1; Bai & Yin 1993",
        )

    def _sigma_by_expected_norm(self) -> Expr:
        n_out, stored = self.reference.shape()[0], self.core.shape()[0]
        repetitions = tidy(n_out / stored)
        why = "for a full-rank matrix it agrees with the spectral norm up to a constant (lemma 2)"
        if repetitions != 1:
            times = inline(repetitions)
            why = (
                f"the forward pass uses the stored matrix {times} times, stacked: its norm is "
                f"√{times} times as large (lemma 1), it does not have full rank, and typical "
                "inputs never meet its largest direction"
            )
        return self._record(
            "Initial standard deviation, by the expected operator norm",
            ("σ = ‖W‖_E/√n_out", r"\sigma = \|W\|_E/\sqrt{n_\text{out}}"),
            self._target() / estimates.repeated(estimates.expected(_ONE, stored), repetitions),
            f"‖W‖_E = E‖Wx‖/‖x‖ = σ√n_out; {why}",
            f"{_PAPER}, eq. 2 and section 3.2",
        )

    def _sigma_from_rms_to_rms(self) -> Expr:
        n_out, n_in = self.core.shape()
        of_unit_entries = estimates.rms_to_rms(estimates.expected(_ONE, n_out), n_out, n_in)
        target = estimates.rms_to_rms(self._target(), *self.reference.shape())
        return self._record(
            "Initial standard deviation, from RMS to RMS",
            ("σ = ‖W‖_R/√n_in", r"\sigma = \|W\|_R/\sqrt{n_\text{in}}"),
            target / of_unit_entries,
            "‖W‖_R = √(n_in/n_out)·‖W‖ turns the spectral condition into ‖W‖_R = 1; over typical "
            "inputs RMS(Wx)/RMS(x) = σ√n_in, for the stored matrix and the repeated one",
            "Yang, Simon & Bernstein 2023; Bernstein & Newhouse 2024",
        )

    def _initial_std(self) -> Expr:
        if self.core.initial == "random":
            return tidy(self.sigma)
        start = "zero" if self.core.initial == "zero" else "a constant: gains at 1, biases at 0"
        return self._record("Start", _SIGMA, _ZERO, f"it starts at {start}", "convention")

    # Learning rate

    def _step(self, unit: Unit) -> Expr:
        """Norm of a step at learning rate 1."""
        n_out, n_in = unit.shape()
        gradient = unit.gradient_norm() * self.own_multiplier * self.beta
        return self.optimizer.step(StepSizes(n_out, n_in, rms=self.sigma, gradient=gradient))

    def _hidden_rate(self) -> Expr:
        shared = self.reference != self.core
        of_dense = ", of the dense matrix without repetition" if shared else ""
        constant = self.optimizer.constant
        remark = f" (times {constant}, a constant that belongs to the base rate)"
        step = self._record(
            "Step of unit learning rate" + of_dense,
            ("s", "s"),
            self._step(self.reference),
            self.optimizer.reason + ("" if constant == 1 else remark),
            self.optimizer.source,
            self.optimizer.standing,
        )
        return self._record(
            "Learning rate" + of_dense,
            ("η = ‖ΔW‖/s", r"\eta = \|\Delta W\|/s"),
            self._target() / step,
            "the step must have the norm that the spectral condition requires of ΔW",
            f"{_PAPER}, eq. 1 and appendix A.1",
        )

    def _embedding_rate(self, rate: Expr) -> Expr:
        """The rate of a token embedding, where the rule does not treat its vocabulary as fixed."""
        if not self.core.vocabulary or self.rule.embedding == "table":
            return rate
        literal = self.rule.literal_embedding()
        if literal is not None:
            return self._record(
                "Learning rate of the token embedding",
                _RATE,
                literal.subs({formulas.n: self.core.shape()[0]}, simultaneous=True),
                f"the rule sets it, embedding={self.rule.embedding!r}, instead of deriving it",
                f"rule {self.rule}",
            )
        return self._rate_for_large_vocabulary()

    def _rate_for_large_vocabulary(self) -> Expr:
        """As for the paper's repeated matrix, steps follow the spectral norm of the matrix."""
        if self.optimizer.gradient_degree:
            raise NotDerivedError(
                f"embedding='sqrt' is derived for steps that do not grow with the gradient; those "
                f"of {self.optimizer} do. Use adamw, lion or another of that kind, or "
                "embedding='table'."
            )
        tokens = sympy.Symbol("V", positive=True)
        n = self.core.shape()[0]
        size = self._record(
            "Initial size of the table",
            ("‖W₀‖ = σ(√n + √V)", r"\|W_0\| = \sigma(\sqrt{n} + \sqrt{V})"),
            estimates.bai_yin(self.sigma, n, tokens),
            "its V tokens are taken as one n × V matrix: a batch meets many of them at once",
            "Bai & Yin 1993; not in the paper",
            "extrapolated",
        )
        step = self._record(
            "Step of the table",
            ("s", "s"),
            self.optimizer.step(StepSizes(n, tokens, rms=self.sigma, gradient=_ONE)),
            "the updates of the tokens are assumed to be coherent, as in hidden matrices",
            self.optimizer.source,
            "extrapolated",
        )
        return self._record(
            "Learning rate of the token embedding, V ≫ n",
            ("η = ‖W₀‖/s", r"\eta = \|W_0\|/s"),
            sympy.limit(size / step, tokens, sympy.oo),
            "the update keeps the size of the table in the spectral norm; a vocabulary much "
            "smaller than n would give a constant, as a lookup of single tokens does",
            "arXiv 2506.15025 states η ∝ √n times the hidden rate; this derivation is ours",
            "extrapolated",
        )

    def _own_rate(self, rate: Expr) -> Expr:
        """The rate of a unit that is stored smaller than it acts, from that of its reference."""
        if self.reference == self.core:
            return rate
        rule = self.kv_rule
        factor = rule.literal_kv_factor()
        if factor is not None:
            evidence = f": {rule.evidence}" if rule.evidence else ""
            reason = (
                f"the rule sets the factor on the dense rate, kv_factor={rule.kv_factor!r}, "
                f"instead of deriving it{evidence}"
            )
            if rule != self.rule:
                reason = f"the rule's factor is for {rule.kv_part} only; this keeps the dense rate"
            return self._record(
                "Learning rate of the repeated matrix",
                _RATE,
                rate * factor.subs(self._own_dimensions(), simultaneous=True),
                reason,
                f"rule {self.rule}",
            )
        if rule.kv_factor == "rms":
            return self._rate_from_rms_to_rms(rate)
        own, dense = self._quotients()
        return self._record(
            "Learning rate of the repeated matrix",
            (
                "η = (‖W₀‖/s)/(‖W_dense‖/s_dense) × η_dense",
                r"\eta = \frac{\|W_0\|/s}{\|W_d\|/s_d}\,\eta_d",
            ),
            rate * own / dense,
            "a single repetition must give the rate of the dense matrix, found above",
            f"{_PAPER}, eq. 7",
        )

    def _own_dimensions(self) -> dict[Expr, Expr]:
        (n_out, n_in), (n_in_effect, _) = self.core.shape(), self.reference.shape()
        return {formulas.n: n_in, formulas.r: n_in_effect / n_out, formulas.inner: n_in_effect}

    def _compared(self, kv_factor: str) -> _Compared:
        """The sizes that steps follow under a derived factor: with "rms", what the spectral
        condition asks of each matrix; otherwise the spectral norm of each initial matrix.
        """
        core, values = self.core, {}
        if kv_factor == "paper":
            # The paper's formula has n for heads × head_dim: derive it so, then put in our sizes.
            core, values = KeyValue(formulas.n, formulas.r), self._own_dimensions()

        def size(unit: Unit) -> Expr:
            if kv_factor == "rms":
                return estimates.spectral_target(*unit.shape()) / self.own_multiplier
            return estimates.bai_yin(self.sigma, *unit.shape())

        found = [
            quantity(unit).subs(values, simultaneous=True)
            for unit in (core, core.reference())
            for quantity in (size, self._step)
        ]
        return _Compared(*found)

    def _rate_from_rms_to_rms(self, rate: Expr) -> Expr:
        """The rate with one norm for initial matrix and update."""
        compared = self._compared("rms")
        stored, whole = self.core.shape(), self.reference.shape()
        repetitions = tidy(whole[0] / stored[0])
        self._record(
            "Repetition, from RMS to RMS",
            ("‖W⊕‖_R/‖W‖_R", r"\|W^\oplus\|_R/\|W\|_R"),
            estimates.rms_to_rms(estimates.repeated(_ONE, repetitions), *whole)
            / estimates.rms_to_rms(_ONE, *stored),
            f"W⊕, W stacked {inline(repetitions)} times, has √{inline(repetitions)} times its "
            f"spectral norm (lemma 1) and {inline(repetitions)} times its outputs, over which RMS "
            "averages: the two cancel",
            f"{_PAPER}, lemma 1",
        )
        self._record(
            "Size of the update of the stored matrix",
            ("‖ΔW‖ = √(n_out/n_in)", r"\|\Delta W\| = \sqrt{n_\text{out}/n_\text{in}}"),
            compared.size,
            "one norm for initial matrix and update, ‖ΔW‖_R = 1 as ‖W‖_R = 1, for stored and "
            "repeated matrix alike: eq. 1, applied to the stored matrix",
            f"{_PAPER}, eq. 1; Yang, Simon & Bernstein 2023",
        )
        self._record_stored_step(compared.step)
        return self._record(
            "Learning rate of the repeated matrix",
            (
                "η = (‖ΔW‖/s)/(‖ΔW_dense‖/s_dense) × η_dense",
                r"\eta = \frac{\|\Delta W\|/s}{\|\Delta W_d\|/s_d}\,\eta_d",
            ),
            rate * compared.factor,
            "the dense matrix meets the same condition, so only size over step changes the rate",
            f"{_PAPER}, eq. 1; not its eq. 7",
        )

    def _record_stored_step(self, step: Expr) -> None:
        by_gradient = self.optimizer.gradient_degree > 0
        shared = "a shared head sums the gradients of its query heads, assumed independent"
        self._record(
            "Step of the stored matrix",
            ("s", "s"),
            step,
            shared if by_gradient else self.optimizer.reason,
            "not in the paper" if by_gradient else self.optimizer.source,
            "extrapolated" if by_gradient else self.optimizer.standing,
        )

    def _quotients(self) -> tuple[Expr, Expr]:
        """Initial size over step, of the stored matrix and of the dense one."""
        chosen = self.kv_rule.kv_factor
        as_printed = "; as printed, with heads × head_dim = n" if chosen == "paper" else ""
        compared = self._compared(chosen)
        self._record(
            "Initial size of the stored matrix",
            (
                "‖W₀‖ = σ(√n_in + √n_out)",
                r"\|W_0\| = \sigma(\sqrt{n_\text{in}} + \sqrt{n_\text{out}})",
            ),
            compared.size,
            f"it has full rank, so its spectral norm counts, given by Bai–Yin{as_printed}",
            f"{_PAPER}, eq. 6; Bai & Yin 1993",
        )
        self._record_stored_step(compared.step)
        dense = self._record(
            "Size over step of the dense matrix",
            ("‖W_dense‖/s_dense", r"\|W_d\|/s_d"),
            compared.dense_size / compared.dense_step,
            "the same two estimates for the matrix without repetition; its rate is known, so this "
            "normalizes",
            f"{_PAPER}, section 3.2: 'a factor of two'",
        )
        own = self._record(
            "Size over step of the stored matrix",
            ("‖W₀‖/s", r"\|W_0\|/s"),
            compared.size / compared.step,
            "the update must stay as large as the matrix it updates, ‖ΔW‖ = ηs = Θ(‖W₀‖), for any "
            "number of repetitions: in the spectral norm, although the expected norm sized W₀",
            f"{_PAPER}, section 3.2",
        )
        return own, dense

    # Weight decay and epsilon

    def _weight_decay(self, rate: Expr) -> Expr:
        value, standing = _ONE, "derived"
        if not self.core.decays:
            value, source = _ZERO, "Dey et al. 2025"
            reason = (
                "gains and biases are not decayed; a base tuned with decay on them has a different "
                "best rate and decay"
            )
        elif self.rule.decay == "none":
            reason, source = "this rule keeps the base decay at every size", f"rule {self.rule}"
        elif self.decay == "independent":
            source = f"{_PAPER}, section 3.1, footnote"
            reason = (
                "ΔW = -λW - η·step: the decay does not depend on the rate, so λ‖W‖ = Θ(‖W‖) "
                "requires a constant"
            )
        elif self.decay == "l2":
            value, standing = self._l2_decay()
            reason = (
                "the decay is part of the gradient and must keep its share of it: λ‖W‖ = Θ(‖g‖)"
            )
            source = "the balance of section 3.1; not in the paper"
        else:
            value, source = 1 / rate, f"{_PAPER}, section 3.1"
            reason = "ΔW = -ηλW - η·step: decay and update keep their balance if λη = Θ(1)"
        return self._record("Weight decay", _DECAY, value, reason, source, standing)

    def _l2_decay(self) -> tuple[Expr, Standing]:
        if self.rule.width == "scaled":
            scale = self.own_multiplier * self.beta
            dense = self.reference.gradient_norm() * scale / self._target()
        else:
            dense = self._gradient_factor()
        if self.reference == self.core or self.kv_rule.literal_kv_factor() is not None:
            return dense, "derived"
        compared = self._compared("rms" if self.kv_rule.kv_factor == "rms" else "derived")
        own = self.core.gradient_norm() / compared.size
        full = self.reference.gradient_norm() / compared.dense_size
        # The size of a shared head's gradient is extrapolated. Under SGD the rate has used it
        # already, and its step is marked there.
        first_use = self.optimizer.gradient_degree == 0
        return dense * tidy(own / full), "extrapolated" if first_use else "derived"

    def _epsilon(self) -> Expr:
        value, source = _ONE, f"rule {self.rule}"
        if self.rule.eps == "none":
            reason = "this rule keeps the base epsilon at every size"
        elif self.optimizer.epsilon == "none":
            reason, source = f"{self.optimizer} has no epsilon", self.optimizer.source
        elif self.rule.width != "scaled":
            factor = self._gradient_factor()
            value = self.optimizer.epsilon_size(factor, factor)
            reason = (
                "this rule does not scale the rate with width; how gradients shrink with width is "
                "derived only where the spectral condition holds"
            )
        else:
            scale = self.own_multiplier * self.beta
            value = self.optimizer.epsilon_size(
                self.core.gradient_entry() * scale, self.reference.gradient_norm() * scale
            )
            size = {"entry": "|g|", "norm": "‖g‖", "norm_squared": "‖g‖²"}[self.optimizer.epsilon]
            reason = f"it is compared with {size}, which shrinks like this, and must stay below it"
            source = f"{_PAPER}, appendix A.1"
        return self._record("Epsilon", _EPSILON, value, reason, source)


def _derive_fused(unit: Fused, optimizer: Optimizer, rule: Rule, decay: Decay) -> Scaling:
    """Rows of k and v get a multiplier c, init/c and the rate of q, which trains as their own rates
    would.
    """
    if not optimizer.elementwise:
        raise NotExactError(
            f"{optimizer} does not step the rows of a matrix independently, so the k and v rows of "
            f"{unit} cannot be scaled separately. Split the matrix into q, k and v, and derive "
            "each."
        )
    blocks = {
        name: derive(getattr(unit, name), optimizer, rule=rule, decay=decay)
        for name in ("q", "k", "v")
    }
    q = blocks["q"]
    degree = optimizer.fold_powers(decay)["lr"]
    steps = [replace(step, title=f"q: {step.title}") for step in q.steps]
    for name in ("k", "v"):
        own = blocks[name]
        c = tidy((own.lr / q.lr) ** sympy.Rational(1, degree))
        blocks[name] = own.fold(1 / c)
        if tidy(blocks[name].weight_decay - q.weight_decay) != 0:
            raise NotExactError(
                f"under {decay} decay the {name} rows of {unit} would need a different decay, "
                "which one matrix cannot have. Split the matrix into q, k and v, or use lr_coupled "
                "or independent decay."
            )
        row = Step(
            "row multiplier",
            ("c", "c"),
            c,
            f"with the rate of q these rows then train at {inline(own.lr)}; their epsilon becomes "
            "that of q over c, since one matrix has one epsilon",
            "abc-symmetry; a change of the forward pass, not a fold",
        )
        steps += [replace(step, title=f"{name}: {step.title}") for step in (*own.steps, row)]
    return Scaling(unit, optimizer, rule, decay, **q.expressions, steps=tuple(steps), blocks=blocks)
