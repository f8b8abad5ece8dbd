"""What changes with batch and length: derived factors against a simulation of noisy training, and
published rules against their own numbers.
"""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import sympy

from mupscale.errors import DimensionError, MupscaleError, NotDerivedError, OptionError
from mupscale.theory import RULES, Rule, RunFactors, RunSize, derive_run, scaled_beta
from mupscale.theory.runs import PUBLISHED, RUN_CHOICES, B, D, run_formulas

ROOT_B = sympy.sqrt(B)


@pytest.mark.parametrize(
    ("optimizer", "decay", "expected"),
    [
        ("adamw", "lr_coupled", (ROOT_B, ROOT_B, 1 / ROOT_B, B, B)),
        ("adamw", "independent", (ROOT_B, B, 1 / ROOT_B, B, B)),
        ("adam", "l2", (ROOT_B, 1, 1 / ROOT_B, B, B)),
        ("signsgd", "lr_coupled", (ROOT_B, ROOT_B, 1, 1, 1)),
        ("sgd", "l2", (B, 1, 1, 1, 1)),
        ("sgd", "lr_coupled", (B, 1, 1, 1, 1)),
        ("momentum", "l2", (B**2, 1, 1, B, 1)),
        ("momentum", "independent", (B**2, B, 1, B, 1)),
    ],
)
def test_the_noise_equation_by_optimizer_and_decay(optimizer, decay, expected):
    found = derive_run("sde", optimizer, decay=decay).expressions
    assert (
        tuple(sympy.simplify(one - two) for one, two in zip(found.values(), expected, strict=True))
        == (0,) * 5
    )


# The simulation: many weights of one quadratic, each with its own noise, trained by the optimizer
# itself. At κ times the batch with 1/κ of the steps the losses must have the same distribution.

CURVATURE, NOISE, WEIGHTS = 1.0, 40.0, 20_000


def simulated(
    optimizer: str, decay: str, batch: float, steps: int, factors: RunFactors, seed: int
) -> np.ndarray:
    """The weights at the end, from 1, with the base values times the factors."""
    rng = np.random.default_rng(seed)
    lr = {"adamw": 2e-3, "sgd": 2e-3, "momentum": 1e-4}[optimizer] * factors.lr
    shrink = {"lr_coupled": 0.5, "independent": 1e-3, "l2": 0.2}[decay] * factors.weight_decay
    eps = 20.0 * factors.eps
    beta1, beta2 = (1 - (1 - b) * f for b, f in ((0.99, factors.beta1), (0.995, factors.beta2)))
    weights = np.ones(WEIGHTS)
    first, second = np.zeros(WEIGHTS), np.full(WEIGHTS, NOISE**2 / batch)
    for step in range(1, steps + 1):
        gradient = CURVATURE * weights + NOISE / math.sqrt(batch) * rng.standard_normal(WEIGHTS)
        if decay == "l2":
            gradient = gradient + shrink * weights
        if optimizer == "sgd":
            move = gradient
        elif optimizer == "momentum":
            first = beta1 * first + gradient
            move = first
        else:
            first = beta1 * first + (1 - beta1) * gradient
            second = beta2 * second + (1 - beta2) * gradient**2
            move = first / (1 - beta1**step) / (np.sqrt(second) + eps)
        weights = weights - lr * move
        if decay != "l2":
            weights = weights * (1 - (lr if decay == "lr_coupled" else 1.0) * shrink)
    return weights


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The larger of the differences of mean and spread, in standard errors."""
    spread = math.sqrt((one.var() + other.var()) / 2)
    mean = abs(one.mean() - other.mean()) / (spread * math.sqrt(2 / WEIGHTS))
    wide = abs(math.log(one.std() / other.std())) / math.sqrt(1 / WEIGHTS)
    return max(mean, wide)


@pytest.mark.parametrize(
    ("optimizer", "decay"),
    [("adamw", "lr_coupled"), ("adamw", "independent"), ("sgd", "l2"), ("momentum", "l2")],
)
def test_its_factors_keep_the_distribution_of_the_weights(optimizer: str, decay):
    """Up to the noise of 20,000 weights; leaving out a factor shows at once."""
    kappa, batch, steps = 4.0, 1.0, 1600
    base, target = RunSize(batch, batch * steps), RunSize(kappa * batch, batch * steps)
    factors = derive_run("sde", optimizer, decay=decay).evaluate(base=base, target=target)
    reference = simulated(optimizer, decay, batch, steps, RunFactors(), seed=1)

    def at_kappa(found: RunFactors) -> float:
        other = simulated(optimizer, decay, kappa * batch, steps // 4, found, seed=2)
        return distance(reference, other)

    kept = at_kappa(factors)
    assert kept < 4
    for name, value in asdict(factors).items():
        # β2 only smooths the size of the noise, which is the same at every step.
        if value != 1 and name != "beta2":
            assert at_kappa(replace(factors, **{name: 1.0})) > 8, name


def test_completed_p_is_the_same_for_shares_of_the_run():
    sde, whole = derive_run("sde"), derive_run("completed-p")
    for name, value in sde.expressions.items():
        assert sympy.simplify(whole.expressions[name] - value.subs(B, B / D)) == 0
    assert whole.steps[-1].standing == "extrapolated"


def test_published_rules_differ_by_seven_octaves_over_one_recipe():
    """Their own numbers for 1,080 times the batch and 33,318 times the tokens."""
    base, target = RunSize(1e4, 1e8), RunSize(1.08e7, 3.3318e12)
    octaves = {
        name: math.log2(derive_run(name).evaluate(base=base, target=target).lr)
        for name in ("completed-p", "hyperp", "delphi", "nanochat", "sde")
    }
    assert octaves == pytest.approx(
        {"completed-p": -2.47, "hyperp": 0.23, "delphi": 0.53, "nanochat": 5.04, "sde": 5.04},
        abs=0.005,
    )
    decay = derive_run("nanochat").evaluate(base=base, target=target).weight_decay
    assert decay == pytest.approx(math.sqrt(1080) / 33318)


def test_a_base_planned_onto_itself_changes_nothing():
    size = RunSize(8192, 1e8)
    for choice in RUN_CHOICES[1:]:
        assert derive_run(choice).evaluate(base=size, target=size) == RunFactors()


def test_own_formulas():
    found = derive_run("lr=sqrt(B)/D**0.25, weight_decay=B", "muon")
    factors = found.evaluate(base=RunSize(1, 16), target=RunSize(4, 256))
    assert factors == RunFactors(lr=1.0, weight_decay=4.0)
    assert "not derived" in found.to_text()
    assert run_formulas("none") is None


@pytest.mark.parametrize("optimizer", ["muon", "shampoo", "adafactor", "lion"])
def test_without_a_derivation_it_names_the_optimizer(optimizer: str):
    for choice in ("sde", "completed-p"):
        with pytest.raises(NotDerivedError, match=f"no derivation for {optimizer}"):
            derive_run(choice, optimizer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RunSize(0, 1e6), "batch=0 is not a number of tokens"),
        (lambda: RunSize(1e4, math.nan), "tokens=nan is not a number"),
        (lambda: RunSize(True, 1e6), "batch=True is not a number"),
        (lambda: RunSize(1e6, 1e5), "less than one batch of 1,000,000 tokens"),
        (lambda: derive_run("none"), "does not cover batch and length"),
        (lambda: derive_run("sd"), "unknown choice for batch and length 'sd'"),
        (lambda: derive_run("rate=B"), "unknown value in run='rate=B' 'rate'"),
        (lambda: derive_run("lr=sqrt(K)"), "unknown symbol 'K'"),
        (lambda: derive_run("lr=B-D"), "is not positive for all B and D"),
        (lambda: derive_run("sde", decay="other"), "unknown decay 'other'"),
        (lambda: scaled_beta("β1", 0.9, 16.0), "is no moving average"),
        (lambda: Rule("mine", run="lr"), "unknown choice for batch and length 'lr'"),
    ],
)
def test_bad_input_gets_one_line(call, message: str):
    with pytest.raises(MupscaleError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, DimensionError | OptionError | MupscaleError)


def test_a_rule_without_the_choice_is_unchanged():
    assert "run" not in RULES["gqa-mup"].to_dict()
    changed = RULES["gqa-mup"].with_(run="sde")
    assert changed.to_dict()["run"] == "sde"
    assert Rule.from_dict(changed.to_dict()) == changed
    assert str(changed) == "gqa-mup (run sde)"


def test_every_published_rule_names_its_source():
    for name, one in PUBLISHED.items():
        text = derive_run(name).to_text()
        assert one.source.split(",")[0] in " ".join(text.split())
