"""`derive`: from a unit and an optimizer to its scaling, by the spectral condition, one visible
step at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import sympy

from mupscale.errors import NotDerivedError, NotExactError, OptionError, UnknownNameError
from mupscale.theory import estimates, formulas
from mupscale.theory.formulas import Expr, inline, tidy
from mupscale.theory.optimizers import DECAYS, Decay, Optimizer, StepSizes, optimizer_named
from mupscale.theory.rule_files import rule_named
from mupscale.theory.rules import Rule
from mupscale.theory.scaling import Scaling, Step
from mupscale.theory.units import Fused, KeyValue, Residual, Standing, Unit, unit_named

_ONE = sympy.Integer(1)
_PAPER = "GQA-μP (arXiv 2605.15290)"

_SIGMA = ("σ", r"\sigma")
_RATE = ("η", r"\eta")


def derive(
    unit: Unit | str,
    optimizer: Optimizer | str | type = "adamw",
    *,
    rule: Rule | str = "gqa-mup",
    decay: Decay = "lr_coupled",
) -> Scaling:
    """Init, multiplier, learning rate, weight decay and epsilon of a unit, with the steps that lead
    there.

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


@dataclass
class _Derivation:
    """The steps for one parameter W that the forward pass multiplies by a.

    `core` is the unit without its residual branch; `reference` the dense unit whose place it takes.
    """

    unit: Unit
    optimizer: Optimizer
    rule: Rule
    decay: Decay
    steps: list[Step] = field(default_factory=list[Step])

    def scaling(self) -> Scaling:
        self.core = self.unit.branch if isinstance(self.unit, Residual) else self.unit
        self.reference = self.core.reference()
        if self.optimizer.whole_matrix and not self.core.grows_both_ways:
            raise NotDerivedError(
                f"{self.optimizer} steps whole hidden matrices; {self.core} is trained by AdamW "
                "beside it. "
                f"Use derive({self.core}, 'adamw')."
            )
        beta = self._branch()
        if self.rule.width == "scaled":
            self.own_multiplier = self.core.multiplier()
            sigma = self._initial_size()
            rate = self._hidden_rate(sigma, beta)
        else:
            self.own_multiplier = _ONE
            sigma = self._sigma_by_fan_in() if self.rule.width == "init" else _ONE
            rate = self._width_unscaled(beta)
        rate = self._own_rate(rate, sigma, beta)
        return Scaling(
            unit=self.unit,
            optimizer=self.optimizer,
            rule=self.rule,
            decay=self.decay,
            init_std=self._initial_std(sigma),
            multiplier=tidy(
                self.own_multiplier * (beta if getattr(self.unit, "output", False) else 1)
            ),
            lr=tidy(rate),
            weight_decay=self._weight_decay(rate, beta),
            eps=self._epsilon(beta),
            steps=tuple(self.steps),
        )

    def _say(
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
        carried = (
            "this matrix carries it" if self.unit.output else "the branch's last matrix carries it"
        )
        return self._say(
            "Residual branch",
            ("β", r"\beta"),
            beta,
            "L coherent branches add up to (1 + β)^L, which stays bounded for β = Θ(1/L); "
            f"{carried}, and every "
            "gradient inside the branch shrinks by it",
            f"{_PAPER}, section 3.3; rule {self.rule}",
        )

    def _sigma_by_fan_in(self) -> Expr:
        return self._say(
            "Initial standard deviation, by the fan-in",
            ("σ = 1/√n_in", r"\sigma = 1/\sqrt{n_\text{in}}"),
            1 / sympy.sqrt(self.core.shape()[1]),
            "the entries of Wx then start at the same size at every width; nothing is asked of the "
            "update",
            f"LeCun et al. 1998, section 4.6; PyTorch's default; rule {self.rule}",
        )

    def _width_unscaled(self, beta: Expr) -> Expr:
        """The rate of a rule that does not follow the width: it only makes up for a gradient that
        is known to shrink.

        How gradients shrink with width is derived from the spectral condition, which such a rule
        does not keep: of weights with a constant std, those of embedding, gains and readout do not
        shrink at all.
        """
        by_fan_in = self.rule.width == "init"
        self._say(
            "Width",
            _RATE if by_fan_in else ("σ = η", r"\sigma = \eta"),
            _ONE,
            f"this rule keeps the base {'learning rate' if by_fan_in else 'values'} at every width",
            f"rule {self.rule}",
        )
        rate = tidy(self._gradient_factor(beta) ** -self.optimizer.gradient_degree)
        if rate == 1:
            return rate
        return self._say(
            "Learning rate",
            _RATE,
            rate,
            "the step is as long as the gradient, which shrinks with depth and with the share of "
            "tokens like 1/η",
            self.optimizer.source,
        )

    def _gradient_factor(self, beta: Expr) -> Expr:
        """By how much a gradient shrinks for other reasons than width."""
        return self.core.token_share() * beta

    def _target(self) -> Expr:
        """Norm that the parameter must have: that of its effect on the network, without the
        multiplier.
        """
        return estimates.spectral_target(*self.reference.shape()) / self.own_multiplier

    def _initial_size(self) -> Expr:
        a = self.own_multiplier
        if a != 1:
            self._say(
                "Multiplier",
                ("a", "a"),
                a,
                "the forward pass multiplies the output by it, so that base std and rate serve at "
                "every width",
                f"{_PAPER}, table 1",
            )
        self._say(
            "Spectral condition",
            (
                "‖W‖ = ‖ΔW‖ = √(n_out/n_in)" + ("/a" if a != 1 else ""),
                r"\|W\| = \|\Delta W\| = \sqrt{n_\text{out}/n_\text{in}}"
                + ("/a" if a != 1 else ""),
            ),
            self._target(),
            "features and their updates then keep unit size at every width; this is the definition "
            "of feature learning",
            f"{_PAPER}, eq. 1; Yang, Simon & Bernstein 2023",
        )
        return (
            self._sigma_by_spectral_norm()
            if self.core.thin_readout
            else self._sigma_by_expected_norm()
        )

    def _sigma_by_spectral_norm(self) -> Expr:
        per_sigma = estimates.bai_yin_thin(_ONE, self.core.shape()[1])
        return self._say(
            "Initial standard deviation, by the spectral norm",
            ("σ = ‖W‖/√n_in", r"\sigma = \|W\|/\sqrt{n_\text{in}}"),
            self._target() / per_sigma,
            "training aligns the features with the few rows that read them, so the spectral norm "
            "is attained: "
            "Bai–Yin, ‖W‖ = σ√n_in beside a fixed n_out",
            f"{_PAPER}, appendix A.1; Bai & Yin 1993",
        )

    def _sigma_by_expected_norm(self) -> Expr:
        n_out, stored = self.reference.shape()[0], self.core.shape()[0]
        repetitions = tidy(n_out / stored)
        per_sigma = estimates.repeated(estimates.expected(_ONE, stored), repetitions)
        alike = "for a full-rank matrix it agrees with the spectral norm up to a constant (lemma 2)"
        times = inline(repetitions)
        degenerate = (
            f"the matrix in effect stacks the stored one {times} times: its norm is √{times} times "
            "as large (lemma 1), "
            "it has not full rank, and typical inputs never meet its largest direction"
        )
        return self._say(
            "Initial standard deviation, by the expected operator norm",
            ("σ = ‖W‖_E/√n_out", r"\sigma = \|W\|_E/\sqrt{n_\text{out}}"),
            self._target() / per_sigma,
            f"‖W‖_E = E‖Wx‖/‖x‖ = σ√n_out; {alike if repetitions == 1 else degenerate}",
            f"{_PAPER}, eq. 2 and section 3.2",
        )

    def _initial_std(self, sigma: Expr) -> Expr:
        if self.core.initial == "random":
            return tidy(sigma)
        what = {
            "zero": "it starts at zero",
            "constant": "it starts at a constant: gains at 1, biases at 0",
        }
        return self._say("Start", _SIGMA, sympy.Integer(0), what[self.core.initial], "convention")

    def _sizes(self, unit: Unit, sigma: Expr, beta: Expr) -> StepSizes:
        n_out, n_in = unit.shape()
        return StepSizes(
            n_out, n_in, rms=sigma, gradient=unit.gradient_norm() * self.own_multiplier * beta
        )

    def _hidden_rate(self, sigma: Expr, beta: Expr) -> Expr:
        step = self._say(
            "Step of unit learning rate" + self._of_dense(),
            ("s", "s"),
            self.optimizer.step(self._sizes(self.reference, sigma, beta)),
            self.optimizer.reason + self._constant_remark(),
            self.optimizer.source,
            self.optimizer.standing,
        )
        return self._say(
            "Learning rate" + self._of_dense(),
            ("η = ‖ΔW‖/s", r"\eta = \|\Delta W\|/s"),
            self._target() / step,
            "the step must have the norm that the spectral condition asks of ΔW",
            f"{_PAPER}, eq. 1 and appendix A.1",
        )

    def _of_dense(self) -> str:
        return "" if self.reference == self.core else ", of the dense matrix without repetition"

    def _constant_remark(self) -> str:
        constant = self.optimizer.constant
        return (
            ""
            if constant == 1
            else f" (times {constant}, a constant that belongs to the base rate)"
        )

    def _own_rate(self, rate: Expr, sigma: Expr, beta: Expr) -> Expr:
        """The rate of a unit that is stored smaller than it acts, from that of its reference."""
        if self.reference == self.core:
            return rate
        literal = self.rule.literal_kv_factor()
        if literal is not None:
            return self._literal_rate(rate, literal)
        own, dense = self._quotients(sigma, beta)
        return self._say(
            "Learning rate of the repeated matrix",
            (
                "η = (‖W₀‖/s)/(‖W_dense‖/s_dense) × η_dense",
                r"\eta = \frac{\|W_0\|/s}{\|W_d\|/s_d}\,\eta_d",
            ),
            rate * own / dense,
            "a single repetition must give the rate of the dense matrix, found above",
            f"{_PAPER}, eq. 7",
        )

    def _literal_rate(self, rate: Expr, factor: Expr) -> Expr:
        return self._say(
            "Learning rate of the repeated matrix",
            _RATE,
            rate * factor.subs(self._own_dimensions(), simultaneous=True),
            f"the rule sets the factor on the dense rate, kv_factor={self.rule.kv_factor!r}, "
            "instead of deriving it" + (f": {self.rule.evidence}" if self.rule.evidence else ""),
            f"rule {self.rule}",
        )

    def _own_dimensions(self) -> dict[Expr, Expr]:
        (n_out, n_in), (n_in_effect, _) = self.core.shape(), self.reference.shape()
        return {formulas.n: n_in, formulas.r: n_in_effect / n_out, formulas.inner: n_in_effect}

    def _quotients(self, sigma: Expr, beta: Expr) -> tuple[Expr, Expr]:
        """Initial size over step, of the stored matrix and of the dense one."""
        core, as_printed = self.core, ""
        if self.rule.kv_factor == "paper":
            core, as_printed = (
                KeyValue(formulas.n, formulas.r),
                "; as printed, with heads × head_dim = n",
            )
        values = self._own_dimensions() if as_printed else {}
        size, step, dense = (
            expression.subs(values, simultaneous=True)
            for expression in (
                estimates.bai_yin(sigma, *core.shape()),
                self._step(core, sigma, beta),
                estimates.bai_yin(sigma, *core.reference().shape())
                / self._step(core.reference(), sigma, beta),
            )
        )
        self._say(
            "Initial size of the stored matrix",
            (
                "‖W₀‖ = σ(√n_in + √n_out)",
                r"\|W_0\| = \sigma(\sqrt{n_\text{in}} + \sqrt{n_\text{out}})",
            ),
            size,
            "it has full rank, so its spectral norm counts, and Bai–Yin gives that" + as_printed,
            f"{_PAPER}, eq. 6; Bai & Yin 1993",
        )
        by_gradient = self.optimizer.gradient_degree > 0
        self._say(
            "Step of the stored matrix",
            ("s", "s"),
            step,
            "a shared head sums the gradients of its query heads, taken as independent"
            if by_gradient
            else self.optimizer.reason,
            "not in the paper" if by_gradient else self.optimizer.source,
            "extrapolated" if by_gradient else self.optimizer.standing,
        )
        self._say(
            "Size over step of the dense matrix",
            ("‖W_dense‖/s_dense", r"\|W_d\|/s_d"),
            dense,
            "the same two estimates for the matrix without repetition; its rate is known, so this "
            "normalises",
            f"{_PAPER}, section 3.2: 'a factor of two'",
        )
        own = self._say(
            "Size over step of the stored matrix",
            ("‖W₀‖/s", r"\|W_0\|/s"),
            size / step,
            "the update must stay as large as the matrix it updates, ‖ΔW‖ = ηs = Θ(‖W₀‖), at every "
            "repetition",
            f"{_PAPER}, section 3.2",
        )
        return own, dense

    def _step(self, unit: Unit, sigma: Expr, beta: Expr) -> Expr:
        return self.optimizer.step(self._sizes(unit, sigma, beta))

    def _weight_decay(self, rate: Expr, beta: Expr) -> Expr:
        if not self.core.decays:
            reason = "gains and biases are not decayed; a base tuned with decay on them has another best rate and decay"
            return self._say_decay(sympy.Integer(0), reason, "Dey et al. 2025")
        if self.rule.decay == "none":
            return self._say_decay(
                _ONE, "this rule keeps the base decay at every size", f"rule {self.rule}"
            )
        if self.decay == "independent":
            reason = "ΔW = -λW - η·step: the decay does not pass through the rate, so λ‖W‖ = Θ(‖W‖) asks for a constant"
            return self._say_decay(_ONE, reason, f"{_PAPER}, section 3.1, footnote")
        if self.decay == "l2":
            return self._say_decay(
                self._l2_decay(beta),
                "the decay is part of the gradient and must keep its share of it: λ‖W‖ = Θ(‖g‖)",
                "the balance of section 3.1; not in the paper",
                "extrapolated" if self._rests_on_shared_gradient() else "derived",
            )
        reason = "ΔW = -ηλW - η·step: decay and update keep their balance if λη = Θ(1)"
        return self._say_decay(1 / rate, reason, f"{_PAPER}, section 3.1")

    def _say_decay(
        self, value: Expr, reason: str, source: str, standing: Standing = "derived"
    ) -> Expr:
        return self._say("Weight decay", ("λ", r"\lambda"), value, reason, source, standing)

    def _rests_on_shared_gradient(self) -> bool:
        """Whether the size of a shared head's gradient enters here first; under SGD the rate has
        used it already.
        """
        derived = self.reference != self.core and self.rule.literal_kv_factor() is None
        return derived and self.optimizer.gradient_degree == 0

    def _l2_decay(self, beta: Expr) -> Expr:
        if self.rule.width == "scaled":
            dense = self.reference.gradient_norm() * self.own_multiplier * beta / self._target()
        else:
            dense = self._gradient_factor(beta)
        if self.reference == self.core or self.rule.literal_kv_factor() is not None:
            return dense
        return (
            dense
            * _over_reference(lambda unit: unit.gradient_norm(), self.core)
            / _over_reference(_bai_yin, self.core)
        )

    def _epsilon(self, beta: Expr) -> Expr:
        if self.rule.eps == "none":
            return self._say_epsilon(
                _ONE, "this rule keeps the base epsilon at every size", f"rule {self.rule}"
            )
        if self.optimizer.epsilon == "none":
            return self._say_epsilon(
                _ONE, f"{self.optimizer} has no epsilon", self.optimizer.source
            )
        if self.rule.width != "scaled":
            factor = self._gradient_factor(beta)
            return self._say_epsilon(
                self.optimizer.epsilon_size(factor, factor),
                "this rule does not scale the rate with width; how gradients shrink with width is "
                "derived only where "
                "the spectral condition holds",
                f"rule {self.rule}",
            )
        scale = self.own_multiplier * beta
        size = self.optimizer.epsilon_size(
            self.core.gradient_entry() * scale, self.reference.gradient_norm() * scale
        )
        what = {"entry": "|g|", "norm": "‖g‖", "norm_squared": "‖g‖²"}[self.optimizer.epsilon]
        return self._say_epsilon(
            size,
            f"it is compared with {what}, which shrinks like this, and must stay below it",
            f"{_PAPER}, appendix A.1",
        )

    def _say_epsilon(self, value: Expr, reason: str, source: str) -> Expr:
        return self._say("Epsilon", ("ε", r"\varepsilon"), value, reason, source)


def _bai_yin(unit: Unit) -> Expr:
    return estimates.bai_yin(_ONE, *unit.shape())


def _over_reference(measure: Callable[[Unit], Expr], unit: Unit) -> Expr:
    return tidy(measure(unit) / measure(unit.reference()))


def _derive_fused(unit: Fused, optimizer: Optimizer, rule: Rule, decay: Decay) -> Scaling:
    """Rows of k and v get a multiplier c, init/c and the rate of q: the same training as rates of
    their own.
    """
    if not optimizer.elementwise:
        raise NotExactError(
            f"{optimizer} does not step the rows of a matrix one by one, so k and v rows of {unit} "
            "cannot be scaled by "
            "themselves. Split the matrix into q, k and v, and derive each."
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
                f"under {decay} decay the {name} rows of {unit} would need a decay of their own, "
                "which one matrix "
                "cannot have. Split the matrix into q, k and v, or use lr_coupled or independent "
                "decay."
            )
        reason = (
            f"with the rate of q these rows then train at {inline(own.lr)}; their epsilon becomes "
            "that of q over c, "
            "since one matrix has one epsilon"
        )
        row = Step(
            "row multiplier",
            ("c", "c"),
            c,
            reason,
            "abc-symmetry; a change of the forward pass, not a fold",
        )
        steps += [replace(step, title=f"{name}: {step.title}") for step in (*own.steps, row)]
    return Scaling(unit, optimizer, rule, decay, **q.expressions, steps=tuple(steps), blocks=blocks)
