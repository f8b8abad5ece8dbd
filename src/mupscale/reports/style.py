"""How every figure looks: colours that colour-blind readers can tell apart, and nothing that shouts."""

from collections.abc import Mapping

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe & Ito 2008, ordered so that the first two differ most."""

SETTINGS: Mapping[str, object] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # The same data give the same file, byte for byte.
    "svg.hashsalt": "mupscale",
}
