"""Texts on figures: powers of two, ticks, and names from users."""

import math
from functools import cache

from mupscale.analysis.measurements import Member
from mupscale.reports.log_axes import SUPERSCRIPTS, Limits

_STEPS = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def power_of_two(exponent: float) -> str:
    """A power of two for an axis.

    >>> [power_of_two(exponent) for exponent in (-7, 0, 3.5)]
    ['2⁻⁷', '2⁰', '2³·⁵']
    """
    return "2" + f"{exponent:g}".translate(SUPERSCRIPTS)


def octave_ticks(limits: Limits, most: int = 6) -> list[float]:
    """At most `most` ticks: whole powers of two, or halves and quarters on a short axis.

    >>> octave_ticks((-8.2, -3.8)), octave_ticks((-6.6, -5.9)), octave_ticks((-20, 7))
    ([-8, -7, -6, -5, -4], [-6.5, -6.25, -6.0], [-20, -15, -10, -5, 0, 5])
    """
    low, high = limits
    for step in _STEPS:
        ticks = [
            step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)
        ]
        if len(ticks) <= most and (step >= 1 or high - low < 2):
            return ticks
    return [low, high]


def with_margin(low: float, high: float) -> Limits:
    """The limits with a margin, also around a single value.

    >>> with_margin(-8, -4), with_margin(-6, -6)
    ((-8.25, -3.75), (-6.25, -5.75))
    """
    margin = max(0.04 * (high - low), 0.25)
    return low - margin, high + margin


def short_name(text: str, most: int = 28) -> str:
    r"""A name that fits on a figure: one line, drawable characters, the middle cut if it is long.

    >>> short_name("medium"), short_name("first\nsecond"), short_name("a" * 50 + "z" * 50, most=9)
    ('medium', 'first second', 'aaaa…zzzz')
    """
    line = " ".join(text.split())
    if len(line) > most:
        kept = (most - 1) // 2
        line = f"{line[: most - 1 - kept]}…{line[-kept:]}"
    return "".join(one if one.isprintable() and ord(one) in _drawable() else "�" for one in line)


def member_text(member: Member, axis: str | None) -> str:
    """A member's name for a legend, with its position on the family's axis.

    >>> member_text(Member(label="n_kv_heads = 3", position=4), "r")
    'n_kv_heads = 3 (r = 4)'
    >>> member_text(Member(label="width = 64", position=64), "width")
    'width = 64'
    >>> member_text(Member(label="small", position=26_380_000), "parameters")
    'small (26.4M parameters)'
    >>> member_text(Member(label=""), None)
    'all'
    """
    name = short_name(member.label, 24) or "all"
    if axis is None or member.position is None or member.label.startswith(f"{axis} ="):
        return name
    if axis == "parameters":
        return f"{name} ({short_count(member.position)} parameters)"
    return f"{name} ({short_name(axis, 12)} = {member.position:g})"


def short_count(number: float) -> str:
    """A large number in a few characters, as in names of models.

    >>> short_count(950), short_count(27_648), short_count(1.2e9), short_count(3.2e12)
    ('950', '27.6k', '1.2B', '3.2T')
    """
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:g}"


@cache
def _drawable() -> frozenset[int]:
    """What matplotlib's own font has; anything else would be drawn as an empty box."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())
