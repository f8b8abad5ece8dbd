"""Folding against real optimizers, the base convention in numbers, and the renderings."""

import dataclasses
import json
import math

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from mupscale.errors import DimensionError, NotExactError, OptionError, UnknownNameError
from mupscale.theory import (
    DECAYS,
    FIELDS,
    OPTIMIZERS,
    Dense,
    KeyValue,
    Readout,
    Residual,
    Vector,
    derive,
)
from mupscale.theory.formulas import L, n
from mupscale.theory.units import NAMED

a = sympy.Symbol("a", positive=True)


# (σ, η, λ, ε) are multiplied by these powers of a.
POWERS = {
    ("adamw", "lr_coupled"): (1, 1, -1, -1),
    ("adamw", "independent"): (1, 1, 0, -1),
    ("adam", "l2"): (1, 1, -2, -1),
    ("sgd", "l2"): (1, 2, -2, 0),
    ("sgd", "lr_coupled"): (1, 2, -2, 0),
    ("momentum", "l2"): (1, 2, -2, 0),
    ("lion", "lr_coupled"): (1, 1, -1, 0),
    ("muon", "lr_coupled"): (1, 1, -1, -1),
    ("shampoo", "lr_coupled"): (1, 1, -1, -2),
}


class TestFoldingAlgebra:
    """Prediction 13, symbolically: W' = aW, so that g' = g/a."""

    @pytest.mark.parametrize(("optimizer", "decay"), POWERS)
    def test_each_optimizer_folds_by_its_powers(self, optimizer, decay):
        plain = derive("dense", optimizer, decay=decay)
        folded = plain.fold(a)
        for name, power in zip(
            ("init_std", "lr", "weight_decay", "eps"), POWERS[optimizer, decay], strict=True
        ):
            assert sympy.simplify(getattr(folded, name) / getattr(plain, name) - a**power) == 0, (
                name
            )
        assert sympy.simplify(folded.multiplier * a - plain.multiplier) == 0

    def test_the_unembedding_folds_to_the_form_of_the_papers_text(self):
        """Section 3.1: η = 1/n and λ = n for output layers; the same thing as table 1 by
        abc-symmetry.
        """
        folded = derive("readout").fold()
        assert [str(e) for e in folded.expressions.values()] == ["1/n", "1", "1/n", "n", "1"]

    @pytest.mark.parametrize("optimizer", [o for o in OPTIMIZERS if o != "adafactor"])
    @pytest.mark.parametrize("decay", DECAYS)
    def test_folding_there_and_back_changes_nothing(self, optimizer, decay):
        plain = derive(Residual(Dense(n, n), L), optimizer, decay=decay)
        assert plain.fold(a).fold(1 / a).expressions == plain.expressions

    def test_folding_keeps_rate_times_decay(self):
        folded = derive("readout").fold()
        assert folded.lr * folded.weight_decay == 1

    def test_adafactor_refuses(self):
        with pytest.raises(
            NotExactError, match=r"RMS\(W\), which has a floor.*Keep the multiplier"
        ):
            derive("readout", "adafactor").fold()

    def test_nothing_to_fold_is_no_refusal(self):
        plain = derive("dense", "adafactor")
        assert plain.fold() is plain

    @pytest.mark.parametrize("bad", [0, -1, "r - r", "-n", math.inf, math.nan])
    def test_a_multiplier_is_positive_and_finite(self, bad):
        with pytest.raises(OptionError, match="multiplier="):
            derive("dense").fold(bad)


def train(multiplier: float, W: torch.Tensor, optimizer: type, **settings) -> list[float]:
    """Losses of twenty steps on a fixed problem in float64, with the weight multiplied in the
    forward pass.
    """
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(32, W.shape[1], generator=generator, dtype=torch.float64)
    Y = torch.randn(32, W.shape[0], generator=generator, dtype=torch.float64)
    weight = torch.nn.Parameter(W.clone())
    steps = optimizer([weight], **settings)
    losses = []
    for _ in range(20):
        loss = (torch.tanh(multiplier * X @ weight.T) - Y).square().mean()
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses


TORCH = {
    "adamw": (torch.optim.AdamW, "lr_coupled", {}),
    "adam": (torch.optim.Adam, "l2", {}),
    "sgd": (torch.optim.SGD, "l2", {}),
    "momentum": (torch.optim.SGD, "l2", {"momentum": 0.9}),
    "adafactor": (torch.optim.Adafactor, "lr_coupled", {}),
}


def folded_and_not(name: str, unit: str = "readout", forget: str = "") -> list[list[float]]:
    """Losses with the readout's multiplier in the forward pass, and folded; `forget` leaves one
    field unfolded.
    """
    optimizer, decay, extra = TORCH[name]
    plain = derive(unit, dataclasses.replace(OPTIMIZERS[name], not_exact=""), decay=decay)
    width = {"n": 16}
    curves = []
    for scaling in (plain, plain.fold()):
        factors = scaling.evaluate(target=width, base={"n": 1})
        if forget and scaling is not plain:
            factors = dataclasses.replace(
                factors, **{forget: getattr(plain.evaluate(target=width, base={"n": 1}), forget)}
            )
        noise = torch.randn(4, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        settings = {"lr": 0.02 * factors.lr, "weight_decay": 0.3 * factors.weight_decay, **extra}
        if OPTIMIZERS[name].epsilon == "entry":
            settings["eps"] = (None, 1e-3) if name == "adafactor" else 0.01 * factors.eps
        curves.append(
            train(factors.multiplier, 0.01 * factors.init_std * noise, optimizer, **settings)
        )
    return curves


def difference(curves: list[list[float]]) -> float:
    return max(abs(x - y) for x, y in zip(*curves, strict=True))


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "momentum"])
def test_folded_and_unfolded_training_agree_under_torch(name):
    curves = folded_and_not(name)
    assert curves[0][-1] < curves[0][0]
    assert difference(curves) < 1e-12


@pytest.mark.parametrize("forget", ["init_std", "lr", "weight_decay", "eps"])
def test_a_fold_that_forgets_one_field_trains_differently(forget):
    assert difference(folded_and_not("adamw", forget=forget)) > 1e-6


def test_adafactor_would_really_train_differently():
    """The refusal is not caution: with torch's floor on RMS(W) binding, the folded run departs."""
    assert difference(folded_and_not("adafactor")) > 1e-4


class TestEvaluate:
    kv = derive(KeyValue("n", "r"))

    @given(st.integers(1, 10**5), st.integers(1, 64), st.integers(1, 200))
    def test_a_base_planned_onto_itself_is_the_identity(self, width, repetitions, depth):
        unit = Residual(KeyValue("n", "r", inner="inner"), "L")
        own = {"n": width, "r": repetitions, "L": depth, "inner": 64 * repetitions}
        for base in (own, {}, None, {"n": width}):
            assert dataclasses.astuple(derive(unit).evaluate(target=own, base=base)) == (1.0,) * 5

    def test_a_base_without_repetition_gives_the_papers_absolute_factor(self):
        for r in (1, 2, 3, 4, 6, 12):
            factors = self.kv.evaluate(base={"n": 768, "r": 1}, target={"n": 768, "r": r})
            assert factors.lr == (1 + math.sqrt(r)) / 2
            assert factors.weight_decay == pytest.approx(2 / (1 + math.sqrt(r)), rel=1e-16)

    def test_repetitions_are_a_ratio_to_the_base(self):
        factors = self.kv.evaluate(base={"n": 288, "r": 4}, target={"n": 1152, "r": 9})
        assert factors.lr == pytest.approx((4 / 3) / 4, rel=1e-15)

    def test_reference_r_reads_repetitions_absolutely_whatever_the_base(self):
        base, target = {"n": 256, "r": 4}, {"n": 1024, "r": 4}
        assert self.kv.evaluate(base=base, target=target).lr == 0.25
        assert self.kv.evaluate(base=base, target=target, reference_r=1).lr == 0.375

    def test_what_the_base_leaves_unsaid_is_the_targets(self):
        assert self.kv.evaluate(base={"n": 256}, target={"n": 1024, "r": 4}).lr == 0.25

    def test_the_base_of_one_is_the_absolute_table(self):
        factors = derive("readout").evaluate(base={"n": 1}, target={"n": 4096})
        assert factors.multiplier == 1 / 4096
        assert factors.eps == 1 / 4096

    def test_the_nearest_double_is_returned(self):
        """(1 + √2)/2 to the last bit, against mpmath at 50 digits."""
        import mpmath

        with mpmath.workdps(50):
            exact = (1 + mpmath.sqrt(2)) / 2 / 3
        assert self.kv.evaluate(base={"n": 100, "r": 1}, target={"n": 300, "r": 2}).lr == float(
            exact
        )

    def test_what_is_zero_stays_zero(self):
        factors = derive(Vector("n")).evaluate(base={"n": 2}, target={"n": 4})
        assert (factors.init_std, factors.weight_decay, factors.lr) == (0.0, 0.0, 1.0)

    def test_dimensions_that_a_unit_does_not_have_are_no_mistake(self):
        """One set of dimensions serves every parameter of a model."""
        assert (
            derive("embedding").evaluate(base={"n": 2, "r": 1}, target={"n": 4, "r": 2, "L": 3}).eps
            == 0.5
        )

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            (
                {"target": {"n": 768, "r": 5}},
                DimensionError,
                "r=5 does not divide heads × head_dim = 768",
            ),
            ({"target": {"n": 0, "r": 1}}, DimensionError, "target: n=0"),
            ({"target": {"n": 768, "r": -4}}, DimensionError, "target: r=-4"),
            ({"target": {"n": 768, "r": 4}, "base": {"n": -768}}, DimensionError, "base: n=-768"),
            ({"target": {"n": 768, "r": 4}, "reference_r": 0}, DimensionError, "reference_r: r=0"),
            (
                {"target": {"n": 768}},
                DimensionError,
                r"target says n=768, but KeyValue\(n, r\) also needs r",
            ),
            (
                {"target": {"n": 768, "repetitions": 4}},
                UnknownNameError,
                "unknown dimension in target 'repetitions'",
            ),
        ],
    )
    def test_dimensions_that_cannot_be_are_named(self, arguments, error, message):
        with pytest.raises(error, match=message):
            self.kv.evaluate(**arguments)


class TestRenderings:
    @pytest.mark.parametrize("unit", NAMED)
    @pytest.mark.parametrize("show", ["to_text", "to_markdown", "to_latex"])
    def test_every_step_and_expression_is_shown(self, unit, show):
        scaling = derive(unit)
        text, short = (getattr(scaling, show)(steps=steps) for steps in (True, False))
        assert all(step.title in text for step in scaling.steps)
        assert not any(f"{step.title}:" in short for step in scaling.steps)
        assert scaling.standing in short

    def test_latex_holds_no_character_that_pdflatex_lacks(self):
        for unit in NAMED:
            assert derive(unit).to_latex().isascii(), [
                c for c in derive(unit).to_latex() if not c.isascii()
            ]

    def test_json_has_the_five_expressions_under_their_names(self):
        data = json.loads(derive(Readout(n)).to_json())
        assert [data[name] for name in FIELDS] == ["1", "1/n", "1", "1", "1/n"]
        assert data["steps"][0]["reason"]

    def test_adam_with_decoupled_decay_is_told_apart_from_torch(self):
        assert any(
            "torch.optim.Adam decays by l2" in caveat for caveat in derive("kv", "adam").caveats
        )
        assert not derive("kv", "adam", decay="l2").caveats
