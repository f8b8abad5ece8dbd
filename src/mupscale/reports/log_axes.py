"""Readable logarithmic axes: comparable ranges, and always at least three labelled ticks.

matplotlib alone labels only powers of ten, so data that span 10 % get an axis without a number.
"""

import math
from collections.abc import Sequence

Limits = tuple[float, float]

_LEAST_TICKS = 3

# (decades between ticks, mantissas per decade), coarse to fine. The finest has three ticks in any
# factor of 4.
_SERIES: Sequence[tuple[int, Sequence[float]]] = (
    *((stride, (1,)) for stride in (200, 100, 50, 20, 10, 5, 2, 1)),
    (1, (1, 3)),
    (1, (1, 2, 5)),
    (1, (1, 1.5, 2, 3, 5, 7)),
)

SUPERSCRIPTS = str.maketrans("-0123456789.", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹·")


def comparable_limits(ranges: Sequence[Limits]) -> list[Limits]:
    """Each range around its own centre, all with the same factor of at least 4, so that slopes
    compare.

    >>> comparable_limits([(1.0, 1.0), (8.0, 8.0)])
    [(0.5, 2.0), (4.0, 16.0)]
    """
    # 6 % of margin above and below the widest, for its markers.
    widest = max(math.log2(high) - math.log2(low) for low, high in ranges) * 1.12
    half = max(2.0, widest) / 2
    centres = [(math.log2(low) + math.log2(high)) / 2 for low, high in ranges]
    return [(2 ** (centre - half), 2 ** (centre + half)) for centre in centres]


def comparable_ticks(limits: Sequence[Limits]) -> list[list[float]]:
    """The coarsest round numbers that put at least three ticks on every axis.

    >>> comparable_ticks([(0.5, 2.0), (4.0, 16.0)])
    [[0.5, 0.7, 1.0, 1.5, 2.0], [5.0, 7.0, 10.0, 15.0]]
    >>> comparable_ticks([(0.008, 1.2)])
    [[0.01, 0.1, 1.0]]
    """
    ticks: list[list[float]] = []
    for stride, mantissas in _SERIES:
        ticks = [_ticks_within(low, high, stride, mantissas) for low, high in limits]
        if all(len(some) >= _LEAST_TICKS for some in ticks):
            break
    return ticks


def _ticks_within(low: float, high: float, stride: int, mantissas: Sequence[float]) -> list[float]:
    first = math.floor(math.log10(low) / stride) * stride
    last = math.ceil(math.log10(high))
    # Parsed, not multiplied: 1.5 × 10⁻¹ is then the float that prints as 0.15.
    ticks = [
        float(f"{mantissa}e{power}")
        for power in range(first, last + 1, stride)
        for mantissa in mantissas
    ]
    return [tick for tick in ticks if low <= tick <= high]


def plain_number(value: float) -> str:
    """A positive number; powers of ten only where one would have to count zeros.

    >>> [plain_number(value) for value in (0.02, 1.0, 1500.0, 1e-7, 2e-5, 3e8)]
    ['0.02', '1', '1500', '10⁻⁷', '2×10⁻⁵', '3×10⁸']
    """
    if 1e-4 <= value < 1e5:
        return f"{value:g}"
    mantissa, _, exponent = f"{value:.6e}".partition("e")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    return power if float(mantissa) == 1 else f"{float(mantissa):g}×{power}"
