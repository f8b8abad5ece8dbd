"""Rules as values: what they write, and the factor on keys or values alone."""

import pytest
import sympy

from mupscale.errors import OptionError, UnknownNameError
from mupscale.theory import FIELDS, RULES, KeyValue, Residual, Rule, derive, parameterization
from mupscale.theory.formulas import L, n, r

GQA = RULES["gqa-mup"]
KEYS, VALUES = (GQA.with_(kv_part=part) for part in ("keys", "values"))
HIDDEN = GQA.with_(kv_factor="hidden")


def test_a_rule_without_the_choice_writes_what_it_always_wrote():
    """Records and fingerprints of older studies hold this."""
    assert GQA.to_dict() == {
        "name": "gqa-mup",
        "width": "scaled",
        "kv_factor": "derived",
        "decay": "scaled",
        "depth": "1/L",
        "eps": "scaled",
    }
    assert all("kv_part" not in rule.to_dict() for rule in RULES.values())
    assert GQA.with_(kv_part="both") is GQA


@pytest.mark.parametrize("rule", [GQA, KEYS, VALUES, Rule("mine", kv_factor="rms", evidence="x")])
def test_a_rule_comes_back_as_it_was_written(rule):
    assert Rule.from_dict(rule.to_dict()) == rule


def test_parts_are_choices():
    assert KEYS.choices != VALUES.choices != GQA.choices
    assert KEYS.name == "gqa-mup (kv_part keys)"
    assert Rule("mine", kv_factor="r", evidence="measured").with_(kv_part="keys").evidence is None


@pytest.mark.parametrize("bad", ["key", "neither", "", None])
def test_an_unknown_part_is_named(bad):
    with pytest.raises(UnknownNameError, match=r"kv_part.*Known: both, keys, values"):
        Rule("mine", kv_part=bad)


def test_an_unknown_part_of_a_unit_is_named():
    with pytest.raises(UnknownNameError, match=r"part 'keys'.*key, value"):
        KeyValue(n, r, part="keys")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("decay", ["lr_coupled", "independent", "l2"])
@pytest.mark.parametrize(("rule", "with_factor", "without"), [(KEYS, "k", "v"), (VALUES, "v", "k")])
def test_the_other_part_gets_the_hidden_values(rule, with_factor, without, optimizer, decay):
    def values(unit, chosen):
        return derive(unit, optimizer, rule=chosen, decay=decay).expressions

    assert values(with_factor, rule) == values("kv", GQA)
    assert values(without, rule) == values("kv", HIDDEN)
    assert values("dense", rule) == values("dense", GQA)
    assert values("kv", GQA)["lr"] != values("kv", HIDDEN)["lr"]


def test_both_is_what_keys_and_values_had_before():
    assert derive("k").expressions == derive("v").expressions == derive("kv").expressions


def test_where_it_is_not_known_which_one_is_meant_the_unit_is_named():
    with pytest.raises(OptionError, match=r"KeyValue\(n, r\) does not say which.*'k' or 'v'"):
        derive("kv", rule=KEYS)
    block = Residual(KeyValue(n, r, part="key"), L, output=False)
    assert derive(block, rule=KEYS).lr == derive("kv").lr


def test_rows_of_a_fused_matrix_differ():
    blocks = derive("fused", rule=KEYS).blocks
    assert sympy.simplify(blocks["k"].multiplier - (1 + sympy.sqrt(r)) / 2) == 0
    assert blocks["v"].multiplier == blocks["q"].multiplier == 1
    assert {str(blocks[name].lr) for name in "qkv"} == {"1/n"}
    first, second = derive("fused", rule=KEYS).assumptions
    assert first.startswith("k: the factor (1 + √r)/2 on the hidden rate (on keys only) assumes")
    assert second == "v: the rule's factor is on keys only; values keep the hidden rate and decay"


@pytest.mark.parametrize("depth", ["none", "1/L"])
def test_the_table_has_a_column_for_each_part(depth):
    whole, apart = (parameterization(rule=rule, depth=depth).columns for rule in (GQA, VALUES))
    assert list(whole).index("K, V") == list(apart).index("K") == list(apart).index("V") - 1
    assert {*apart} - {"K", "V"} == {*whole} - {"K, V"}
    for field in FIELDS:
        assert getattr(apart["V"], field) == getattr(whole["K, V"], field)
    assert apart["K"].lr == 1 / n
