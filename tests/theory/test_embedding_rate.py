"""The rate of the token embedding over width: constant for a fixed vocabulary, 1/√n for a large
one, or as the rule says.
"""

import pytest
import sympy

import mupscale as mu
from mupscale.errors import NotDerivedError, OptionError
from mupscale.models import GPT, GPTConfig
from mupscale.theory import RULES, Embedding, Rule, Table, derive

GQA = RULES["gqa-mup"]
SQRT = GQA.with_(embedding="sqrt")
n = sympy.Symbol("n", positive=True, integer=True)


def ratio(scaling, field: str, width: int = 256, base: int = 64) -> float:
    return getattr(scaling.evaluate(base={"n": base}, target={"n": width}), field)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "lion", "signsgd"])
def test_with_a_large_vocabulary_it_falls_as_the_root_of_the_width(optimizer: str):
    table, large = (derive("embedding", optimizer, rule=rule) for rule in (GQA, SQRT))
    assert (ratio(table, "lr"), ratio(large, "lr")) == (1.0, pytest.approx(0.5))
    assert ratio(large, "init_std") == ratio(table, "init_std") == 1.0
    hidden = derive("dense", optimizer, rule=SQRT)
    assert ratio(large, "lr") / ratio(hidden, "lr") == pytest.approx(2)  # √(256/64)


def test_decay_keeps_its_balance_with_the_rate():
    assert ratio(derive("embedding", "adamw", rule=SQRT), "weight_decay") == pytest.approx(2)
    independent = derive("embedding", "adamw", rule=SQRT, decay="independent")
    assert ratio(independent, "weight_decay") == 1.0


def test_the_limits_of_the_spectral_norm_are_the_two_rules():
    """(√n + √V)/√(nV) is 1/√n for V ≫ n and constant for V ≪ n."""
    tokens = sympy.Symbol("V", positive=True)
    exact = (sympy.sqrt(n) + sympy.sqrt(tokens)) / sympy.sqrt(n * tokens)
    assert sympy.limit(exact, tokens, sympy.oo) == 1 / sympy.sqrt(n)
    few = float(exact.subs({n: 10**10, tokens: 100}) / exact.subs({n: 10**8, tokens: 100}))
    assert few == pytest.approx(1, abs=2e-3)
    size, step = (
        next(s.value for s in derive("embedding", rule=SQRT).steps if s.title == title)
        for title in ("Initial size of the table", "Step of the table")
    )
    numbers = {"n": 96, "V": 5000}
    ours = float((size / step).subs({s: numbers[str(s)] for s in (size / step).free_symbols}))
    assert ours == pytest.approx(float(exact.subs({n: 96, tokens: 5000})))


def test_it_is_an_extrapolation_that_says_so():
    found = derive("embedding", rule=SQRT)
    assert "extrapolated" in found.standing
    assert any("coherent" in step.reason for step in found.steps)
    assert derive("embedding", rule=GQA).standing == "derived"


def test_other_tables_and_weights_are_as_before():
    assert Table("n").vocabulary is False
    assert Embedding("n").vocabulary
    for unit in ("position", "dense", "kv", "readout", "vector"):
        own, other = derive(unit, rule=SQRT), derive(unit, rule=GQA)
        assert own.expressions == other.expressions


def test_a_formula_sets_it():
    quarter = GQA.with_(embedding="n**(-1/4)")
    assert ratio(derive("embedding", rule=quarter), "lr") == pytest.approx(256**-0.25 / 64**-0.25)


def test_a_rule_that_does_not_scale_with_width_ignores_it():
    assert ratio(derive("embedding", rule=RULES["sp"].with_(embedding="sqrt")), "lr") == 1


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_it_is_refused_where_steps_grow_with_the_gradient(optimizer: str):
    with pytest.raises(NotDerivedError, match="embedding='sqrt' is derived for steps that do not"):
        derive("embedding", optimizer, rule=SQRT)


@pytest.mark.parametrize("wrong", ["sqr", "m", "-n", "n - 100", "0"])
def test_a_wrong_choice_is_one_clear_line(wrong: str):
    with pytest.raises(OptionError, match=r"embedding=.*table, sqrt"):
        Rule("mine", embedding=wrong)


def test_rules_that_have_not_changed_are_stored_as_before():
    assert all("embedding" not in rule.to_dict() for rule in RULES.values())
    assert SQRT.to_dict()["embedding"] == "sqrt"
    assert Rule.from_dict(SQRT.to_dict()).embedding == "sqrt"
    assert SQRT.name == "gqa-mup (embedding sqrt)"


def test_a_plan_gives_tokens_the_rate_and_positions_the_tables():
    base = GPTConfig(width=16, depth=1, n_heads=4, vocabulary=32, context=8)
    plan = mu.plan(GPT(base.resized(width=64)), base=GPT(base), rule=SQRT)
    rates = {p.role: p.lr for p in plan.parameters.values()}
    assert rates["embedding"] == pytest.approx(0.5)
    assert rates["position"] == 1.0
    assert mu.Plan.from_json(plan.to_json()) == plan
