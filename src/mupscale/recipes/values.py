"""Base values with their intervals, and the two ways to carry weight decay over."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mupscale.analysis.estimates import Estimate
from mupscale.errors import OptionError
from mupscale.theory import Decay

Carrying = Literal["wd", "tau"]
"""Keep the base value λ of weight decay, or its time scale τ_epoch in runs."""

Source = Literal["searched", "not searched", "given", "torch's default"]


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
class CarriedDecay:
    """The target's base weight decay: the study's λ, or the one that keeps τ = 1/(η·λ·steps)."""

    chosen: Carrying
    by_wd: BaseValue
    by_tau: BaseValue | None
    "None if the study's steps are unknown, and for l2 decay, which has no τ."
    proxy_steps: float | None
    target_steps: int
    proxy_tau: float | None
    "τ_epoch of the study's runs; None without decay."

    @property
    def value(self) -> BaseValue:
        if self.chosen == "wd":
            return self.by_wd
        assert self.by_tau is not None
        return self.by_tau

    @property
    def target_tau(self) -> float | None:
        """τ_epoch of the target with the chosen decay."""
        if self.proxy_tau is None or self.proxy_steps is None:
            return None
        kept = self.chosen == "tau"
        return self.proxy_tau if kept else self.proxy_tau * self.proxy_steps / self.target_steps


def carried(
    chosen: Carrying,
    lr: float,
    decay: BaseValue | None,
    tau: BaseValue | None,
    *,
    proxy_steps: float | None,
    target_steps: int,
    kind: Decay = "lr_coupled",
) -> CarriedDecay:
    """Weight decay for the target, from the study's decay or its τ_epoch.

    Decay coupled to the rate shrinks weights by η·λ per step, independent decay by λ alone. Either
    way, keeping τ makes λ proportional to 1/steps. Decay in the gradient (l2) has no time scale.

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
    if chosen == "tau" and (proxy_steps is None or kind == "l2"):
        no_steps = "the study's trials do not report their steps"
        reason = "l2 decay has no time scale" if kind == "l2" else no_steps
        raise OptionError(f"decay='tau': {reason}. Use decay='wd'.")
    by_tau = decay.times(proxy_steps / target_steps) if proxy_steps and kind != "l2" else None
    rate = decay.value * (1.0 if kind == "independent" else lr)
    proxy_tau = 1 / (rate * proxy_steps) if rate and proxy_steps and by_tau else None
    return CarriedDecay(chosen, decay, by_tau, proxy_steps, target_steps, proxy_tau)


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
