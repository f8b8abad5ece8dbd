"""Optimizers: one row each, with the norm of a unit step, how decay and epsilon enter, and the
torch class with its defaults. Classes are named, not imported: this room does not need torch.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sympy

from mupscale.errors import OptionError, UnknownNameError
from mupscale.theory.estimates import coherent
from mupscale.theory.formulas import Expr, larger
from mupscale.theory.units import Standing

Decay = Literal["lr_coupled", "independent", "l2"]
DECAYS: tuple[Decay, ...] = ("lr_coupled", "independent", "l2")

Epsilon = Literal["none", "entry", "norm", "norm_squared"]
"""What an optimizer's epsilon is added to or compared with: nothing, |g|, ‖g‖ or ‖g‖²."""


@dataclass(frozen=True)
class StepSizes:
    """What the size of a step can depend on: the shape, the root mean square of W, and the spectral
    norm of the gradient.
    """

    n_out: Expr
    n_in: Expr
    rms: Expr
    gradient: Expr


@dataclass(frozen=True)
class Optimizer:
    """An optimizer, as far as scaling is concerned.

    `step` is the spectral norm of a step at learning rate 1, without the factor `constant`, which
    is the same for every weight and so belongs to the base rate. A step from the gradient c·g is
    c^gradient_degree times as long, and a step from the weights c·W c^weight_degree times: these
    two degrees decide how a multiplier folds.
    """

    name: str
    step: Callable[[StepSizes], Expr]
    reason: str
    source: str
    decay: Decay = "lr_coupled"
    """The decay of torch's implementation, or of the original one."""
    epsilon: Epsilon = "none"
    gradient_degree: int = 0
    weight_degree: int = 0
    constant: Expr = 1
    standing: Standing = "derived"
    assumes: str = "updates"
    """The updates as `step` takes them to be, such as "coherent updates": what a key/value factor
    rests on.
    """
    caveat: str = ""
    elementwise: bool = True
    """The step of a row does not depend on the other rows, so the rows of one matrix can have
    different multipliers.
    """
    whole_matrix: bool = False
    """For hidden matrices only; AdamW trains embeddings, readout and vectors."""
    not_exact: str = ""
    """Why a multiplier cannot be folded exactly; empty if it can."""
    not_diffusive: str = ""
    """Why its noise has no differential equation here, so that nothing is derived for other batch
    sizes; empty if it has one.
    """
    torch_class: str = ""
    """The class that runs and checks construct, as a dotted name; empty if they construct none."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Arguments that `torch_class` always gets."""
    betas: tuple[float, float] | None = None
    """Default of the class; None if it has no such setting."""
    eps: float | None = None
    """Default of the class; None if it has no such setting (Adafactor's is a pair)."""
    momentum: bool = False
    """The class takes a momentum."""

    def epsilon_size(self, entry: Expr, norm: Expr) -> Expr:
        """The quantity that epsilon must stay proportional to."""
        return {"none": 1, "entry": entry, "norm": norm, "norm_squared": norm**2}[self.epsilon]

    @property
    def epsilon_degree(self) -> int:
        """The power of the gradient that epsilon is compared with."""
        return {"none": 0, "entry": 1, "norm": 1, "norm_squared": 2}[self.epsilon]

    def fold_powers(self, decay: Decay) -> dict[str, int]:
        """The power with which a factor a enters each value when it moves from the forward pass
        into the parameter: W' = aW.

        The gradient of W' is g/a, and the training stays the same.

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


_COHERENT = (
    "every entry of the step has size 1, and the step is coherent (of rank one in the limit), "
    "not noise"
)
_COHERENT_UPDATES = "coherent updates"
_WHOLE_MATRICES = "its steps depend on whole matrices"
_ADAMW = Optimizer(
    "adamw",
    _sign,
    _COHERENT,
    "GQA-μP, appendix A.1 (Kingma & Ba 2015); coherent, not Bai–Yin as printed there",
    assumes=_COHERENT_UPDATES,
    epsilon="entry",
    torch_class="torch.optim.AdamW",
    settings={"fused": True},
    betas=(0.9, 0.999),
    eps=1e-8,
)
_SGD = Optimizer(
    "sgd",
    _gradient,
    "the step is the gradient",
    "Yang, Simon & Bernstein 2023",
    decay="l2",
    gradient_degree=1,
    assumes="independent gradients of the query heads, and updates",
    torch_class="torch.optim.SGD",
)
_ADAFACTOR = Optimizer(
    "adafactor",
    _adafactor,
    "the step is rescaled to the root mean square of W; its entries are coherent",
    "Shazeer & Stern 2018, as in torch.optim.Adafactor",
    epsilon="entry",
    weight_degree=1,
    assumes=_COHERENT_UPDATES,
    caveat="inexact where the cap 1/√t on the rate or the floor 1e-3 on RMS(W) binds",
    elementwise=False,
    not_exact="its step is proportional to RMS(W), which has a floor (1e-3 in torch) that does not "
    "fold",
    not_diffusive="the size of its steps comes from rows and columns",
)
_MUON = Optimizer(
    "muon",
    _muon_original,
    "an orthogonal matrix has norm 1; torch's `original` lengthens it by √(n_out/n_in) where that "
    "exceeds 1",
    "Jordan et al. 2024, as in torch.optim.Muon(adjust_lr_fn='original')",
    epsilon="norm",
    elementwise=False,
    whole_matrix=True,
    not_diffusive=_WHOLE_MATRICES,
    # torch's own Muon steps each tensor as one matrix; ours steps each matrix in a tensor.
    torch_class="mupscale.optim.Muon",
    settings={"adjust_lr_fn": "original"},
    eps=1e-7,
    momentum=True,
)
_SHAMPOO = Optimizer(
    "shampoo",
    _orthogonal,
    "without accumulation the preconditioned gradient is orthogonal",
    "Gupta, Koren & Singer 2018, without accumulation; not in the paper",
    epsilon="norm_squared",
    standing="extrapolated",
    assumes="orthogonal updates",
    elementwise=False,
    whole_matrix=True,
    not_diffusive=_WHOLE_MATRICES,
    eps=1e-12,
)

OPTIMIZERS: Mapping[str, Optimizer] = {
    optimizer.name: optimizer
    for optimizer in (
        _ADAMW,
        replace(_ADAMW, name="adam", decay="l2", torch_class="torch.optim.Adam"),
        Optimizer(
            "lion",
            _sign,
            _COHERENT,
            "Chen et al. 2023: the sign of an average of gradients",
            assumes=_COHERENT_UPDATES,
            not_diffusive="its step is the sign of an average, so that the steps of neighbouring "
            "batches are not independent",
            torch_class="mupscale.optim.Lion",
            betas=(0.9, 0.99),
        ),
        Optimizer(
            "signsgd",
            _sign,
            _COHERENT,
            "Bernstein et al. 2018: the sign of the gradient",
            assumes=_COHERENT_UPDATES,
        ),
        _SGD,
        replace(
            _SGD,
            name="momentum",
            reason="the step is an average of gradients, as long as the gradient up to a constant",
            momentum=True,
        ),
        _ADAFACTOR,
        replace(
            _ADAFACTOR,
            name="adafactor-unscaled",
            step=_sign,
            reason=_COHERENT,
            source="Shazeer & Stern 2018 without parameter scale",
            weight_degree=0,
            caveat="",
            not_exact="",
        ),
        _MUON,
        replace(
            _MUON,
            name="muon-match-rms",
            step=_muon_root_max,
            reason="an orthogonal matrix times √max(n_out, n_in) has entries of size 1",
            source="Liu et al. 2025, as in torch.optim.Muon(adjust_lr_fn='match_rms_adamw')",
            constant=sympy.Rational(1, 5),
            settings={"adjust_lr_fn": "match_rms_adamw"},
        ),
        replace(
            _MUON,
            name="muon-spectral",
            step=_muon_spectral,
            reason="an orthogonal matrix times √(n_out/n_in), its spectral target",
            source="Bernstein & Newhouse 2024: steepest descent under the spectral norm",
            settings={"adjust_lr_fn": "spectral"},
        ),
        _SHAMPOO,
        replace(
            _SHAMPOO,
            name="shampoo-grafted",
            step=_muon_root_max,
            reason="an orthogonal direction with the Frobenius norm of Adam's step, √(n_out·n_in), "
            "has norm √max(n_out, n_in)",
        ),
    )
}

RUNNABLE = tuple(name for name, optimizer in OPTIMIZERS.items() if optimizer.torch_class)
"""Optimizers that runs and checks can construct."""

ALIASES: Mapping[str, str] = {
    "sign": "signsgd",
    "sign-sgd": "signsgd",
    "momentum-sgd": "momentum",
    "sgd-momentum": "momentum",
    "muon-original": "muon",
    "muon-raw": "muon",
    "match-rms-adamw": "muon-match-rms",
    "muon-match-rms-adamw": "muon-match-rms",
    "shampoo-adam": "shampoo-grafted",
}


def optimizer_named(named: object) -> Optimizer:
    """The optimizer with this name, of this class (torch.optim.AdamW), or that this object is.

    >>> optimizer_named("muon_raw").name
    'muon'
    """
    if isinstance(named, Optimizer):
        return named
    if isinstance(named, str):
        plain = named.lower().replace("_", "-")
        name = ALIASES.get(plain, plain)
        if name not in OPTIMIZERS:
            raise UnknownNameError("optimizer", named, OPTIMIZERS, ALIASES)
        return OPTIMIZERS[name]
    name = name_of_class(named)
    if name is None:
        cls = named if isinstance(named, type) else type(named)
        known = hasattr(named, "param_groups") or cls is named
        what = f"{cls.__module__}.{cls.__qualname__}" if known else repr(named)
        raise OptionError(
            f"optimizer={what} is not an optimizer that mupscale has rules for. Name the one whose "
            f"steps have the same size: {', '.join(OPTIMIZERS)}."
        )
    return OPTIMIZERS[name]


# Names that mean one algorithm in every package: AdamW8bit, PagedAdamW, FusedAdam, Lion, FusedSGD.
_ANYWHERE = re.compile(
    r"_?(?P<how>Paged|Fused|DeepSpeedCPU|CPU)?(?P<what>AdamW|Adam|Lion|SGD)(?:\d+bit|Fp8)?"
)
# In other packages these names mean other algorithms: the steps of Muon are lengthened, or those
# of Adafactor scaled, in a different way.
_HERE = {"torch": ("Muon", "Adafactor"), "mupscale": ("Muon",)}


def name_of_class(optimizer: object, group: Mapping[str, Any] | None = None) -> str | None:
    """Our name for an optimizer or its class, by the names of the class and its parents; None if
    they are unknown.

    What a class alone does not determine (SGD's momentum, Muon's adjust_lr_fn) is read from
    `group`, by default the first group of the object; for a class it is torch's default.
    """
    cls = optimizer if isinstance(optimizer, type) else type(optimizer)
    groups: Any = () if cls is optimizer else getattr(optimizer, "param_groups", ())
    options: Mapping[str, Any] = (groups[0] if groups else {}) if group is None else group
    for parent in cls.__mro__:
        package, name = parent.__module__.partition(".")[0], parent.__name__
        if name in _HERE.get(package, ()):
            if name == "Adafactor":
                return "adafactor"
            settings = {"adjust_lr_fn": options.get("adjust_lr_fn") or "original"}
            muons = (one.name for one in OPTIMIZERS.values() if one.settings == settings)
            return next(muons, None)
        found = _ANYWHERE.fullmatch(name)
        if found and found["what"] == "Adam":
            return "adamw" if _decouples(optimizer, options, package, found["how"]) else "adam"
        if found and found["what"] == "SGD":
            return "momentum" if options.get("momentum") else "sgd"
        if found:
            return found["what"].lower()
    return None


def _decouples(optimizer: object, group: Mapping[str, Any], package: str, how: str | None) -> bool:
    """Whether a class called Adam decays like AdamW: torch's on request, those of apex and
    DeepSpeed by default, that of bitsandbytes always.
    """
    if package == "bitsandbytes" or group.get("decoupled_weight_decay"):
        return True
    return how in ("Fused", "DeepSpeedCPU") and bool(getattr(optimizer, "adam_w_mode", True))
