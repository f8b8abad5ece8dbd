"""Laws of the derivation: presets, units, depth, decay, and where it refuses."""

import dataclasses
import math

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from mupscale.errors import (
    DimensionError,
    NotDerivedError,
    NotExactError,
    OptionError,
    UnknownNameError,
)
from mupscale.theory import (
    DECAYS,
    FIELDS,
    OPTIMIZERS,
    RULES,
    Adapter,
    Dense,
    Embedding,
    Expert,
    Fused,
    KeyValue,
    LowRank,
    Readout,
    Residual,
    Router,
    Rule,
    Vector,
    derive,
)
from mupscale.theory.formulas import L, inner, n, r
from mupscale.theory.units import NAMED, unit_named

ELEMENTWISE = [name for name, optimizer in OPTIMIZERS.items() if not optimizer.whole_matrix]
BLOCK = [Dense(n, n), KeyValue(n, r), KeyValue(n, r, inner), Vector(n)]


def same(a, b) -> bool:
    return sympy.simplify(a - b) == 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("heads", [n, inner])
def test_without_repetition_key_and_value_are_hidden_matrices(optimizer, decay, heads):
    """Prediction 10, symbolically: at r = 1, gqa-mup is complete-p, for any number of heads ×
    head_dim.
    """
    kv = Residual(KeyValue(n, 1, heads), L, output=False)
    dense = Residual(Dense(heads, n), L, output=False)
    gqa = derive(kv, optimizer, decay=decay)
    assert gqa.expressions == derive(kv, optimizer, rule="complete-p", decay=decay).expressions
    assert gqa.expressions == derive(dense, optimizer, decay=decay).expressions


@pytest.mark.parametrize(
    ("unit", "optimizer"),
    [
        (name, optimizer)
        for name, unit in NAMED.items()
        for optimizer in OPTIMIZERS
        if name not in ("vector", "fused")
        and (unit.grows_both_ways or not OPTIMIZERS[optimizer].whole_matrix)
    ],
)
def test_rate_times_decay_is_the_same_for_every_decayed_weight(unit, optimizer):
    """Prediction 11: ηλ = Θ(1) under lr-coupled decay."""
    scaling = derive(unit, optimizer)
    assert same(scaling.lr * scaling.weight_decay, 1)


def test_presets_are_the_choices_of_the_paper_and_of_complete_p():
    kv = Residual(KeyValue(n, r), L, output=False)
    out = Residual(Dense(n, n), L)
    values = {name: [derive(unit, rule=name) for unit in (kv, out)] for name in RULES}
    assert [str(values[name][0].lr) for name in RULES] == ["1", "1/n", "1/n", "(sqrt(r) + 1)/(2*n)"]
    assert [str(values[name][0].weight_decay) for name in RULES] == [
        "1",
        "1",
        "n",
        "2*n/(sqrt(r) + 1)",
    ]
    assert [str(values[name][0].eps) for name in RULES] == ["1", "1", "1/(L*n)", "1/(L*n)"]
    assert [str(values[name][0].init_std) for name in RULES] == [
        "1",
        "1/sqrt(n)",
        "1/sqrt(n)",
        "1/sqrt(n)",
    ]
    assert [str(values[name][1].multiplier) for name in RULES] == ["1", "1", "1/L", "1/L"]
    assert [str(derive("readout", rule=name).multiplier) for name in RULES] == [
        "1",
        "1/n",
        "1/n",
        "1/n",
    ]


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"kv_factor": "hidden"}, "lr", "1/n"),
        ({"kv_factor": "sqrt(r)"}, "lr", "sqrt(r)/n"),
        ({"kv_factor": "1/2"}, "lr", "1/(2*n)"),
        ({"kv_factor": "sqrt(r)"}, "weight_decay", "n/sqrt(r)"),
        ({"decay": "none"}, "weight_decay", "1"),
        ({"eps": "none"}, "eps", "1"),
        ({"depth": "none"}, "eps", "1/n"),
        ({"depth": "1/sqrt(L)"}, "eps", "1/(sqrt(L)*n)"),
        ({"width": "none"}, "lr", "(sqrt(r) + 1)/2"),
        ({"width": "none"}, "init_std", "1"),
        ({"width": "init"}, "lr", "(sqrt(r) + 1)/2"),
    ],
)
def test_each_choice_can_be_set_alone(change, field, expected):
    unit = Residual(KeyValue(n, r), L, output=False)
    changed = derive(unit, rule=RULES["gqa-mup"].with_(**change))
    untouched = derive(unit)
    assert same(getattr(changed, field), sympy.sympify(expected, locals={"n": n, "r": r, "L": L}))
    assert getattr(changed, field) != getattr(untouched, field)


@pytest.mark.parametrize(
    ("unit", "fan_in"),
    [
        (Dense("4*n", n), n),
        (Dense(n, "4*n", width=n), 4 * n),
        (KeyValue(n, r, inner), n),
        (Residual(Dense(n, inner, width=n), L), inner),
        (Readout(n), n),
        (Embedding(n), 1),
    ],
)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_with_width_init_the_std_follows_the_fan_in_and_nothing_else_moves(unit, fan_in, optimizer):
    scaling = derive(unit, optimizer, rule=RULES["sp"].with_(width="init"))
    assert same(scaling.init_std, 1 / sympy.sqrt(fan_in))
    assert {scaling.expressions[field] for field in FIELDS if field != "init_std"} == {1}
    shown = {step.title: step.value for step in scaling.steps}
    assert same(shown["Initial standard deviation, by the fan-in"], 1 / sympy.sqrt(fan_in))
    assert shown["Width"] == 1


def test_with_width_init_constants_stay_constants():
    assert derive(Vector(n), rule=RULES["sp"].with_(width="init")).init_std == 0


def test_a_rule_of_ones_own_is_a_value_of_the_same_type():
    mine = Rule("mine", kv_factor="((1 + sqrt(r))/2)**0.7", depth="1/sqrt(L)")
    lr = derive("kv", rule=mine).lr
    assert float(lr.subs({n: 2, r: 9})) == pytest.approx(2**0.7 / 2, rel=1e-14)


def test_kv_factor_follows_the_true_dimensions_unless_the_paper_is_asked_for():
    unit = KeyValue(n, r, inner)
    a = n / inner
    assert same(derive(unit).lr * n, (1 + sympy.sqrt(r * a)) / (1 + sympy.sqrt(a)))
    assert same(
        derive(unit, rule=RULES["gqa-mup"].with_(kv_factor="paper")).lr * n, (1 + sympy.sqrt(r)) / 2
    )
    assert same(derive(unit).lr.subs(inner, n), derive(KeyValue(n, r)).lr)


def test_the_printed_factor_needs_no_width_that_r_divides():
    """At n = 512 with 12 heads of 64, inner = 768: r = 12 does not divide n, and need not."""
    rule = RULES["gqa-mup"].with_(kv_factor="paper")
    assert same(derive(KeyValue(512, 12, inner=768), rule=rule).lr, (1 + sympy.sqrt(12)) / 1024)


@given(
    n_value=st.integers(1, 10**6),
    heads=st.integers(1, 64),
    r_value=st.integers(1, 64),
    d=st.sampled_from([64, 128]),
)
def test_numbers_put_in_before_or_after_the_derivation_agree(n_value, heads, r_value, d):
    values = {"n": n_value, "r": r_value, "inner": heads * r_value * d}
    before = derive(KeyValue(n_value, r_value, inner=values["inner"]))
    after = derive(KeyValue(n, r, inner)).expressions
    for field in FIELDS:
        number = after[field].subs({n: n_value, r: r_value, inner: values["inner"]})
        assert float(getattr(before, field)) == pytest.approx(float(number), rel=1e-12)


@pytest.mark.parametrize("optimizer", ELEMENTWISE)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("unit", BLOCK, ids=str)
def test_inside_a_branch_only_what_feels_the_gradient_changes(unit, optimizer, decay):
    """β multiplies every gradient of the branch: epsilon and SGD's rate follow it, Adam's rate does
    not.
    """
    alone = derive(unit, optimizer, decay=decay)
    inside = derive(Residual(unit, L, output=False), optimizer, decay=decay)
    degree = OPTIMIZERS[optimizer].gradient_degree
    assert inside.init_std == alone.init_std
    assert inside.multiplier == alone.multiplier
    assert same(inside.lr, alone.lr * L**degree)
    assert same(inside.eps, alone.eps / L ** OPTIMIZERS[optimizer].epsilon_degree)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "momentum", "lion"])
@pytest.mark.parametrize("decay", DECAYS)
def test_a_branch_output_is_the_effective_weight_scaled_by_beta(optimizer, decay):
    """Folding β away gives the weight that the network sees: β times the size and rate of one that
    has no branch.

    This derives the residual rule a second way: the gradient at the output of a branch does not
    know of β.
    """
    folded = derive(Residual(Dense(n, n), L), optimizer, decay=decay).fold()
    alone = derive(Dense(n, n), optimizer, decay=decay)
    assert folded.multiplier == 1
    assert same(folded.init_std, alone.init_std / L)
    assert same(folded.lr, alone.lr / L)
    assert same(folded.eps, alone.eps)


def test_depth_factor_bounds_a_stack_of_coherent_branches():
    """(1 + β)^L stays bounded for the rule's β = 1/L and not for 1/√L or 1/2 (section 3.3)."""
    growth = {
        text: [float((1 + Rule("x", depth=text).beta(d)) ** d) for d in (16, 256)]
        for text in ("1/L", "1/sqrt(L)", "1/2")
    }
    assert max(growth["1/L"]) < 2.7183
    assert growth["1/sqrt(L)"][1] > 1e4 * growth["1/sqrt(L)"][0]
    assert growth["1/2"][1] > 1e30


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("unit", [u for u in NAMED if u != "fused"])
def test_for_sgd_l2_is_lr_coupled_decay(unit, optimizer):
    """ΔW = -η(g + λW) both ways, so two derivations of the decay must agree."""
    l2, coupled = (
        derive(unit, optimizer, decay=decay).weight_decay for decay in ("l2", "lr_coupled")
    )
    assert same(l2, coupled)


def test_independent_decay_is_not_scaled():
    assert {derive(u, decay="independent").weight_decay for u in NAMED if u != "vector"} == {
        sympy.Integer(1)
    }


def test_adam_with_l2_keeps_the_hidden_decay():
    assert derive("dense", "adam", decay="l2").weight_decay == 1


def test_gains_and_biases_keep_the_base_rate_and_do_not_decay():
    scaling = derive(Residual(Vector(n), L, output=False))
    assert (scaling.init_std, scaling.lr, scaling.weight_decay) == (0, 1, 0)
    assert same(scaling.eps, 1 / (n * L))


def test_the_derivation_says_that_gains_are_not_decayed_and_what_follows():
    """It stood as a warning on every plan."""
    step = next(step for step in derive("vector").steps if step.title == "Weight decay")
    assert step.value == 0
    assert "a base tuned with decay on them" in step.reason


def test_epsilon_follows_the_embedding_width_where_the_fan_in_is_another():
    down = derive(Dense(n, "d_ff", width=n))
    assert str(down.lr) == "1/d_ff"
    assert down.eps == 1 / n


def test_adapters_learn_at_the_rates_of_lora_plus():
    """Hayou et al. 2024: η_A = Θ(1/n), η_B = Θ(1), with A random and B zero."""
    a, b = derive(Adapter(n, "a")), derive(Adapter(n, "b"))
    assert (a.lr, b.lr, b.init_std) == (1 / n, 1, 0)
    assert same(a.init_std, 1 / sympy.sqrt(n))


def test_a_low_rank_product_has_the_expected_norm_of_a_dense_matrix():
    rank = sympy.Symbol("rank", positive=True)
    down, up = derive(LowRank("rank", n)), derive(LowRank(n, "rank"))
    # E‖BAx‖² = σ_B² n_out · σ_A² rank · ‖x‖² for independent factors.
    assert same((up.init_std * down.init_std) ** 2 * n * rank, 1)


def test_an_expert_that_sees_fewer_tokens_has_a_smaller_epsilon():
    assert same(derive(Expert(n, n, active="2/8")).eps, 1 / (4 * n))
    assert derive(Router(n)).expressions == derive(Readout(n)).expressions


@pytest.mark.parametrize("unit", [LowRank(n, n), Expert(n, n), Router(n), Adapter(n, "a")], ids=str)
def test_what_is_beyond_the_paper_says_so(unit):
    scaling = derive(unit)
    assert scaling.standing == "extrapolated"
    assert unit.remark in scaling.caveats
    assert "extrapolated" in scaling.to_text()


def test_every_step_has_a_reason_and_a_source():
    for unit in NAMED:
        for step in derive(unit).steps:
            assert len(step.reason) > 10
            assert step.source
            assert step.quantity[0]
            assert step.quantity[1]


def test_the_derivation_shows_the_quantities_of_the_paper():
    """Section 3.2: ‖W0‖ = (1 + √r)/√r, ‖r̂‖ = n/√r, η ∝ (1 + √r)/n."""
    values = {step.title: step.value for step in derive("kv").steps}
    assert same(values["Initial size of the stored matrix"], (1 + sympy.sqrt(r)) / sympy.sqrt(r))
    assert same(values["Step of the stored matrix"], n / sympy.sqrt(r))
    assert same(values["Size over step of the stored matrix"], (1 + sympy.sqrt(r)) / n)


class TestFused:
    @pytest.mark.parametrize(
        ("optimizer", "power"), [("adamw", 1), ("lion", 1), ("sgd", sympy.Rational(1, 2))]
    )
    @pytest.mark.parametrize("decay", ["lr_coupled", "independent"])
    def test_rows_get_a_multiplier_and_keep_the_rate_and_decay_of_q(self, optimizer, power, decay):
        fused = derive("fused", optimizer, decay=decay)
        own = derive("kv", optimizer, decay=decay)
        rows = fused.blocks["k"]
        assert same(rows.multiplier, (own.lr / fused.lr) ** power)
        assert same(rows.lr, fused.lr)
        assert same(rows.weight_decay, fused.weight_decay)
        assert same(rows.init_std, own.init_std / rows.multiplier)

    def test_folding_the_row_multiplier_gives_the_separate_rates_back(self):
        """The reference with ε/c on those rows: c is the K/V factor."""
        rows, own = derive("fused").blocks["v"], derive("kv")
        back = rows.fold()
        assert same(back.lr, own.lr)
        assert same(back.weight_decay, own.weight_decay)
        assert same(back.init_std, own.init_std)

    @pytest.mark.parametrize("optimizer", ["muon", "adafactor", "shampoo"])
    def test_refused_where_rows_are_not_stepped_one_by_one(self, optimizer):
        with pytest.raises(NotExactError, match="Split the matrix"):
            derive("fused", optimizer)

    def test_refused_where_rows_would_need_their_own_decay(self):
        with pytest.raises(NotExactError, match="would need a different decay"):
            derive("fused", "adam", decay="l2")

    def test_inside_a_branch_the_blocks_are_residual(self):
        def block(unit):
            return Residual(unit, L, output=False)

        fused = derive(Fused(block(Dense(n, n)), block(KeyValue(n, r)), block(KeyValue(n, r))))
        assert same(fused.eps, 1 / (n * L))
        with pytest.raises(OptionError, match="Put Residual inside"):
            Residual(NAMED["fused"], L)


class TestBadInput:
    @pytest.mark.parametrize("bad", [0, -1, 2.5, float("nan"), float("inf"), True, None, [8]])
    def test_a_width_that_cannot_be_is_named(self, bad):
        with pytest.raises(DimensionError, match=r"n=.* is not a positive whole number"):
            derive(Embedding(bad))

    @pytest.mark.parametrize("depth", [0, -3])
    def test_a_depth_that_cannot_be_is_named(self, depth):
        with pytest.raises(DimensionError, match=f"L={depth}"):
            Residual(Dense(n, n), depth)

    def test_repetitions_must_divide(self):
        with pytest.raises(
            DimensionError, match=r"r=5 does not divide heads × head_dim = 768\. Choose a divisor"
        ):
            KeyValue(768, 5)

    @pytest.mark.parametrize(
        ("call", "hint"),
        [
            (lambda: derive("kvv"), "Did you mean 'kv'"),
            (lambda: unit_named("unembeding"), "Did you mean 'unembedding'"),
            (lambda: derive("kv", "adamm"), "Did you mean 'adam"),
            (lambda: derive("kv", rule="gqamup"), "Did you mean 'gqa-mup'"),
            (lambda: derive("kv", decay="coupled"), "Did you mean 'lr_coupled'"),
            (lambda: Rule("x", width="yes"), "unknown setting for width 'yes'"),
            (lambda: Adapter(n, "c"), "unknown adapter side 'c'"),
        ],
    )
    def test_an_unknown_name_is_told_the_nearest_known_one(self, call, hint):
        with pytest.raises(UnknownNameError, match=hint):
            call()

    @pytest.mark.parametrize(
        "change",
        [
            {"kv_factor": "r - 2"},
            {"kv_factor": "__import__('os')"},
            {"kv_factor": "L"},
            {"depth": "1/n"},
            {"depth": "-L"},
        ],
    )
    def test_a_rule_formula_must_be_understood_and_positive(self, change):
        with pytest.raises(OptionError, match=next(iter(change))):
            RULES["gqa-mup"].with_(**change)

    def test_matrix_optimizers_refuse_what_is_not_a_hidden_matrix(self):
        with pytest.raises(NotDerivedError, match="is trained by AdamW"):
            derive(Vector(n), "muon")

    def test_what_is_not_a_unit_is_refused(self):
        with pytest.raises(OptionError, match="is not a unit"):
            derive(3)

    @pytest.mark.parametrize("share", [0, 2, "3/2"])
    def test_a_share_of_tokens_lies_between_0_and_1(self, share):
        with pytest.raises(OptionError, match="share of the tokens"):
            Expert(n, n, active=share)


def test_results_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        derive("kv").lr = n


@pytest.mark.parametrize("name", ["expert", "router", "low-rank-down"])
def test_a_block_does_not_hide_that_what_it_holds_is_an_extrapolation(name):
    unit = unit_named(name)
    inside = derive(Residual(unit, "L", output=False))
    assert inside.standing == derive(unit).standing == "extrapolated"
    assert unit.remark in inside.caveats


class TestWithoutWidth:
    """`--width none`: ε of the readout was 1/n, of a multiplier that such a rule does not apply."""

    RULE = RULES["gqa-mup"].with_(width="none")

    @pytest.mark.parametrize("rule", ["gqa-mup", RULE], ids=["scaled", "width none"])
    def test_epsilon_shrinks_with_the_gradient_and_no_faster(self, rule):
        """Against the gradients of a small network at five widths, drawn as the rule says."""
        found, powers = slopes(rule), {}
        for unit in found:
            eps = derive(unit, rule=rule).eps
            powers[unit] = float(sympy.log(eps.subs(n, 4) / eps.subs(n, 1), 4))
        if rule == "gqa-mup":
            assert powers == dict.fromkeys(powers, -1)
            assert found == pytest.approx(powers, abs=0.05)
            return
        assert powers == dict.fromkeys(powers, 0)
        # Every one of these was -1. A hidden matrix' gradient goes as 1/√n, since the norm behind
        # it divides by √n.
        assert found == pytest.approx(
            {"embedding": 0, "dense": -0.5, "gain": 0, "readout": 0}, abs=0.05
        )

    @pytest.mark.parametrize("optimizer", ELEMENTWISE)
    @pytest.mark.parametrize("decay", DECAYS)
    @pytest.mark.parametrize(
        "unit", [*BLOCK, Embedding(n), Readout(n), Expert(n, n, active="2/8")], ids=str
    )
    def test_nothing_depends_on_width(self, unit, optimizer, decay):
        values = derive(
            Residual(unit, L, output=False), optimizer, rule=self.RULE, decay=decay
        ).expressions
        narrow, wide = (
            [float(value.subs({n: width, inner: width, r: 2, L: 3})) for value in values.values()]
            for width in (64, 1024)
        )
        assert wide == pytest.approx(narrow, rel=1e-14)

    @pytest.mark.parametrize("optimizer", ELEMENTWISE)
    def test_depth_still_counts(self, optimizer):
        """SGD's rate stayed at 1 in a branch whose gradient is 1/L as large."""
        alone, inside = (
            derive(unit, optimizer, rule=self.RULE)
            for unit in (Dense(n, n), Residual(Dense(n, n), L, output=False))
        )
        assert same(inside.lr, alone.lr * L ** OPTIMIZERS[optimizer].gradient_degree)
        assert same(inside.eps, alone.eps / L ** OPTIMIZERS[optimizer].epsilon_degree)

    @pytest.mark.parametrize("unit", [u for u in NAMED if u != "fused"])
    def test_for_sgd_l2_is_lr_coupled_decay(self, unit):
        units = [NAMED[unit]] if unit == "residual" else [NAMED[unit], Residual(NAMED[unit], L)]
        for one in units:
            l2, coupled = (
                derive(one, "sgd", rule=self.RULE, decay=d).weight_decay
                for d in ("l2", "lr_coupled")
            )
            assert same(l2, coupled)

    def test_an_expert_that_sees_fewer_tokens_has_a_smaller_epsilon(self):
        assert derive(Expert(n, n, active="2/8"), rule=self.RULE).eps == sympy.Rational(1, 4)


def slopes(rule) -> dict[str, float]:
    """Powers of n by which gradients shrink in embedding → norm → matrix → norm → readout, 64 to
    1024 wide.
    """
    widths = [64, 128, 256, 512, 1024]
    table = np.log(
        [np.mean([gradients(rule, width, seed) for seed in range(3)], axis=0) for width in widths]
    )
    powers = np.polyfit(np.log(widths), table, 1)[0]
    return dict(zip(("embedding", "dense", "gain", "readout"), powers, strict=True))


def gradients(rule, width: int, seed: int) -> list[float]:
    """Root mean squares, before the first step."""
    generator = torch.Generator().manual_seed(seed)
    factors = {
        unit: derive(unit, rule=rule).evaluate(base={"n": 64}, target={"n": width})
        for unit in ("embedding", "dense", "readout")
    }

    def drawn(unit, *shape):
        return (
            torch.randn(shape, generator=generator) * 0.02 * factors[unit].init_std
        ).requires_grad_()

    def normed(x):
        return x / x.square().mean(-1, keepdim=True).sqrt()

    embedding, matrix, readout = (
        drawn("embedding", 32, width),
        drawn("dense", width, width),
        drawn("readout", 32, width),
    )
    gain = torch.ones(width, requires_grad=True)
    tokens, targets = torch.randint(32, (2, 64), generator=generator)
    hidden = torch.tanh(normed(embedding[tokens]) @ matrix.T)
    logits = factors["readout"].multiplier * (normed(hidden) * gain) @ readout.T
    cross_entropy(logits, targets).backward()
    return [math.sqrt(p.grad.square().mean()) for p in (embedding, matrix, gain, readout)]


@dataclasses.dataclass(frozen=True)
class Multiplied(Dense):
    """A hidden matrix whose output the forward pass multiplies by 1/n."""

    def multiplier(self):
        return 1 / n


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(
    "optimizer", [name for name, row in OPTIMIZERS.items() if not row.not_exact]
)
def test_a_unit_with_a_multiplier_trains_as_one_without_once_it_is_folded(optimizer, decay):
    """Epsilon included: it follows the gradient of the parameter, which the multiplier shrinks."""
    folded = derive(Multiplied(n, n), optimizer, decay=decay).fold()
    plain = derive(Dense(n, n), optimizer, decay=decay)
    assert all(same(folded.expressions[name], plain.expressions[name]) for name in FIELDS)
