"""Optimizers: the norm of a step of unit learning rate, and how decay and epsilon enter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import sympy

from mupscale.errors import OptionError, UnknownNameError
from mupscale.theory.estimates import coherent
from mupscale.theory.formulas import Expr, larger
from mupscale.theory.optimizer_classes import name_of_class
from mupscale.theory.units import Standing

Decay = Literal["lr_coupled", "independent", "l2"]
DECAYS: tuple[Decay, ...] = ("lr_coupled", "independent", "l2")

Epsilon = Literal["none", "entry", "norm", "norm_squared"]
"""What an optimizer's epsilon is added to or compared with: nothing, |g|, ‖g‖ or ‖g‖²."""


@dataclass(frozen=True)
class StepSizes:
    """What the size of a step can depend on: the shape, the root mean square of W, the spectral
    norm of g.
    """

    n_out: Expr
    n_in: Expr
    rms: Expr
    gradient: Expr


@dataclass(frozen=True)
class Optimizer:
    """An optimizer, as far as scaling is concerned.

    `step` is the spectral norm of a step of unit learning rate, without the factor `constant`,
    which is the same for every weight and so belongs to the base rate. A step of gradient c·g is
    c^gradient_degree as long; a step from weights c·W is c^weight_degree as long: that settles how
    a multiplier folds.
    """

    name: str
    step: Callable[[StepSizes], Expr]
    reason: str
    source: str
    decay: Decay = "lr_coupled"
    """How torch's implementation (or the original one) decays."""
    epsilon: Epsilon = "none"
    gradient_degree: int = 0
    weight_degree: int = 0
    constant: Expr = 1
    standing: Standing = "derived"
    caveat: str = ""
    elementwise: bool = True
    """A row's step does not depend on the other rows, so rows of one matrix can have multipliers of
    their own.
    """
    whole_matrix: bool = False
    """Made for hidden matrices only; embeddings, readout and vectors are trained by AdamW beside
    it.
    """
    not_exact: str = ""
    """Why a multiplier cannot be folded exactly, if it cannot."""

    def epsilon_size(self, entry: Expr, norm: Expr) -> Expr:
        """The quantity that epsilon must keep step with."""
        sizes: dict[Epsilon, Expr] = {
            "none": sympy.Integer(1),
            "entry": entry,
            "norm": norm,
            "norm_squared": norm**2,
        }
        return sizes[self.epsilon]

    @property
    def epsilon_degree(self) -> int:
        return {"none": 0, "entry": 1, "norm": 1, "norm_squared": 2}[self.epsilon]

    def fold_powers(self, decay: Decay) -> dict[str, int]:
        """With which power a factor a of the forward pass enters each value when it moves into the
        parameter, W' = aW.

        The gradient of W' is g/a. The training stays the same.

        >>> optimizer_named("adamw").fold_powers("lr_coupled")
        {'init_std': 1, 'multiplier': -1, 'lr': 1, 'weight_decay': -1, 'eps': -1}
        """
        rate = 1 + self.gradient_degree - self.weight_degree
        decays: dict[Decay, int] = {"lr_coupled": -rate, "independent": 0, "l2": -2}
        return {
            "init_std": 1,
            "multiplier": -1,
            "lr": rate,
            "weight_decay": decays[decay],
            "eps": -self.epsilon_degree,
        }

    def __str__(self) -> str:
        return self.name


def _sign(sizes: StepSizes) -> Expr:
    return coherent(sizes.n_out, sizes.n_in)


def _gradient(sizes: StepSizes) -> Expr:
    return sizes.gradient


def _orthogonal(_: StepSizes) -> Expr:
    return sympy.Integer(1)


def _muon_original(sizes: StepSizes) -> Expr:
    return sympy.sqrt(larger(sizes.n_out / sizes.n_in, sympy.Integer(1)))


def _muon_root_max(sizes: StepSizes) -> Expr:
    return sympy.sqrt(larger(sizes.n_in, sizes.n_out))


def _muon_spectral(sizes: StepSizes) -> Expr:
    return sympy.sqrt(sizes.n_out / sizes.n_in)


def _adafactor(sizes: StepSizes) -> Expr:
    return sizes.rms * coherent(sizes.n_out, sizes.n_in)


_COHERENT = "every entry of the step has size 1 and the step is coherent (of rank one in the limit), not noise"
_ADAM = "GQA-μP, appendix A.1 (Kingma & Ba 2015); coherent, not Bai–Yin as printed there"
_SHAMPOO = "Gupta, Koren & Singer 2018, without accumulation; not in the paper"

OPTIMIZERS: Mapping[str, Optimizer] = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer("adamw", _sign, _COHERENT, _ADAM, epsilon="entry"),
        Optimizer("adam", _sign, _COHERENT, _ADAM, decay="l2", epsilon="entry"),
        Optimizer(
            "lion", _sign, _COHERENT, "Chen et al. 2023: the sign of an average of gradients"
        ),
        Optimizer("signsgd", _sign, _COHERENT, "Bernstein et al. 2018: the sign of the gradient"),
        Optimizer(
            "sgd",
            _gradient,
            "the step is the gradient",
            "Yang, Simon & Bernstein 2023",
            decay="l2",
            gradient_degree=1,
        ),
        Optimizer(
            "momentum",
            _gradient,
            "the step is an average of gradients, as long as the gradient up to a constant",
            "Yang, Simon & Bernstein 2023",
            decay="l2",
            gradient_degree=1,
        ),
        Optimizer(
            "adafactor",
            _adafactor,
            "the step is rescaled to the root mean square of W; its entries are coherent",
            "Shazeer & Stern 2018, as in torch.optim.Adafactor",
            epsilon="entry",
            weight_degree=1,
            caveat="inexact where the cap 1/√t on the rate or the floor 1e-3 on RMS(W) binds",
            elementwise=False,
            not_exact="its step is proportional to RMS(W), which has a floor (1e-3 in torch) that "
            "does not fold",
        ),
        Optimizer(
            "adafactor-unscaled",
            _sign,
            _COHERENT,
            "Shazeer & Stern 2018 without parameter scale",
            epsilon="entry",
            elementwise=False,
        ),
        Optimizer(
            "muon",
            _muon_original,
            "an orthogonal matrix has norm 1; torch's `original` lengthens it by √(n_out/n_in) "
            "where that exceeds 1",
            "Jordan et al. 2024, as in torch.optim.Muon(adjust_lr_fn='original')",
            epsilon="norm",
            elementwise=False,
            whole_matrix=True,
        ),
        Optimizer(
            "muon-match-rms",
            _muon_root_max,
            "an orthogonal matrix times √max(n_out, n_in) has entries of size 1",
            "Liu et al. 2025, as in torch.optim.Muon(adjust_lr_fn='match_rms_adamw')",
            epsilon="norm",
            constant=sympy.Rational(1, 5),
            elementwise=False,
            whole_matrix=True,
        ),
        Optimizer(
            "muon-spectral",
            _muon_spectral,
            "an orthogonal matrix times √(n_out/n_in), its spectral target",
            "Bernstein & Newhouse 2024: steepest descent under the spectral norm",
            epsilon="norm",
            elementwise=False,
            whole_matrix=True,
        ),
        Optimizer(
            "shampoo",
            _orthogonal,
            "without accumulation the preconditioned gradient is orthogonal",
            _SHAMPOO,
            epsilon="norm_squared",
            standing="extrapolated",
            elementwise=False,
            whole_matrix=True,
        ),
        Optimizer(
            "shampoo-grafted",
            _muon_root_max,
            "an orthogonal direction with the Frobenius norm of Adam's step, √(n_out·n_in), has "
            "norm √max(n_out, n_in)",
            _SHAMPOO,
            epsilon="norm_squared",
            standing="extrapolated",
            elementwise=False,
            whole_matrix=True,
        ),
    )
}

ALIASES: Mapping[str, str] = {
    "sign": "signsgd",
    "sign-sgd": "signsgd",
    "momentum-sgd": "momentum",
    "sgd-momentum": "momentum",
    "muon-original": "muon",
    "muon-raw": "muon",
    "match_rms_adamw": "muon-match-rms",
    "muon-match_rms_adamw": "muon-match-rms",
    "shampoo-adam": "shampoo-grafted",
}


def optimizer_named(named: object) -> Optimizer:
    """The optimizer of that name; or that of a class such as torch.optim.AdamW, or of an object
    made of it.

    >>> optimizer_named("muon_raw").name
    'muon'
    """
    if isinstance(named, Optimizer):
        return named
    if not isinstance(named, str):
        return OPTIMIZERS[_name_of(named)]
    plain = named.lower().replace("_", "-")
    known = OPTIMIZERS.get(plain) or OPTIMIZERS.get(
        ALIASES.get(plain, ALIASES.get(named.lower(), ""))
    )
    if known is None:
        raise UnknownNameError("optimizer", named, OPTIMIZERS, ALIASES)
    return known


def _name_of(given: object) -> str:
    name = name_of_class(given)
    if name is None:
        cls = given if isinstance(given, type) else type(given)
        what = (
            f"{cls.__module__}.{cls.__qualname__}"
            if hasattr(given, "param_groups") or cls is given
            else repr(given)
        )
        raise OptionError(
            f"optimizer={what} is not an optimizer that mupscale has rules for. Name the one whose "
            "steps are as large: "
            f"{', '.join(OPTIMIZERS)}."
        )
    return name
