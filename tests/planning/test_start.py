"""Values to start from: the std that `initialize_` takes by default, and the factors."""

import pytest
import torch

import mupscale as mu
from mupscale.models import GPT, GPTConfig

SHAPE = GPTConfig(width=64, depth=2, n_heads=4, vocabulary=256, context=32)


@pytest.mark.parametrize("width", [32, 64])
def test_without_a_std_it_is_that_of_the_base(width):
    """GPT-2's 0.02 at its largest width, 1600, at this width."""
    model, same = GPT(SHAPE), GPT(SHAPE)
    plan = mu.plan(model, base={"width": width})
    plan.initialize_(model, seed=1)
    plan.initialize_(same, std=0.02 * (1600 / width) ** 0.5, seed=1)
    for (name, one), other in zip(model.named_parameters(), same.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=0), name
    assert mu.start_std(width) == pytest.approx(0.02 * (1600 / width) ** 0.5)


def test_the_factors_are_those_of_a_plan():
    plan = mu.plan(GPT(SHAPE), base={"width": 64})
    started = plan.with_factors(mu.START_FACTORS)
    for name, parameter in plan.parameters.items():
        times = 8 if parameter.role in ("embedding", "position") else 1
        assert started.parameters[name].lr == times * parameter.lr
