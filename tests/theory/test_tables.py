"""The paper's table, derived, cell by cell; and proof that each of these comparisons can fail."""

import dataclasses
import json

import pytest
import sympy

from mupscale.cli import main
from mupscale.theory import (
    OPTIMIZERS,
    Scaling,
    compare_optimizers,
    derivation,
    estimates,
    parameterization,
    tables,
    units,
)
from mupscale.theory.optimizers import Optimizer

# Table 1 of arXiv 2605.15290, with its first row read as a standard deviation, and the row for
# epsilon of appendix A.1.
PRINTED = {
    "init_std": ["1", "1", "1/sqrt(n)", "1/sqrt(n)", "1/sqrt(n)"],
    "multiplier": ["1", "1/n", "1", "1", "1"],
    "lr": ["1", "1", "1/n", "(1 + sqrt(r))/(2*n)", "1/n"],
    "weight_decay": ["1", "1", "n", "2*n/(1 + sqrt(r))", "n"],
    "eps": ["1/n", "1/n", "1/n", "1/n", "1/n"],
}
COLUMNS = ["Embed", "Unembed", "Q, O", "K, V", "Feed-forward"]
CELLS = [(field, column) for field in PRINTED for column in COLUMNS]


def printed(field: str, column: str) -> sympy.Expr:
    return sympy.sympify(PRINTED[field][COLUMNS.index(column)])


def mismatches(table: dict) -> list[tuple[str, str]]:
    assert list(table["columns"]) == COLUMNS
    return [
        (field, column)
        for field, column in CELLS
        if sympy.simplify(sympy.sympify(table["columns"][column][field]) - printed(field, column))
        != 0
    ]


def test_derived_table_equals_the_paper_in_every_cell(capsys):
    assert main(["table", "--json"]) == 0
    assert mismatches(json.loads(capsys.readouterr().out)) == []


@pytest.mark.parametrize(("field", "column"), CELLS)
def test_a_change_in_any_one_cell_is_seen(field, column, monkeypatch):
    """Whatever one cell becomes, the comparison names that cell and no other."""
    honest = tables.derive
    labels = iter(COLUMNS)

    def altered(*arguments, **choices) -> Scaling:
        scaling = honest(*arguments, **choices)
        if next(labels) != column:
            return scaling
        return dataclasses.replace(scaling, **{field: getattr(scaling, field) * 2})

    monkeypatch.setattr(tables, "derive", altered)
    assert mismatches(parameterization().to_dict()) == [(field, column)]


MUTANTS = {
    "a spectral target without its root": (
        estimates,
        "spectral_target",
        lambda n_out, n_in: n_out / n_in,
    ),
    "Bai–Yin without n_out": (
        estimates,
        "bai_yin",
        lambda sigma, n_out, n_in: sigma * sympy.sqrt(n_in),
    ),
    "Bai–Yin without n_in": (
        estimates,
        "bai_yin",
        lambda sigma, n_out, n_in: sigma * sympy.sqrt(n_out),
    ),
    "a thin Bai–Yin without its root": (
        estimates,
        "bai_yin_thin",
        lambda sigma, n_in: sigma * n_in,
    ),
    "an expected norm without its root": (
        estimates,
        "expected",
        lambda sigma, n_out: sigma * n_out,
    ),
    "repetition counted r times": (estimates, "repeated", lambda norm, times: times * norm),
    "repetition not counted": (estimates, "repeated", lambda norm, times: norm),
    "no multiplier on the readout": (units.Readout, "multiplier", lambda self: sympy.Integer(1)),
    "a readout gradient that shrinks twice": (
        units.Readout,
        "gradient_entry",
        lambda self: 1 / self.n,
    ),
    "an embedding gradient that does not shrink": (
        units.Embedding,
        "gradient_entry",
        lambda self: sympy.Integer(1),
    ),
    "a hidden gradient that does not shrink": (
        units.Dense,
        "gradient_entry",
        lambda self: sympy.Integer(1),
    ),
    "a key/value gradient that does not shrink": (
        units.KeyValue,
        "gradient_entry",
        lambda self: sympy.Integer(1),
    ),
    "key and value as a small dense matrix": (
        units.KeyValue,
        "reference",
        lambda self: units.Dense(self.inner / self.r, self.n),
    ),
    "key and value stored whole": (units.KeyValue, "shape", lambda self: (self.inner, self.n)),
    "a readout sized by the expected norm": (units.Readout, "thin_readout", False),
    "decay that follows the rate": (
        derivation._Derivation,
        "_weight_decay",
        lambda self, rate: rate,
    ),
    "epsilon against the norm": (Optimizer, "epsilon_size", lambda self, entry, norm: norm),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutated_engine_no_longer_derives_the_table(mutant, monkeypatch):
    monkeypatch.setattr(*MUTANTS[mutant])
    assert mismatches(parameterization().to_dict())


def test_a_noise_dominated_step_would_need_no_repetition_factor():
    """The factor rests on coherence: with Bai–Yin for Adam's step it is 1, so the table cannot hold
    either.
    """
    noisy = dataclasses.replace(
        OPTIMIZERS["adamw"], step=lambda s: estimates.bai_yin(sympy.Integer(1), s.n_out, s.n_in)
    )
    table = parameterization(noisy)
    assert table.columns["K, V"].lr == table.columns["Q, O"].lr
    assert ("lr", "K, V") in mismatches(table.to_dict())


# Step norm on the key/value matrix (constants apart), K/V factor, power of n in the hidden rate,
# standing.
ADAM_LIKE = ("n/sqrt(r)", "(1 + sqrt(r))/2", "-1", "derived")
OPTIMIZER_TABLE = {
    "adamw": ADAM_LIKE,
    "adam": ADAM_LIKE,
    "lion": ADAM_LIKE,
    "signsgd": ADAM_LIKE,
    "adafactor-unscaled": ADAM_LIKE,
    "sgd": ("1", "(1 + sqrt(r))/(2*sqrt(r))", "0", "derived, one extrapolated step"),
    "momentum": ("1", "(1 + sqrt(r))/(2*sqrt(r))", "0", "derived, one extrapolated step"),
    "muon": ("1", "(1 + sqrt(r))/(2*sqrt(r))", "0", "derived"),
    "muon-match-rms": ("sqrt(n)", "(1 + sqrt(r))/(2*sqrt(r))", "-1/2", "derived"),
    "muon-spectral": ("1/sqrt(r)", "(1 + sqrt(r))/2", "0", "derived"),
    "adafactor": ("sqrt(n)/sqrt(r)", "(1 + sqrt(r))/2", "-1/2", "derived"),
    "shampoo": ("1", "(1 + sqrt(r))/(2*sqrt(r))", "0", "extrapolated"),
    "shampoo-grafted": ("sqrt(n)", "(1 + sqrt(r))/(2*sqrt(r))", "-1/2", "extrapolated"),
}


def test_every_optimizer_has_its_kv_factor_width_exponent_and_standing():
    rows = {row.optimizer.name: row.to_dict() for row in compare_optimizers()}
    assert set(rows) == set(OPTIMIZER_TABLE) == set(OPTIMIZERS)
    for name, (step, factor, exponent, standing) in OPTIMIZER_TABLE.items():
        row = rows[name]
        assert row["standing"] == standing, name
        for key, value in {"step": step, "kv_factor": factor, "width_exponent": exponent}.items():
            assert sympy.simplify(sympy.sympify(row[key]) - sympy.sympify(value)) == 0, (name, key)
    assert "cap" in rows["adafactor"]["caveat"]
    assert "floor" in rows["adafactor"]["caveat"]


def test_sgd_rates_of_input_and_output_grow_with_width():
    table = parameterization("sgd").to_dict()["columns"]
    assert table["Embed"]["lr"] == table["Unembed"]["lr"] == "n"


def test_matrix_optimizers_leave_embedding_and_readout_to_adamw():
    table = parameterization("muon")
    assert [s.optimizer.name for s in table.columns.values()] == [
        "adamw",
        "adamw",
        "muon",
        "muon",
        "muon",
    ]
    assert "trained by AdamW" in table.notes[0]


def test_depth_puts_the_branch_factor_on_outputs_and_in_every_epsilon_of_a_block():
    columns = parameterization(depth="1/L").to_dict()["columns"]
    assert {label: c["multiplier"] for label, c in columns.items() if "L" in c["multiplier"]} == {
        "O": "1/L",
        "Feed-forward out": "1/L",
    }
    assert {c["eps"] for label, c in columns.items() if "mbed" not in label} == {"1/(L*n)"}
    assert columns["Embed"]["eps"] == columns["Unembed"]["eps"] == "1/n"


@pytest.mark.parametrize("show", ["to_text", "to_markdown", "to_latex"])
def test_every_rendering_shows_every_cell(show):
    table = parameterization()
    text = getattr(table, show)()
    assert text.count("/") + text.count("frac") >= 13
    assert all(column in text for column in COLUMNS)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("depth", ["none", "1/L"])
def test_tables_and_derivations_fit_80_columns(optimizer, depth, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    table = parameterization(optimizer, depth=depth)
    texts = [table.to_text(), *(scaling.to_text() for scaling in table.columns.values())]
    assert max(len(line) for text in texts for line in text.splitlines()) <= 80


def test_a_wide_terminal_has_one_column_per_kind_of_weight_and_a_narrow_one_a_row(monkeypatch):
    table = parameterization(depth="1/L")
    for columns, head in (("160", "Embed"), ("80", "init std")):
        monkeypatch.setenv("COLUMNS", columns)
        assert table.to_text().splitlines()[2].strip().startswith(head)
