"""Base values with their intervals, and the ways to carry weight decay over."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from mupscale.analysis.estimates import Estimate
from mupscale.errors import OptionError
from mupscale.theory import Decay, RunFactors

Carrying = Literal["wd", "tau", "power-lines"]
"""Keep the base value λ of weight decay or its time scale τ_epoch in runs, or take τ_epoch from a
law.
"""

Source = Literal["searched", "not searched", "given", "torch's default", "power-lines"]


@dataclass(frozen=True)
class BaseValue:
    """A number tuned on the base, with its interval; infinite ends where nothing bounds it."""

    value: float
    low: float
    high: float
    source: Source

    @staticmethod
    def fixed(value: float, source: Source) -> "BaseValue":
        return BaseValue(value, -math.inf, math.inf, source)

    @staticmethod
    def of_log2(optimum: Estimate) -> "BaseValue":
        low, high = (2**x if math.isfinite(x) else x for x in (optimum.low, optimum.high))
        return BaseValue(2**optimum.value, low, high, "searched")

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def times(self, factor: float) -> "BaseValue":
        return BaseValue(self.value * factor, self.low * factor, self.high * factor, self.source)

    def to_dict(self) -> dict[str, Any]:
        low, high = (self.low, self.high) if self.bounded else (None, None)
        return {"value": self.value, "low": low, "high": high, "source": self.source}


@dataclass(frozen=True)
class DecayLaw:
    """τ_epoch of the target's hidden weights by a law."""

    tau: float
    tokens_per_parameter: float
    share: float
    "lr × decay of hidden weights in the target's run, at a base decay of 1."


@dataclass(frozen=True)
class CarriedDecay:
    """The target's base weight decay: the study's λ, the one that keeps τ = 1/(η·λ·steps), or the
    one that gives the τ of a law.
    """

    chosen: Carrying
    by_wd: BaseValue
    by_tau: BaseValue | None
    "None if the study's steps are unknown, and for l2 decay, which has no τ."
    by_law: BaseValue | None
    "None for l2 decay."
    law: DecayLaw | None
    proxy_steps: float | None
    target_steps: int
    proxy_tau: float | None
    "τ_epoch of the study's runs; None without decay."
    target_tau: float | None
    "τ_epoch of the target's base values with the chosen decay."

    @property
    def value(self) -> BaseValue:
        found = {"wd": self.by_wd, "tau": self.by_tau, "power-lines": self.by_law}[self.chosen]
        assert found is not None
        return found


def carried(
    chosen: Carrying,
    lr: float,
    decay: BaseValue | None,
    tau: BaseValue | None,
    *,
    proxy_steps: float | None,
    target_steps: int,
    kind: Decay = "lr_coupled",
    factors: RunFactors = RunFactors(),  # noqa: B008
    law: DecayLaw | None = None,
) -> CarriedDecay:
    """Weight decay for the target, from the study's decay, its τ_epoch or a law.

    Decay coupled to the rate shrinks weights by η·λ per step, independent decay by λ alone. Either
    way, keeping τ makes λ proportional to 1/steps. Decay in the gradient (l2) has no time scale.
    `factors` are those of a rule for the run, which the plan multiplies rates and decays by: a
    decay that keeps τ, or takes it from a law, divides by them.

    >>> decay = BaseValue.fixed(0.1, "not searched")
    >>> both = carried("tau", 2**-6, decay, None, proxy_steps=500, target_steps=50_000)
    >>> both.by_wd.value, round(both.by_tau.value, 12), both.proxy_tau == both.target_tau
    (0.1, 0.001, True)
    """
    if decay is None:
        assert tau is not None
        if proxy_steps is None:
            raise OptionError(
                "the study searched tau_epoch, but its trials do not report their steps. Have the "
                "trainer report them."
            )
        decay = _inverse(tau, lr * proxy_steps)
    if chosen != "wd" and kind == "l2":
        raise OptionError(f"decay={chosen!r}: l2 decay has no time scale. Use decay='wd'.")
    if chosen == "tau" and proxy_steps is None:
        raise OptionError(
            "decay='tau': the study's trials do not report their steps. Use decay='wd'."
        )
    if chosen == "power-lines" and law is None:
        raise OptionError("decay='power-lines': the plan decays no hidden weights. Use decay='wd'.")
    rate, growth = (1.0, 1.0) if kind == "independent" else (lr, factors.lr)
    growth *= factors.weight_decay
    by_tau = by_law = None
    if kind != "l2":
        by_tau = decay.times(proxy_steps / (target_steps * growth)) if proxy_steps else None
        by_law = law and BaseValue.fixed(1 / (law.tau * law.share * target_steps), "power-lines")
    lost = rate * decay.value * (proxy_steps or 0.0)  # share of a weight over the study's run
    proxy_tau = 1 / lost if lost and kind != "l2" else None
    found = CarriedDecay(
        chosen, decay, by_tau, by_law, law, proxy_steps, target_steps, proxy_tau, proxy_tau
    )
    if chosen == "tau":
        return found
    share = rate * found.value.value * growth * target_steps
    return replace(found, target_tau=1 / share if share and kind != "l2" else None)


def _inverse(tau: BaseValue, factor: float) -> BaseValue:
    low, high = (
        1 / (end * factor) if math.isfinite(end) and end else math.inf
        for end in (tau.high, tau.low)
    )
    bounds = (low, high) if tau.bounded else (-math.inf, math.inf)
    return BaseValue(1 / (tau.value * factor), *bounds, tau.source)


def settled(name: str, given: float | None, settings: Mapping[str, Any]) -> BaseValue:
    """A value that the study did not search: the caller's, or the study's."""
    if given is None:
        return BaseValue.fixed(float(settings[name]), "not searched")
    if not math.isfinite(given) or given < 0 or (name == "std" and given == 0):
        raise OptionError(f"{name}={given} must be a finite number above 0.")
    return BaseValue.fixed(given, "given")
