"""τ_epoch: against a run of AdamW itself."""

import math

import pytest
import torch

from mupscale.analysis.timescales import decay_of_tau, effective_tau, tau_epoch
from mupscale.errors import OptionError


def test_after_one_tau_decay_has_left_one_part_in_e():
    """Without a gradient AdamW shrinks a weight by 1 − ηλ a step, and a run has 1/τ time scales."""
    lr, decay, steps = 0.01, 0.2, 2000
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=lr, weight_decay=decay)
    weight.grad = torch.zeros_like(weight)
    for _ in range(steps):
        optimizer.step()
    assert math.log(weight.item()) == pytest.approx(-1 / tau_epoch(lr, decay, steps), rel=0.002)


def test_decay_and_tau_are_inverse():
    assert decay_of_tau(tau_epoch(0.01, 0.3, 500), 0.01, 500) == pytest.approx(0.3)


def test_scaled_decay_keeps_tau_and_unscaled_decay_does_not():
    assert effective_tau(0.7, 1 / 8, 8) == pytest.approx(0.7)
    assert effective_tau(0.7, 1 / 8, 1) == pytest.approx(5.6)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_no_decay_has_no_time_scale(bad):
    with pytest.raises(OptionError, match="weight_decay"):
        tau_epoch(0.1, bad, 10)
