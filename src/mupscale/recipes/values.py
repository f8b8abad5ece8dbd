"""Base values with what is known of them, and weight decay carried over in two ways."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mupscale.analysis.estimates import Estimate
from mupscale.errors import OptionError
from mupscale.theory import Decay

Carrying = Literal["wd", "tau"]
"""Weight decay by its base value λ, or by its time scale τ_epoch in runs."""

Source = Literal["searched", "not searched", "given", "torch's default", "assumed"]


@dataclass(frozen=True)
class BaseValue:
    """A number tuned on the base; the ends of its interval are infinite where nothing bounds it."""

    value: float
    low: float
    high: float
    source: Source

    @staticmethod
    def fixed(value: float, source: Source) -> "BaseValue":
        return BaseValue(value, -math.inf, math.inf, source)

    @staticmethod
    def of_log2(found: Estimate) -> "BaseValue":
        return BaseValue(2**found.value, _power(found.low), _power(found.high), "searched")

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def times(self, factor: float) -> "BaseValue":
        return BaseValue(self.value * factor, self.low * factor, self.high * factor, self.source)

    def to_dict(self) -> dict[str, Any]:
        low, high = (self.low, self.high) if self.bounded else (None, None)
        return {"value": self.value, "low": low, "high": high, "source": self.source}


def _power(exponent: float) -> float:
    return 2**exponent if math.isfinite(exponent) else exponent


@dataclass(frozen=True)
class CarriedDecay:
    """The base weight decay of the target: λ as the study had it, or what keeps τ_epoch =
    1/(η0·λ0·steps).
    """

    chosen: Carrying
    by_wd: BaseValue
    by_tau: BaseValue | None
    """None where the study does not say how many steps its runs had, and for l2 decay, which has no
    τ.
    """
    proxy_steps: float | None
    target_steps: int
    proxy_tau: float | None
    "Base τ of the study's runs; None without decay."

    @property
    def value(self) -> BaseValue:
        if self.chosen == "wd":
            return self.by_wd
        assert self.by_tau is not None
        return self.by_tau

    @property
    def target_tau(self) -> float | None:
        """Base τ of the target with the chosen decay."""
        if self.proxy_tau is None or self.proxy_steps is None:
            return None
        return (
            self.proxy_tau
            if self.chosen == "tau"
            else self.proxy_tau * self.proxy_steps / self.target_steps
        )


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
    """Decay for the target from the decay, or the τ, of the study.

    Decay coupled to the rate shrinks weights by η·λ in a step, independent decay by λ alone. Either
    way λ goes with 1/steps where τ is kept. Decay inside of the gradient (l2) has no time scale.

    >>> both = carried("tau", 2**-6, BaseValue.fixed(0.1, "not searched"), None, proxy_steps=500, target_steps=50_000)
    >>> both.by_wd.value, round(both.by_tau.value, 12), round(both.proxy_tau, 12) == round(both.target_tau, 12)
    (0.1, 0.001, True)
    """
    if decay is None:
        assert tau is not None
        if proxy_steps is None:
            raise OptionError(
                "the study searched tau_epoch, and its trials do not say their steps: have them "
                "say it."
            )
        decay = _inverse(tau, lr * proxy_steps)
    if chosen == "tau" and (proxy_steps is None or kind == "l2"):
        lacking = (
            "l2 decay has no time scale"
            if kind == "l2"
            else "the study's trials do not say their steps"
        )
        raise OptionError(f"decay='tau': {lacking}. Use 'wd'.")
    by_tau = (
        None if proxy_steps is None or kind == "l2" else decay.times(proxy_steps / target_steps)
    )
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
    """What the study did not search: what the caller gives, or what it used."""
    if given is not None:
        if not math.isfinite(given) or given < 0 or (name == "std" and given == 0):
            raise OptionError(f"{name}={given} must be a finite number above 0.")
        return BaseValue.fixed(given, "given")
    if settings.get(name) is None:
        flag = name.replace("_", "-")
        raise OptionError(
            f"the study does not say which {name} its trainer used. Give it: {name}=…, or --{flag} "
            "on the command line."
        )
    return BaseValue.fixed(float(settings[name]), "not searched")
