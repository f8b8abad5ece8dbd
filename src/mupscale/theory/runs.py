"""Batch and length: how the rate, decay, epsilon and moving averages change with them.

A run has two sizes, like a model: its batch B and the D tokens of the whole run, which are D/B
steps. What a rule says about them is a choice of its own (`Rule.run`), because the theory of widths
says nothing about noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy

from mupscale.errors import DimensionError, NotDerivedError, OptionError, UnknownNameError
from mupscale.text import wrapped
from mupscale.theory import formulas
from mupscale.theory.formulas import Expr, inline, tidy
from mupscale.theory.optimizers import DECAYS, Decay, Optimizer, optimizer_named
from mupscale.theory.steps import Step, steps_to_text

B, D = sympy.symbols("B D", positive=True)
_ONE = sympy.Integer(1)

RUN_FIELDS = ("lr", "weight_decay", "eps", "beta1", "beta2")
RUN_LABELS = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "eps": "epsilon",
    "beta1": "1 - β1",
    "beta2": "1 - β2",
}
_QUANTITIES = {
    "lr": ("η", r"\eta"),
    "weight_decay": ("λ", r"\lambda"),
    "eps": ("ε", r"\varepsilon"),
    "beta1": ("1 - β1", r"1 - \beta_1"),
    "beta2": ("1 - β2", r"1 - \beta_2"),
}


@dataclass(frozen=True)
class RunSize:
    """The batch and the length of a run, both in tokens.

    >>> RunSize(batch=65_536, tokens=1e9).steps
    15259
    """

    batch: float
    tokens: float

    def __post_init__(self) -> None:
        for name in ("batch", "tokens"):
            value: Any = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value >= 1):
                raise DimensionError(f"{name}={value!r} is not a number of tokens. Give 1 or more.")
        if self.tokens < self.batch:
            raise DimensionError(
                f"tokens={self.tokens:,.0f} is less than one batch of {self.batch:,.0f} tokens. "
                "Give the tokens of the whole run."
            )

    @property
    def steps(self) -> int:
        return max(1, round(self.tokens / self.batch))

    def __str__(self) -> str:
        return f"{self.tokens:,.0f} tokens in batches of {self.batch:,.0f}"


@dataclass(frozen=True)
class PublishedRun:
    """A rule as its authors give it: formulas in B and D, relative to the base's run."""

    formulas: Mapping[str, str]
    source: str
    evidence: str


PUBLISHED: Mapping[str, PublishedRun] = {
    "delphi": PublishedRun(
        {"lr": "sqrt(B)*D**(-3/10)", "eps": "sqrt(D/B)", "beta2": "B"},
        "Marin's Delphi recipe, for AdamH",
        "a loss at 1e23 operations came within 0.2 %; its β2^(m_B), clipped, is 1 - β2 ∝ B to "
        "first order",
    ),
    "hyperp": PublishedRun(
        {"lr": "sqrt(B)*D**(-8/25)"},
        "HyperP (arXiv 2603.28743), without its depth term",
        "its author calls the exponent at the critical batch unsettled",
    ),
    "nanochat": PublishedRun(
        {"lr": "sqrt(B)", "weight_decay": "sqrt(B)/D"}, "nanochat's source", "one ladder of models"
    ),
    "bjorck": PublishedRun(
        {"lr": "D**(-8/25)"},
        "Bjorck et al. 2025 (arXiv 2409.19913)",
        "the batch was not varied with the length",
    ),
}
"""Rules that are formulas. `sde` and `completed-p` are derived."""

DERIVED_RUNS = ("sde", "completed-p")
RUN_CHOICES = ("none", *DERIVED_RUNS, *PUBLISHED)

_CRITICAL = (
    "it fails above the critical batch, where the noise of a gradient is no longer larger than "
    "the gradient"
)


def run_formulas(choice: str) -> dict[str, Expr] | None:
    """The formulas of a choice that is not derived: those of a published rule, or your own, as
    "lr=sqrt(B)/D**0.3, weight_decay=sqrt(B)". None for `none` and derived ones.

    >>> run_formulas("lr=sqrt(B)/D**0.25")
    {'lr': sqrt(B)/D**(1/4)}
    """
    if choice == "none" or choice in DERIVED_RUNS:
        return None
    texts = PUBLISHED[choice].formulas if choice in PUBLISHED else _own(choice)
    return {name: _positive(name, text) for name, text in texts.items()}


def _own(choice: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in choice.split(","):
        name, equals, text = (word.strip() for word in part.partition("="))
        if not equals:
            raise UnknownNameError(
                "choice for batch and length", choice, [*RUN_CHOICES, "lr=sqrt(B)/D**0.3"]
            )
        if name not in RUN_FIELDS:
            raise UnknownNameError(f"value in run={choice!r}", name, RUN_FIELDS)
        found[name] = text
    return found


def _positive(name: str, text: str) -> Expr:
    try:
        formula = formulas.parse(text, ["B", "D"])
    except (OptionError, UnknownNameError) as error:
        raise OptionError(f"run: {name}={text!r}: {error}") from error
    if not formula.is_positive:
        raise OptionError(f"run: {name}={text!r} is not positive for all B and D.")
    return formula


@dataclass(frozen=True)
class RunFactors:
    """A run scaling in numbers: the factors on the base values, and on 1 - β1 and 1 - β2."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    beta1: float = 1.0
    beta2: float = 1.0


@dataclass(frozen=True)
class RunScaling:
    """How the values of an optimizer change with the batch B and the tokens D of a run."""

    choice: str
    optimizer: Optimizer
    decay: Decay
    lr: Expr
    weight_decay: Expr
    eps: Expr
    beta1: Expr
    beta2: Expr
    holds: str
    "What is held fixed."
    fails: str
    "Where it does not hold."
    steps: tuple[Step, ...] = field(repr=False)

    @property
    def expressions(self) -> dict[str, Expr]:
        return {name: getattr(self, name) for name in RUN_FIELDS}

    def evaluate(self, *, base: RunSize, target: RunSize) -> RunFactors:
        """Numbers: each expression at the target's run over that at the base's.

        >>> sde = derive_run("sde", "adamw")
        >>> sde.evaluate(base=RunSize(2**14, 1e8), target=RunSize(2**16, 1e9)).lr
        2.0
        """

        def ratio(expression: Expr) -> float:
            ends = [
                expression.subs({B: _exact(size.batch), D: _exact(size.tokens)})
                for size in (target, base)
            ]
            return float(sympy.N(ends[0] / ends[1], 30))

        return RunFactors(**{name: ratio(e) for name, e in self.expressions.items()})

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.choice,
            "optimizer": self.optimizer.name,
            "decay": self.decay,
            "holds": self.holds,
            "fails": self.fails,
            **{name: str(value) for name, value in self.expressions.items()},
            "steps": [step.to_dict() for step in self.steps],
        }

    def to_text(self, *, steps: bool = True) -> str:
        title = f"batch B and tokens D · {self.choice} · {self.optimizer} · {self.decay} decay"
        lines = [wrapped(title, hanging="  "), ""]
        lines += [f"  {RUN_LABELS[name]:<14} {inline(e)}" for name, e in self.expressions.items()]
        for note in (f"held fixed: {self.holds}", self.fails):
            if note:
                lines += ["", wrapped(f"note: {note}", "  ", " " * 8)]
        return "\n".join([*lines, *(steps_to_text(self.steps) if steps else ())])

    def __str__(self) -> str:
        return self.to_text(steps=False)


def _exact(number: float) -> Expr:
    return sympy.Rational(number)


def derive_run(
    choice: str, optimizer: Optimizer | str | type = "adamw", *, decay: Decay = "lr_coupled"
) -> RunScaling:
    """How rate, decay, epsilon and betas change with the batch B and the tokens D of a run.

    `choice` is "sde", "completed-p", the name of a published rule, or formulas in B and D.

    >>> found = derive_run("completed-p", "adamw")
    >>> found.lr, found.weight_decay, found.eps, found.beta1
    (sqrt(B)/sqrt(D), sqrt(B)/sqrt(D), sqrt(D)/sqrt(B), B/D)
    """
    optimizer = optimizer_named(optimizer)
    if decay not in DECAYS:
        raise UnknownNameError("decay", decay, DECAYS)
    if choice == "none":
        raise OptionError(
            "run='none' does not cover batch and length. Choose one of: "
            f"{', '.join(RUN_CHOICES[1:])}, or formulas such as lr=sqrt(B)/D**0.3."
        )
    given = run_formulas(choice)
    if given is not None:
        return _from_formulas(choice, given, optimizer, decay)
    derivation = _NoiseDerivation(optimizer, decay)
    values = derivation.values()
    if choice == "sde":
        return RunScaling(
            choice,
            optimizer,
            decay,
            **values,
            holds="drift and noise of the weights per token, and the memory of moving averages and "
            "of decay in tokens",
            fails=f"{_CRITICAL}. The length D does not enter",
            steps=tuple(derivation.steps),
        )
    share = {name: tidy(value.subs(B, B / D)) for name, value in values.items()}
    last = Step(
        "Whole runs instead of tokens",
        ("B", "B"),
        B / D,
        "everything that the equation holds fixed per token is held fixed as a share of the run: "
        "B becomes B/D in all of the above",
        "Complete(d)P (arXiv 2512.22382), table; 50M to 7B parameters. Its batch part was "
        "replicated, its length part was not",
        "extrapolated",
    )
    return RunScaling(
        choice,
        optimizer,
        decay,
        **share,
        holds="the noise of the weights over the whole run, and the memory of moving averages and "
        "of decay as shares of the run",
        fails=_CRITICAL,
        steps=(*derivation.steps, last),
    )


def _from_formulas(
    choice: str, given: Mapping[str, Expr], optimizer: Optimizer, decay: Decay
) -> RunScaling:
    published = PUBLISHED.get(choice)
    source = "yours" if published is None else published.source
    steps = tuple(
        Step(
            RUN_LABELS[name].capitalize(),
            _QUANTITIES[name],
            value,
            "given as a formula, not derived",
            source,
            "extrapolated",
        )
        for name, value in given.items()
    )
    return RunScaling(
        choice,
        optimizer,
        decay,
        **{name: given.get(name, _ONE) for name in RUN_FIELDS},
        holds="nothing is derived: these are formulas",
        fails="" if published is None else published.evidence,
        steps=steps,
    )


class _NoiseDerivation:
    """The stochastic differential equation of an optimizer whose gradients are mostly noise."""

    def __init__(self, optimizer: Optimizer, decay: Decay) -> None:
        if optimizer.not_diffusive:
            raise NotDerivedError(
                f"batch and length: no derivation for {optimizer}: {optimizer.not_diffusive}. Use "
                "adamw, sgd or momentum, or give formulas such as run='lr=sqrt(B)'."
            )
        self.optimizer = optimizer
        self.decay: Decay = decay
        self.steps: list[Step] = []

    def _record(self, title: str, quantity: tuple[str, str], value: Expr, reason: str) -> Expr:
        source = (
            "Malladi et al. 2022, the SDE of Adam"
            if self.optimizer.name in ("adam", "adamw")
            else "Mandt et al. 2017; Smith & Le 2018"
            if self.optimizer.gradient_degree
            else "ours, as for Adam in Malladi et al. 2022"
        )
        standing = "extrapolated" if source.startswith("ours") else "derived"
        self.steps.append(Step(title, quantity, value, reason, source, standing))
        return value

    def values(self) -> dict[str, Expr]:
        noise = self._record(
            "Noise of a gradient",
            ("s", "s"),
            1 / sympy.sqrt(B),
            "a batch is the mean of B independent gradients, and its noise is larger than its mean",
        )
        normalized = self.optimizer.gradient_degree == 0
        # The step is the gradient over its own size, or the gradient itself.
        mean = _ONE / noise if normalized else _ONE
        spread = _ONE if normalized else noise
        drift = self._record(
            "Drift of the weights per token, over η",
            ("a", "a"),
            tidy(mean / B),
            "the step is the gradient divided by its size, which is that of the noise; one step is "
            "taken for B tokens"
            if normalized
            else "the step is the gradient; one step is taken for B tokens",
        )
        self._record(
            "Variance of the weights per token, over η²",
            ("b", "b"),
            tidy(spread**2 / B),
            "the steps of different batches are independent",
        )
        average = self._record(
            "Moving averages",
            ("1 - β", r"1 - \beta"),
            B,
            "the average goes back 1/(1 - β) steps, which stay the same number of tokens",
        )
        gathers = self.optimizer.momentum
        length = _ONE / average if gathers else _ONE  # torch adds up 1/(1 - β) gradients
        rate = self._record(
            "Learning rate",
            _QUANTITIES["lr"],
            tidy(1 / (drift * length)),
            "η·a stays the same, and with it η²·b"
            + ("; the momentum adds up 1/(1 - β) gradients" if gathers else ""),
        )
        per_step: dict[Decay, Expr] = {"lr_coupled": rate, "independent": _ONE, "l2": _ONE / B}
        shrinks: dict[Decay, str] = {
            "lr_coupled": "a step shrinks weights by η·λ, which stays the same per token",
            "independent": "a step shrinks weights by λ, which stays the same per token",
            "l2": "λ·W is part of the gradient, and moves the weights as the gradient's mean does",
        }
        decay = self._record(
            "Weight decay",
            _QUANTITIES["weight_decay"],
            tidy(B / per_step[self.decay]) if self.decay != "l2" else _ONE,
            shrinks[self.decay],
        )
        epsilon = _ONE
        if self.optimizer.epsilon == "entry":
            epsilon = self._record(
                "Epsilon", _QUANTITIES["eps"], noise, "it is compared with the size of a gradient"
            )
        averaged = self.optimizer.betas is not None
        return {
            "lr": rate,
            "weight_decay": decay,
            "eps": epsilon,
            "beta1": average if averaged or gathers else _ONE,
            "beta2": average if averaged else _ONE,
        }


def scaled_beta(name: str, beta: float, factor: float) -> float:
    """1 - (1 - β)·factor; raises where that is no average any more.

    >>> round(scaled_beta("β2", 0.95, 4.0), 12)
    0.8
    """
    new = 1 - (1 - beta) * factor
    if not 0 <= new < 1:
        raise OptionError(
            f"{name} = {beta:g} with 1 - {name} × {factor:.4g} gives {new:.4g}, which is no moving "
            f"average. Choose a smaller change of the batch, or a base with a {name} nearer to 1."
        )
    return new
