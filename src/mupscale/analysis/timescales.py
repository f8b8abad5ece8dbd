"""The time scale of weight decay as a share of a run: τ_epoch.

Wang & Aitchison 2024: AdamW averages over 1/(ηλ) steps, which is 1/(ηλ·steps) of a run. With base
values it is the base τ; a parameter with factors on rate and decay has its own effective τ.
"""

from mupscale.errors import OptionError


def tau_epoch(lr: float, weight_decay: float, steps: int) -> float:
    """The time scale of lr-coupled decay, in runs.

    >>> tau_epoch(lr=2**-7, weight_decay=0.1, steps=2560)
    0.5
    """
    return 1 / (
        _positive("lr", lr) * _positive("weight_decay", weight_decay) * _positive("steps", steps)
    )


def decay_of_tau(tau: float, lr: float, steps: int) -> float:
    """The weight decay that gives this τ.

    >>> round(decay_of_tau(0.5, lr=2**-7, steps=2560), 12)
    0.1
    """
    return 1 / (_positive("lr", lr) * _positive("tau_epoch", tau) * _positive("steps", steps))


def effective_tau(base_tau: float, lr_factor: float, decay_factor: float) -> float:
    """τ of a parameter whose rate and decay are the base's times these factors.

    `mup` scales rates by 1/m and keeps decay, so the time scale of hidden weights is m times as
    long.

    >>> effective_tau(0.5, lr_factor=1 / 4, decay_factor=1)
    2.0
    """
    return base_tau / (_positive("lr_factor", lr_factor) * _positive("decay_factor", decay_factor))


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise OptionError(
            f"{name} = {value} must be finite and above 0: without decay there is no time scale."
        )
    return value
