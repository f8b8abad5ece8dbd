"""Sums of cells below the exponent of the key/value factor, with few cells and exact values."""

import math

import numpy as np
import pytest

from mupscale.analysis.contrasts import CellValue
from mupscale.analysis.exponents import (
    Factored,
    _Curve,
    _one_loss,
    _Test,
    fit_exponents,
    log2_paper_factor,
)
from mupscale.analysis.measurements import Measurement, Member


def cells_at(values, *, seeds=2, error=math.inf, freedom=0.0) -> tuple[CellValue, ...]:
    return tuple(CellValue(v, error, freedom, dict.fromkeys(range(seeds), v)) for v in values)


def curve(cells, *, smooth: bool) -> _Curve:
    return _Curve(1.0, np.arange(float(len(cells))), cells, smooth=smooth)


@pytest.mark.parametrize(("other", "p"), [([9.0, 4.0, 1.0, 0.0], 0), ([0.0, 1.0, 4.0, 9.0], 1)])
def test_losses_without_noise_leave_no_doubt_whether_one_exponent_serves(other, p):
    """One r is best at γ = 0, the other at γ = 3 or at γ = 0 too."""
    curves = [curve(cells_at(values), smooth=True) for values in ([0.0, 1.0, 4.0, 9.0], other)]
    assert _one_loss(_Test("loss", None, curves, 0.95)) == p


def test_cells_with_seeds_of_their_own_add_their_variances_and_degrees_of_freedom():
    """Satterthwaite's formula for the difference of two cells with the same error."""
    base, first, second = (
        CellValue(value, 0.5, 4.0, {seed: value}) for seed, value in enumerate((1.0, 3.0, 2.0))
    )
    test = _Test("still", base, [curve((first, second), smooth=False)], 0.95)
    sums = test.at(np.array([0.0]))
    assert sums.values == pytest.approx([2.0])
    assert sums.errors == pytest.approx([0.5 * math.sqrt(2)])
    assert sums.freedom == pytest.approx([8.0])


def test_of_two_places_where_the_optimum_is_still_the_falling_one_counts():
    """A larger factor lowers the optimum; a crossing on which it rises is a whim of the data."""
    generator, rates = np.random.default_rng(5), np.arange(-8, -3.9, 0.5)

    def bowl(r: float, z: float, place: float) -> Factored:
        runs = [
            Measurement(
                rule="",
                member=Member(label=""),
                seed=seed,
                params={"lr": 2.0**rate},
                loss=2 + 0.05 * (rate - place) ** 2 + 0.0005 * generator.standard_normal(),
            )
            for seed in range(3)
            for rate in rates
        ]
        return Factored(r, z, runs)

    places = {-1.0: -6.4, 0.0: -5.2, 1.0: -5.6, 2.0: -5.9, 3.0: -6.4}  # −6 at z = 2.2 falling
    found = fit_exponents([bowl(1, 0.0, -6.0), *(bowl(4, z, at) for z, at in places.items())])
    assert found.still.gamma.value * log2_paper_factor(4) == pytest.approx(2.2, abs=0.15)
