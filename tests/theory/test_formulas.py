"""Reading and writing formulas: nothing is executed, nothing changes value."""

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from mupscale.errors import OptionError
from mupscale.theory import FIELDS, OPTIMIZERS, derive
from mupscale.theory.formulas import L, inline, inner, larger, n, parse, r, tidy
from mupscale.theory.units import NAMED

POINT = {n: 7, r: 3, L: 5, inner: 11}
LEAVES = st.sampled_from(["n", "r", "L", "inner", "1", "2", "0.5"])
FORMULAS = st.recursive(
    LEAVES,
    lambda inside: st.one_of(
        st.builds("({} {} {})".format, inside, st.sampled_from(["+", "*", "/"]), inside),
        st.builds("sqrt({})".format, inside),
        st.builds("({})**{}".format, inside, st.sampled_from(["2", "-1", "0.5"])),
    ),
    max_leaves=6,
)


def value(expression) -> float:
    return float(sympy.sympify(expression).subs(POINT))


@given(FORMULAS)
def test_parsing_agrees_with_python_arithmetic(text):
    names = {str(symbol): number for symbol, number in POINT.items()} | {"sqrt": lambda x: x**0.5}
    assert value(parse(text)) == pytest.approx(eval(text, {"__builtins__": {}}, names), rel=1e-12)


@given(FORMULAS)
def test_tidying_does_not_change_a_value(text):
    expression = parse(text)
    assert value(tidy(expression)) == pytest.approx(value(expression), rel=1e-10)


@given(FORMULAS)
def test_what_is_shown_means_what_it_says(text):
    """Reading the terminal's notation back, with √ and juxtaposition undone, gives the same
    number.
    """
    import re

    expression = tidy(parse(text))
    shown = inline(expression).replace("^", "**").replace("·", "*")
    shown = re.sub(r"√(\w+)", r"sqrt(\1)", shown).replace("√(", "sqrt(")
    shown = re.sub(r"(?<=[\w)])(?=(?:sqrt)?\()(?<!sqrt)(?<!Max)", "*", shown)
    shown = re.sub(r"(\d)(?=[a-zA-Z])", r"\1*", shown)
    shown = re.sub(r"(?<=\))(?=[\w])", "*", shown)
    names = {str(symbol): number for symbol, number in POINT.items()} | {"sqrt": lambda x: x**0.5}
    assert eval(shown, {"__builtins__": {}}, names) == pytest.approx(
        value(expression), rel=1e-10
    ), inline(expression)


@pytest.mark.parametrize("unit", NAMED)
def test_json_expressions_are_read_by_sympy(unit):
    for optimizer in OPTIMIZERS:
        try:
            scaling = derive(unit, optimizer)
        except Exception:
            continue
        for name in FIELDS:
            known = {str(s): s for s in getattr(scaling, name).free_symbols}
            assert (
                sympy.simplify(
                    sympy.sympify(scaling.to_dict()[name], locals=known) - getattr(scaling, name)
                )
                == 0
            )


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('x')",
        "n.real",
        "lambda: 1",
        "n if r else L",
        "[1]",
        "'n'",
        "f(n)",
        "n @ r",
        "",
        "1 +",
    ],
)
def test_anything_but_arithmetic_is_refused(text):
    with pytest.raises(OptionError):
        parse(text)


def test_the_larger_is_decided_by_what_r_can_be():
    assert larger(n / r, n) == n
    assert larger(n, n / r) == n
    assert larger(inner, n) == sympy.Max(inner, n)
    between = sympy.Rational(3, 2)  # r may be 1 or 2, so neither is always the larger
    assert larger(r, between) == sympy.Max(r, between)
