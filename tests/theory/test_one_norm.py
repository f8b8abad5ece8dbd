"""One norm for initial matrix and update, kv_factor = "rms", against numpy's norms of matrices that
are drawn, repeated and stepped here.
"""

import dataclasses
import json

import numpy as np
import pytest
import sympy

from mupscale.theory import (
    OPTIMIZERS,
    RULES,
    Dense,
    KeyValue,
    Residual,
    compare_optimizers,
    derive,
    estimates,
    parameterization,
)
from mupscale.theory.formulas import L, inner, n, r, tidy

RMS, HIDDEN, PAPER = (RULES["gqa-mup"].with_(kv_factor=f) for f in ("rms", "hidden", "paper"))
BY_ROWS = [name for name, row in OPTIMIZERS.items() if row.step is OPTIMIZERS["adamw"].step]
"""Every entry of a step has the same size."""
UNITS = [KeyValue(n, r), KeyValue(n, r, inner), Residual(KeyValue(n, r), L, output=False)]
SIZES = [(256, 1), (256, 4), (512, 2), (512, 8)]


def same(a, b) -> bool:
    return sympy.simplify(a - b) == 0


def factor(optimizer="adamw", rule=RMS, unit=UNITS[0]):
    """The rate of keys and values over that of the dense matrix that they stand in for."""
    return tidy(derive(unit, optimizer, rule=rule).lr / derive(unit.reference(), optimizer).lr)


# What is derived


@pytest.mark.parametrize("optimizer", [*BY_ROWS, "adafactor"])
@pytest.mark.parametrize("decay", ["lr_coupled", "independent"])
@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_with_steps_of_equal_entries_it_is_ordinary_mup(unit, optimizer, decay):
    """In every column, for any heads × head_dim."""
    one_norm, hidden = (
        derive(unit, optimizer, rule=rule, decay=decay).expressions for rule in (RMS, HIDDEN)
    )
    assert one_norm == hidden


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("heads", [n, inner])
def test_a_stored_matrix_is_treated_as_any_dense_matrix_of_its_shape(optimizer, heads):
    """The second derivation: equation 1 on the stored shape, without a word about repetition."""
    stored = derive(Dense(heads / r, n), optimizer)
    one_norm = derive(KeyValue(n, r, heads), optimizer, rule=RMS)
    assert same(one_norm.init_std, stored.init_std)
    if OPTIMIZERS[optimizer].gradient_degree == 0:  # a shared head's gradient is a sum
        assert same(one_norm.lr.subs(inner, n), stored.lr.subs(inner, n))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_papers_factor_is_how_far_its_two_norms_disagree(optimizer):
    """Spectral over expected norm of the stored matrix, over the same of the dense matrix."""
    two, one = factor(optimizer, RULES["gqa-mup"]), factor(optimizer)
    shapes = [(n / r, n), (n, n)]
    apart, dense = (estimates.bai_yin(1, *s) / estimates.expected(1, s[0]) for s in shapes)
    assert same(two / one, apart / dense)
    assert same(apart / dense, (1 + sympy.sqrt(r)) / 2)


@pytest.mark.parametrize("width", ["scaled", "init", "none"])
def test_the_factor_does_not_depend_on_the_other_choices(width):
    rule = RMS.with_(width=width)
    assert derive("kv", rule=rule).lr == derive("dense", rule=rule).lr


def test_under_l2_the_decay_follows_the_gradient_of_a_shared_head():
    """ΔW = -η(g + λW) both ways under SGD. Adam's is extrapolated, as with two norms."""
    l2, coupled = (derive("kv", "sgd", rule=RMS, decay=d) for d in ("l2", "lr_coupled"))
    assert same(l2.weight_decay, coupled.weight_decay)
    adam = derive("kv", "adam", rule=RMS, decay="l2")
    assert same(adam.weight_decay, sympy.sqrt(r))
    assert adam.standing == "derived, one extrapolated step"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_its_standing_is_that_of_the_paper_s_derivation(optimizer):
    assert derive("kv", optimizer, rule=RMS).standing == derive("kv", optimizer).standing


def test_with_noise_for_updates_the_two_norms_give_1_and_one_norm_less():
    """Incoherent updates alone also lead to 1. Together with one norm they do not."""
    noisy = dataclasses.replace(
        OPTIMIZERS["adamw"], step=lambda s: estimates.bai_yin(sympy.Integer(1), s.n_out, s.n_in)
    )
    assert factor(noisy, RULES["gqa-mup"]) == 1
    assert same(factor(noisy), 2 / (1 + sympy.sqrt(r)))
    assert same(derive("dense", noisy).lr, 1 / (2 * sympy.sqrt(n)))  # not ordinary μP in width


def test_its_steps_show_both_norms_and_the_repetition():
    values = {step.title: step.value for step in derive("kv", rule=RMS).steps}
    assert same(values["Initial standard deviation, from RMS to RMS"], 1 / sympy.sqrt(n))
    assert values["Repetition, from RMS to RMS"] == 1
    assert same(values["Size of the update of the stored matrix"], 1 / sympy.sqrt(r))
    assert same(values["Step of the stored matrix"], n / sympy.sqrt(r))
    assert values["Learning rate of the repeated matrix"] == 1 / n
    assert "Initial size of the stored matrix" not in values
    assert all(step.reason and step.source for step in derive("kv", rule=RMS).steps)


def test_a_repetition_that_lengthens_otherwise_shows_in_its_step(monkeypatch):
    monkeypatch.setattr(estimates, "repeated", lambda norm, times: times * norm)
    values = {step.title: step.value for step in derive("kv", rule=RMS).steps}
    assert same(values["Repetition, from RMS to RMS"], sympy.sqrt(r))


def test_another_condition_gives_another_factor(monkeypatch):
    monkeypatch.setattr(estimates, "spectral_target", lambda n_out, n_in: n_out / n_in)
    assert same(factor(), 1 / sympy.sqrt(r))


# Against numpy


def drawn(width: int, repetitions: int):
    """A stored matrix drawn as the rule says, a coherent step of Adam, and noise of its shape."""
    generator = np.random.default_rng(width + repetitions)
    rows = width // repetitions
    scaling = derive(KeyValue(width, repetitions), rule=RMS)
    start = generator.standard_normal((rows, width)) * float(scaling.init_std)
    step = np.outer(*(generator.choice([-1.0, 1.0], size) for size in (rows, width)))
    return start, step, generator.standard_normal((rows, width))


def rms_to_rms(matrix) -> float:
    """The largest RMS(Wx)/RMS(x), by an exact SVD."""
    n_out, n_in = matrix.shape
    return np.linalg.norm(matrix, 2) * np.sqrt(n_in / n_out)


def typical_gain(matrix) -> float:
    """The mean of RMS(Wx)/RMS(x) over Gaussian inputs."""
    inputs = np.random.default_rng(0).standard_normal((matrix.shape[1], 200))
    outputs, given = (np.sqrt(np.square(x).mean(0)) for x in (matrix @ inputs, inputs))
    return float((outputs / given).mean())


@pytest.mark.parametrize(("width", "times"), SIZES)
def test_start_and_update_have_one_size_at_every_width_and_repetition(width, times):
    start, step, _ = drawn(width, times)
    update = step * float(derive(KeyValue(width, times), rule=RMS).lr)
    for matrix in (start, np.repeat(start, times, axis=0)):
        assert typical_gain(matrix) == pytest.approx(1, abs=0.03)
    for matrix in (update, np.repeat(update, times, axis=0)):
        assert rms_to_rms(matrix) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(("width", "times"), SIZES)
def test_the_papers_factor_keeps_another_ratio(width, times):
    """It holds ‖ΔW‖/‖W‖ in the spectral norm, where one norm lets it fall as 2/(1 + √r)."""
    start, step, _ = drawn(width, times)
    fall = 2 / (1 + np.sqrt(times))
    ratios = [
        np.linalg.norm(step * float(derive(KeyValue(width, times), rule=rule).lr), 2)
        / np.linalg.norm(start, 2)
        for rule in (RULES["gqa-mup"], RMS)
    ]
    assert ratios == pytest.approx([0.5, 0.5 * fall], rel=0.04)
    by_paper = step * float(derive(KeyValue(width, times)).lr)
    assert rms_to_rms(by_paper) == pytest.approx(1 / fall, rel=1e-9)


@pytest.mark.parametrize(("width", "times"), SIZES)
def test_norms_of_the_stored_matrix_and_of_noise(width, times):
    """Spectral over expected norm is 1 + √r, and noise has the start's shape at every r."""
    start, _, noise = drawn(width, times)
    assert rms_to_rms(start) / typical_gain(start) == pytest.approx(1 + np.sqrt(times), rel=0.05)
    assert np.linalg.norm(np.repeat(start, times, axis=0), 2) == pytest.approx(
        np.sqrt(times) * np.linalg.norm(start, 2)
    )
    norms = [np.linalg.norm(matrix, 2) for matrix in (noise, start)]
    assert norms[0] / norms[1] == pytest.approx(np.sqrt(width), rel=0.05)


# What is said beside a factor


@pytest.mark.parametrize(
    ("rule", "optimizer", "words"),
    [
        (RULES["gqa-mup"], "adamw", "the factor (1 + √r)/2 on the hidden rate assumes coherent"),
        (RULES["gqa-mup"], "adamw", "one norm for both gives 1"),
        (RULES["gqa-mup"], "muon", "assumes updates as large as the initial matrix"),
        (RULES["gqa-mup"], "muon", "one norm for both gives 1/√r"),
        (RULES["gqa-mup"], "sgd", "assumes independent gradients of the query heads"),
        (PAPER, "adamw", "assumes heads × head_dim = n, and coherent updates"),
        (RMS, "adamw", "the factor 1 on the hidden rate assumes coherent updates"),
        (RMS, "adamw", "one norm, RMS to RMS, which sizes both; the paper's two norms give (1 +"),
        (HIDDEN, "adamw", "is set by the rule, not derived"),
        (RULES["gqa-mup"].with_(kv_factor="sqrt(r)"), "adamw", "the factor √r on the hidden rate"),
    ],
)
def test_the_assumption_is_said_wherever_a_factor_is_printed(rule, optimizer, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    scaling = derive("kv", optimizer, rule=rule)
    table = parameterization(optimizer, rule=rule)
    shown = [
        *(scaling.to_text(), scaling.to_markdown(), *json.loads(scaling.to_json())["assumptions"]),
        *(table.to_text(), table.to_markdown(), *table.to_dict()["notes"][-1:]),
        *derive("fused", "adamw", rule=rule).assumptions[: optimizer == "adamw"],
    ]
    assert len(shown) >= 6
    assert all(words in text for text in shown)
    for latex in (scaling.to_latex(), table.to_latex()):
        assert "Note:" in latex
        assert latex.isascii()


@pytest.mark.parametrize("unit", ["dense", "embedding", "readout", "vector"])
def test_a_matrix_that_is_not_repeated_needs_no_assumption(unit):
    assert derive(unit).assumptions == ()


def test_the_comparison_of_optimizers_has_both_factors():
    rows = {row.optimizer.name: row.to_dict() for row in compare_optimizers()}
    assert set(rows) == set(OPTIMIZERS)
    for name, row in rows.items():
        assert same(sympy.sympify(row["one_norm"]), sympy.sympify(str(factor(name))))
    assert {name for name, row in rows.items() if row["one_norm"] == "1"} == {
        *BY_ROWS,
        "adafactor",
        "muon-spectral",
    }


@pytest.mark.parametrize("rule", [RMS, HIDDEN, PAPER, RULES["gqa-mup"].with_(kv_part="keys")])
@pytest.mark.parametrize("columns", [80, 160])
def test_notes_fit_and_break_no_formula(rule, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = parameterization(rule=rule).to_text() + "\n" + derive("k", rule=rule).to_text()
    assert max(map(len, text.splitlines())) <= columns
    assert not any(line.rstrip().endswith(("(1", "(1 +")) for line in text.splitlines())
