"""Exponents of batch and tokens: found where they are known, and refused where they are not."""

import math

import numpy as np
import pytest

from mupscale.analysis.fits import FITS
from mupscale.analysis.run_exponents import SizedTable, fit_run_exponents
from mupscale.errors import DimensionError

RATES = np.arange(-13, -2.9, 0.5)
QUICK = ("quadratic", "cubic")
BATCHES, TOKENS = (512, 2048, 8192), (2.0**18, 2.0**20, 2.0**22)


def table(batch, tokens, best, *, noise=0.0, seeds=(1, 2, 3), rates=RATES, tilt=0.0):
    """A bowl with its lowest point at `best`; a seed moves its level and noise its losses."""
    random = np.random.default_rng([int(batch), int(tokens), len(seeds)])
    level = np.array([[2 + 0.1 * seed] for seed in seeds])
    losses = level + 0.1 * (rates - best) ** 2 + tilt * (rates - best) ** 3
    losses = losses + noise * random.standard_normal(losses.shape)
    return SizedTable(batch, tokens, seeds, tuple(rates), losses)


def surface(a, b, *, bend=0.0, scatter=0.0, batches=BATCHES, tokens=TOKENS, **more):
    random = np.random.default_rng(0)
    made = []
    for batch in batches:
        for length in tokens:
            x, y = math.log2(batch / batches[0]), math.log2(length / tokens[0])
            best = -8 + a * x - b * y + bend * x**2 / 2 + scatter * random.standard_normal()
            made.append(table(batch, length, best, **more))
    return made


@pytest.mark.parametrize(
    ("a", "b", "fits"), [(0.5, 0.25, tuple(FITS)), (0.0, 0.0, QUICK), (0.3, 0.5, QUICK)]
)
def test_every_fit_finds_the_exponents(a, b, fits):
    rates = np.arange(-10, -4.9, 0.5)
    found = fit_run_exponents(surface(a, b, noise=0.003, rates=rates), fits=fits)
    assert found.axes == ("batch", "tokens")
    assert tuple(found.by_fit) == fits
    for one in found.by_fit.values():
        for axis, true in (("batch", a), ("tokens", -b)):
            assert one.slopes[axis].low <= true <= one.slopes[axis].high
            assert one.slopes[axis].value == pytest.approx(true, abs=0.06)
            assert abs(one.bends[axis].value) < 0.02
    assert found.slope("batch").verdict == ("rises" if a else "no significant change")
    assert found.slope("tokens").verdict == ("falls" if b else "no significant change")
    assert found.bounded
    assert found.ranges == {"batch": (512, 8192), "tokens": (2.0**18, 2.0**22)}
    assert found.runs == 9 * 3 * len(rates)


def test_one_axis_alone():
    over_batch = fit_run_exponents(surface(0.5, 0.0, tokens=TOKENS[:1], noise=0.002), fits=QUICK)
    assert over_batch.axes == ("batch",)
    assert over_batch.slope("batch").widest.value == pytest.approx(0.5, abs=0.05)
    over_tokens = fit_run_exponents(surface(0.0, 0.3, batches=BATCHES[:1], noise=0.002), fits=QUICK)
    assert over_tokens.axes == ("tokens",)
    with pytest.raises(DimensionError, match="neither the batch nor the tokens"):
        fit_run_exponents(surface(0.5, 0.3, batches=BATCHES[:1], tokens=TOKENS[:1]))


def test_a_surface_that_is_no_plane_is_noticed():
    """The slope changes by `bend` per doubling."""
    batches = tuple(2.0**k for k in range(9, 14))
    found = fit_run_exponents(surface(0.1, 0.2, bend=0.2, batches=batches, noise=0.002), fits=QUICK)
    bend = found.bend("batch")
    assert bend.verdict == "not a straight line"
    assert bend.widest.low <= 0.2 <= bend.widest.high
    assert found.bend("tokens").verdict == "no significant bend"


def test_what_seeds_share_widens_the_interval():
    """Cells off the plane by as much with every seed: seeds alone would claim an exact slope."""
    exact, scattered = (
        fit_run_exponents(surface(0.5, 0.25, scatter=s, noise=0.001), fits=QUICK).by_fit[
            "quadratic"
        ]
        for s in (0.0, 0.4)
    )
    widths = [one.slopes["batch"].high - one.slopes["batch"].low for one in (exact, scattered)]
    assert widths[1] > 4 * widths[0]
    assert scattered.slopes["batch"].degrees_of_freedom == 9 - 3


def test_the_intervals_cover():
    """Of 50 noisy surfaces with a scatter of cells, about 95 % of the intervals hold the truth."""
    random, inside = np.random.default_rng(1), 0
    for _ in range(50):
        tables = []
        for batch in BATCHES:
            for length in TOKENS:
                x, y = math.log2(batch / 512), math.log2(length / 2.0**18)
                best = -8 + 0.4 * x - 0.2 * y + 0.15 * random.standard_normal()
                near = RATES[np.abs(RATES - round(2 * best) / 2) <= 1.5]
                losses = (
                    2 + 0.1 * (near - best) ** 2 + 0.002 * random.standard_normal((3, len(near)))
                )
                tables.append(SizedTable(batch, length, (1, 2, 3), tuple(near), losses))
        slope = fit_run_exponents(tables, fits=["quadratic"]).by_fit["quadratic"]
        inside += not slope.slopes["batch"].excludes(0.4)
    assert 45 <= inside <= 50


def test_cells_without_a_best_rate_are_left_out_and_named():
    tables = surface(0.5, 0.25, noise=0.002)
    open_above = table(8192, TOKENS[0], 3.0)
    found = fit_run_exponents(
        [open_above if t.name == open_above.name else t for t in tables], fits=QUICK
    )
    for one in found.by_fit.values():
        assert one.left_out == (open_above.name,)
        assert one.slopes["batch"].value == pytest.approx(0.5, abs=0.05)


def test_too_few_best_rates_are_no_answer():
    lost = [table(b, d, 3.0) for b in BATCHES[:2] for d in TOKENS[:2]]
    found = fit_run_exponents(lost)
    assert set(found.by_fit.values()) == {None}
    assert not found.bounded
    assert "not located" in found.slope("batch").verdict


def test_one_seed_gives_no_bound_and_two_cells_are_a_line_for_each_seed():
    assert not fit_run_exponents(surface(0.5, 0.25, noise=0.002, seeds=(1,)), fits=QUICK).bounded
    pair = surface(0.5, 0.0, tokens=TOKENS[:1], batches=BATCHES[:2], noise=0.002)
    assert fit_run_exponents(pair, fits=QUICK).bounded


def test_different_seeds_are_refused():
    tables = [table(512, 1e6, -8), table(1024, 1e6, -7.5, seeds=(4, 5, 6))]
    with pytest.raises(DimensionError, match="different seeds"):
        fit_run_exponents(tables)


def test_the_loss_between_rates_and_what_a_rate_costs():
    one = table(512, 1e6, -7)
    assert one.best == -7
    assert one.loss_at(-7.0) == pytest.approx([2.1, 2.2, 2.3])
    assert one.loss_at(-6.25) == pytest.approx(one.losses[:, [13, 14]].mean(axis=1))
    assert one.loss_at(-2.0) is None
    assert one.loss_at(-13.5) is None
    cost = one.regret("quadratic", -6.0)
    assert cost.value == pytest.approx(0.1)
    assert one.regret("quadratic", -2.0) is None
    holed = SizedTable(
        512, 1e6, one.seeds, one.log2_rates, np.where(RATES == -6, np.nan, one.losses)
    )
    assert holed.loss_at(-6.25) is None
