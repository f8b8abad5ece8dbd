"""The parameterization table: printed cells against derived ones, and both against numbers."""

import csv

import pytest
import sympy

from mupscale.paper import parameterization
from mupscale.paper.parameterization import EXPERIMENT, PRINTED, same
from mupscale.theory.formulas import n, parse, r

# The paper's table at n = 16 and r = 9: √n = 4, √r = 3.
AT_16_AND_9 = {
    "Init. Var.": (1, 1, 1 / 4, 1 / 4, 1 / 4),
    "Multiplier": (1, 1 / 16, 1, 1, 1),
    "LR": (1, 1, 1 / 16, 4 / 32, 1 / 16),
    "Weight Decay": (1, 1, 16, 32 / 4, 16),
}


@pytest.mark.parametrize("row", PRINTED)
def test_the_printed_row_in_numbers(row):
    values = [float(parse(text).subs({n: 16, r: 9})) for text in PRINTED[row].values()]
    assert values == pytest.approx(AT_16_AND_9[row])


def test_all_cells_are_as_derived_but_for_a_row_that_is_called_variance_and_holds_deviations():
    wrong = {(cell.row, cell.column) for cell in EXPERIMENT.cells() if not cell.equal}
    assert wrong == {("Init. Var.", column) for column in ("Q, O", "K, V", "Feed-forward")}
    assert {cell.row for cell in EXPERIMENT.cells()} == {*PRINTED, "Init. Var., read as std"}


def test_the_misprint_is_the_only_disagreement():
    assert [claim.verdict for claim in EXPERIMENT.claims()] == [
        "agrees",
        "agrees",
        "disagrees",
        "agrees",
    ]
    assert (
        EXPERIMENT.claims()[2].seen
        == "2 of 5 cells equal to the derived ones; as standard deviations 5 of 5 cells"
    )


def test_another_formula_is_found(monkeypatch):
    wrong = {**PRINTED, "LR": {**PRINTED["LR"], "K, V": "(1 + r)/(2*n)"}}
    monkeypatch.setattr(parameterization, "PRINTED", wrong)
    assert [claim.verdict for claim in EXPERIMENT.claims()][:2] == ["disagrees", "disagrees"]
    assert "LR, K, V: derived (1 + √r)/(2n), printed (1 + r)/(2n)" in EXPERIMENT.lines()


def test_equal_means_the_same_function_not_the_same_text():
    assert same(sympy.sqrt(n**2), n)
    assert same((n**2 - 1) / (n + 1), n - 1)
    assert not same((1 + sympy.sqrt(r)) / 2, sympy.sqrt(r))


def test_the_table_is_written(tmp_path):
    EXPERIMENT.run("cpu", tmp_path)
    found = EXPERIMENT.findings("cpu", tmp_path)
    rows = list(csv.DictReader(found.paths[0].read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 25
    assert sum(row["equal"] == "True" for row in rows) == 22
    assert list(EXPERIMENT.dry_run("cpu")) == list(found.lines)
