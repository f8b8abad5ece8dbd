"""Estimates of matrix norms that a derivation chooses between.

A dimension that does not grow with the model (a vocabulary, a single column) counts as 1.
"""

import sympy

from mupscale.theory.formulas import Expr, tidy


def spectral_target(n_out: Expr, n_in: Expr) -> Expr:
    """Operator norm that keeps features at unit RMS: √(n_out/n_in), condition 1 of Yang, Simon &
    Bernstein 2023.

    >>> spectral_target(sympy.Integer(1024), sympy.Integer(256))
    2
    """
    return sympy.sqrt(n_out / n_in)


def bai_yin(sigma: Expr, n_out: Expr, n_in: Expr) -> Expr:
    """Spectral norm of i.i.d. entries with standard deviation σ: σ(√n_in + √n_out), Bai & Yin 1993.

    >>> from mupscale.theory.formulas import n
    >>> bai_yin(1 / sympy.sqrt(n), n, n)
    2
    """
    return tidy(sigma * (sympy.sqrt(n_in) + sympy.sqrt(n_out)))


def bai_yin_thin(sigma: Expr, n_in: Expr) -> Expr:
    """Bai–Yin if the other dimension is fixed, and so negligible: σ√n_in.

    >>> from mupscale.theory.formulas import n
    >>> bai_yin_thin(1 / n, n)
    1/sqrt(n)
    """
    return sigma * sympy.sqrt(n_in)


def rms_to_rms(norm: Expr, n_out: Expr, n_in: Expr) -> Expr:
    """The same norm with RMS in place of length on both sides, max RMS(Wx)/RMS(x): × √(n_in/n_out).

    Repetition does not change it: √r times the norm, r times the outputs.

    >>> from mupscale.theory.formulas import n, r
    >>> rms_to_rms(repeated(sympy.Integer(1), r), n, n) / rms_to_rms(sympy.Integer(1), n / r, n)
    1
    """
    return tidy(norm * sympy.sqrt(n_in / n_out))


def coherent(n_out: Expr, n_in: Expr) -> Expr:
    """Spectral norm of a matrix of unit entries whose signs have rank one: √(n_out·n_in), exactly.

    >>> coherent(sympy.Integer(4), sympy.Integer(9))
    6
    """
    return sympy.sqrt(n_out * n_in)


def expected(sigma: Expr, n_out: Expr) -> Expr:
    """Expected operator norm of i.i.d. entries over Gaussian inputs: σ√n_out, whatever the rank.

    >>> from mupscale.theory.formulas import n
    >>> expected(1 / sympy.sqrt(n), n)
    1
    """
    return tidy(sigma * sympy.sqrt(n_out))


def repeated(norm: Expr, repetitions: Expr) -> Expr:
    """Norm (of either kind) of a matrix stacked on itself: √r times that of one copy. Lemma 1.

    >>> repeated(sympy.Integer(3), sympy.Integer(4))
    6
    """
    return sympy.sqrt(repetitions) * norm
