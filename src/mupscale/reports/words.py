"""Names and numbers for readers: powers of two, intervals, lists."""

import math

from mupscale.analysis.estimates import Estimate

AXES = {"parameters": "number of parameters"}
NAMES = {
    "lr": "base learning rate",
    "weight_decay": "base weight decay λ",
    "tau_epoch": "τ_epoch = 1 / (λ · rate · steps)",
    "std": "base init std",
}
SHORT = {"weight_decay": "decay", "tau_epoch": "τ_epoch"}


def signed(value: float, digits: int = 2) -> str:
    """With a true minus sign, but none before a zero.

    >>> signed(-0.124), signed(-0.0001), signed(3)
    ('−0.12', '0.00', '3.00')
    """
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−").replace("inf", "∞")


def power(log2: float) -> str:
    """A power of two.

    >>> power(-6.19)
    '2^−6.19'
    """
    return f"2^{signed(log2)}"


def decimal(value: float) -> str:
    """Three digits.

    >>> decimal(2**-6.19), decimal(3.2e-7), decimal(12)
    ('0.0137', '3.2e-07', '12')
    """
    return f"{value:.3g}"


def interval(estimate: Estimate, digits: int = 2) -> str:
    """Both ends, or "no bound".

    >>> interval(Estimate(0.2, 0.1, 0.3)), interval(Estimate(0.2, -math.inf, math.inf))
    ('[0.10, 0.30]', 'no bound')
    """
    if not math.isfinite(estimate.low) and not math.isfinite(estimate.high):
        return "no bound"
    return f"[{signed(estimate.low, digits)}, {signed(estimate.high, digits)}]"


def with_interval(estimate: Estimate | None, digits: int = 2) -> str:
    """A value and its interval.

    >>> with_interval(Estimate(-0.2, -0.3, -0.1)), with_interval(None)
    ('−0.20 [−0.30, −0.10]', '–')
    """
    if estimate is None:
        return "–"
    return f"{signed(estimate.value, digits)} {interval(estimate, digits)}"


def listed(words: list[str]) -> str:
    """A list in a sentence.

    >>> listed(["mup"]), listed(["sp", "mup", "gqa-mup"])
    ('mup', 'sp, mup and gqa-mup')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
