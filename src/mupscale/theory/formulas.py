"""Symbols, a parser for formulas that executes nothing, and printers."""

import ast
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias, cast

import sympy
from sympy.printing.str import StrPrinter

from mupscale.errors import DimensionError, OptionError, UnknownNameError

Expr: TypeAlias = Any
"""A sympy expression. sympy has no annotations, so a type checker cannot say more."""

Dimension: TypeAlias = Annotated[Any, "dimension"]
"""A width, depth or count: a positive integer, a symbol's name, or an expression in symbols."""

n, r, L, inner = sympy.symbols("n r L inner", positive=True)
SYMBOLS = {"n": n, "r": r, "L": L, "inner": inner}


def symbol(name: str) -> Expr:
    """The positive symbol with this name."""
    return SYMBOLS.get(name) or sympy.Symbol(name, positive=True)


def dimension(name: str, value: Dimension) -> Expr:
    """A dimension as an expression; raises an error that names it if it is invalid.

    >>> dimension("n_out", "4*n")
    4*n
    >>> dimension("n", 0)
    Traceback (most recent call last):
    mupscale.errors.DimensionError: n=0 is not a positive whole number. Give 1 or more, or a symbol.
    """
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, sympy.Expr) and value.free_symbols:
        return value
    if isinstance(value, bool) or not _is_whole(value) or value < 1:
        raise DimensionError(
            f"{name}={value} is not a positive whole number. Give 1 or more, or a symbol."
        )
    return sympy.Integer(int(value))


def _is_whole(value: object) -> bool:
    try:
        return math.isfinite(cast(float, value)) and int(cast(float, value)) == value
    except (TypeError, ValueError):
        return False


_OPERATORS: Mapping[type[ast.AST], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}


def parse(text: str, names: Iterable[str] | None = None) -> Expr:
    """Parse a formula of numbers, symbols, `+ - * / **` and `sqrt`, without executing anything.

    >>> parse("(1 + sqrt(r)) / (2*n)")
    (sqrt(r) + 1)/(2*n)
    >>> parse("sqrt(q)", names=["n", "r"])
    Traceback (most recent call last):
    mupscale.errors.UnknownNameError: unknown symbol 'q'. Known: n, r.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise OptionError(
            f"{text!r} is not a formula. Write it like '(1 + sqrt(r)) / 2'."
        ) from error
    return _build(tree, text, None if names is None else list(names))


def _build(node: ast.AST, text: str, names: list[str] | None) -> Expr:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return sympy.nsimplify(value, rational=True)
        case ast.Name(id=name):
            if names is not None and name not in names:
                raise UnknownNameError("symbol", name, names)
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_build(operand, text, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_build(left, text, names), _build(right, text, names))
        case ast.Call(func=ast.Name(id="sqrt"), args=[argument], keywords=[]):
            return sympy.sqrt(_build(argument, text, names))
        case _:
            raise OptionError(
                f"{ast.unparse(node)!r} in {text!r} is not supported. Use numbers, symbols, "
                "+ - * / ** and sqrt."
            )


def tidy(expression: Expr) -> Expr:
    """The expression as one fraction in lowest terms, with common factors taken out.

    >>> tidy((1 + 1 / sympy.sqrt(r)) * sympy.sqrt(r) / (2 * n)), tidy(2 / (1 + sympy.sqrt(r)))
    ((sqrt(r) + 1)/(2*n), 2/(sqrt(r) + 1))
    """
    # In the square roots of the symbols everything here is a rational function, which sympy brings
    # to lowest terms.
    roots = {s: sympy.Symbol(f"root_{s}", positive=True) for s in expression.free_symbols}
    rational = sympy.factor(expression.subs({s: root**2 for s, root in roots.items()}))
    return rational.subs({root: sympy.sqrt(s) for s, root in roots.items()})


def larger(a: Expr, b: Expr) -> Expr:
    """max(a, b), decided where r ≥ 1 and L ≥ 1 decide it.

    >>> larger(n / r, n), larger(inner, n)
    (n, Max(inner, n))
    """
    excess = sympy.Symbol("excess", nonnegative=True)
    difference = sympy.factor((a - b).subs({r: 1 + excess}))
    if difference.is_nonnegative:
        return a
    return b if difference.is_nonpositive else sympy.Max(a, b)


class _Inline(StrPrinter):
    """One line, with √ and juxtaposition: (1 + √r)/(2n)."""

    def _print_Add(self, expr: Expr, order: object = None) -> str:
        terms = sorted(expr.args, key=lambda term: (not term.is_number, str(term)))
        return " + ".join(self.parenthesize(term, 20) for term in terms).replace("+ -", "- ")

    def _print_Pow(self, expr: Expr, rational: bool = False) -> str:
        base, exponent = expr.as_base_exp()
        if exponent.is_number and exponent.is_negative:
            return f"1/{self._factor(base**-exponent)}"
        if exponent == sympy.Rational(1, 2):
            return f"√{self._factor(base)}"
        return f"{self._factor(base)}^{self._factor(exponent)}"

    def _print_Mul(self, expr: Expr) -> str:
        numerator, denominator = sympy.fraction(expr)
        if denominator == 1:
            return self._juxtapose(numerator)
        return f"{self._group(numerator, product_is_one=True)}/{self._group(denominator)}"

    def _juxtapose(self, expr: Expr) -> str:
        parts = [self._factor(part) for part in sympy.Mul.make_args(expr) if part != 1]
        text = "".join(
            part if not before or part[0] in "(√" or before.isdigit() else "·" + part
            for before, part in zip(["", *parts], parts, strict=False)
        )
        return text or "1"

    def _group(self, expr: Expr, product_is_one: bool = False) -> str:
        text = self._print(expr) if not expr.is_Mul else self._juxtapose(expr)
        single = expr.is_Atom or (expr.is_Pow and not expr.exp.is_negative)
        return text if single or (product_is_one and expr.is_Mul) else f"({text})"

    def _factor(self, expr: Expr) -> str:
        text = self._print(expr)
        return (
            text
            if (expr.is_Atom and not expr.is_Rational) or expr.is_Integer
            else _wrapped(expr, text)
        )


def _wrapped(expr: Expr, text: str) -> str:
    root = expr.is_Pow and expr.exp.is_number and expr.exp.is_positive
    return text if root or expr.is_Function else f"({text})"


def inline(expression: Expr) -> str:
    """One line for a terminal.

    >>> inline((1 + sympy.sqrt(r)) / (2 * n)), inline(1 / sympy.sqrt(n))
    ('(1 + √r)/(2n)', '1/√n')
    """
    return _Inline().doprint(sympy.together(expression))


def latex(expression: Expr) -> str:
    r"""LaTeX for a paper.

    >>> latex(1 / sympy.sqrt(n))
    '\\frac{1}{\\sqrt{n}}'
    """
    return str(sympy.latex(sympy.together(expression)))
