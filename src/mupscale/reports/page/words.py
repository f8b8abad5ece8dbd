"""Numbers as a reader wants them: powers of two, intervals, counts. A missing bound is said, never
left out.
"""

import math

from mupscale.analysis.estimates import Estimate

AXES = {"r": "r", "width": "width", "depth": "depth", "parameters": "number of parameters"}
NAMES = {
    "lr": "base learning rate",
    "weight_decay": "base weight decay",
    "tau_epoch": "τ_epoch",
    "std": "base std",
}
SHORT = {"lr": "lr", "weight_decay": "decay", "tau_epoch": "τ_epoch", "std": "std", "loss": "loss"}

FLAGS = {
    "few": "too few trials for an interval",
    "edge": "at the edge of the range: widen it",
    "flat": "too flat for an interval",
    "seeds": "seeds differ: add some for an interval",
    "diverged": "bounded by diverged trials",
    "saddle": "no minimum inside the range",
}


def signed(value: float, digits: int = 2) -> str:
    """With a true minus sign, and no minus before a zero.

    >>> signed(-0.124), signed(-0.0001), signed(3)
    ('−0.12', '0.00', '3.00')
    """
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−").replace("inf", "∞")


def power(log2: float, digits: int = 2) -> str:
    """A power of two.

    >>> power(-6.19)
    '2^−6.19'
    """
    return f"2^{signed(log2, digits)}"


def decimal(value: float) -> str:
    """Three digits, as a person would type it.

    >>> decimal(2**-6.19), decimal(3.2e-7), decimal(12)
    ('0.0137', '3.2e-07', '12')
    """
    return f"{value:.3g}"


def interval(estimate: Estimate, digits: int = 2) -> str:
    """From end to end, or that there is none.

    >>> interval(Estimate(0.2, 0.1, 0.3)), interval(Estimate(0.2, -math.inf, math.inf))
    ('[0.10, 0.30]', 'no bound')
    """
    if not math.isfinite(estimate.low) and not math.isfinite(estimate.high):
        return "no bound"
    return f"[{signed(estimate.low, digits)}, {signed(estimate.high, digits)}]"


def with_interval(estimate: Estimate | None, digits: int = 2) -> str:
    """A value and how far it can be trusted.

    >>> with_interval(Estimate(-0.2, -0.3, -0.1)), with_interval(None)
    ('−0.20 [−0.30, −0.10]', '–')
    """
    return (
        "–"
        if estimate is None
        else f"{signed(estimate.value, digits)} {interval(estimate, digits)}"
    )


def many(number: int, word: str) -> str:
    """So many of something.

    >>> many(1, "seed"), many(1200, "run")
    ('1 seed', '1,200 runs')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def listed(words: list[str]) -> str:
    """In a sentence.

    >>> listed(["mup"]), listed(["sp", "mup", "gqa-mup"])
    ('mup', 'sp, mup and gqa-mup')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def flags_text(flags: tuple[str, ...]) -> str:
    """What is doubtful about an optimum; of too few trials nothing else is said.

    >>> flags_text(("edge", "flat")), flags_text(("few", "flat"))
    ('at the edge of the range: widen it; too flat for an interval', 'too few trials for an interval')
    """
    chosen = ("few",) if "few" in flags else flags
    return "; ".join(FLAGS.get(flag, flag) for flag in chosen)
