"""Tables open elsewhere with the numbers that the analysis has, and nothing in them runs."""

import csv
import math
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from mupscale.analysis.measurements import Member
from mupscale.errors import MissingExtraError, OptionError
from mupscale.reports import save_csv, save_table, study_tables
from mupscale.reports.saving import inert
from tests.reports.made_studies import HOSTILE, analysed, rate_runs, surface_runs

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1")


def tables_of(runs):
    return study_tables(analysed(runs), runs)


def read(path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_table_of_a_study_has_its_rows():
    counts = {name: len(rows) for name, rows in tables_of(rate_runs()).items()}
    assert counts["trials"] == 2 * 2 * 3 * 9
    assert counts["optima"] == 4
    assert counts["transfer"] == counts["regrets"] == 2
    assert counts["comparisons"] >= 1
    assert counts["variances"] == 2 * 2 * 2  # fitted and lowest, two rules, rate and loss


def test_the_rows_of_optima_are_what_was_put_into_the_runs():
    for row in tables_of(rate_runs())["optima"]:
        expected = -6.0 if row["member"] == "small" else -6.5
        assert row["log2_optimum"] == pytest.approx(expected, abs=1e-6)
        assert row["optimum"] == pytest.approx(2**expected, rel=1e-6)
        assert row["log2_optimum_low"] <= row["log2_optimum"] <= row["log2_optimum_high"]
        assert (row["runs"], row["diverged"], row["seeds"], row["flags"]) == (27, 0, 3, "")
    for row in tables_of(rate_runs())["transfer"]:
        assert row["sd_octaves"] == pytest.approx(0.25, abs=1e-6)
        assert row["drift_octaves_per_doubling"] == pytest.approx(-0.25, abs=1e-6)
        assert (row["runs"], row["seeds"], row["axis"]) == (54, 3, "r")


def test_a_search_over_two_parameters_has_an_optimum_for_each():
    rows = tables_of(surface_runs())["optima"]
    assert [row["parameter"] for row in rows] == ["lr", "weight_decay"] * 4
    assert [row["log2_optimum"] for row in rows] == pytest.approx([-6, -2] * 4, abs=1e-6)


def test_csv_and_parquet_hold_the_same_rows(tmp_path):
    for name, rows in tables_of(surface_runs()).items():
        if rows:
            as_csv, as_parquet = save_table(rows, tmp_path / name)
            columns = parquet.read_table(as_parquet)
            assert columns.to_pylist() == rows
            text = [
                {key: "" if value is None else str(value) for key, value in row.items()}
                for row in rows
            ]
            assert [
                {key: value.removeprefix("'") for key, value in row.items()} for row in read(as_csv)
            ] == text


def test_parquet_has_a_type_for_each_column(tmp_path):
    runs = [replace(run, loss=None) if run.seed == 2 else run for run in rate_runs()]
    _, path = save_table(tables_of(runs)["trials"], tmp_path / "trials")
    types = {field.name: str(field.type) for field in parquet.read_schema(path)}
    assert types == {
        "rule": "string",
        "member": "string",
        "position": "double",
        "seed": "int64",
        "lr": "double",
        "steps": "int64",
        "loss": "double",
        "diverged": "bool",
    }


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, None], "double"),
        ([1, None], "int64"),
        ([1, 2.5], "double"),
        ([2**70, 1], "double"),
        ([True, None], "bool"),
        (["a", 1], "string"),
        ([True, 1], "string"),
        (["\ud800", None], "string"),
    ],
)
def test_columns_of_mixed_or_missing_values_still_have_one_type(values, kind, tmp_path):
    _, path = save_table([{"x": value} for value in values], tmp_path / "table")
    assert str(parquet.read_schema(path).field("x").type) == kind
    assert parquet.read_table(path)["x"].null_count == values.count(None)


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_begins_like_a_formula_is_inert_and_numbers_are_not_touched(text, tmp_path):
    (row,) = read(save_csv([{"name": text, "value": -1.5, text: 1}], tmp_path / "t.csv"))
    assert row["name"] == f"'{text}"
    assert row["value"] == "-1.5"
    assert f"'{text}" in row


@given(st.text() | st.floats(allow_nan=False) | st.integers() | st.none())
def test_no_cell_begins_like_a_formula_unless_it_is_a_number(cell):
    made = inert(cell)
    if isinstance(cell, str):
        assert not str(made).startswith(tuple("=+-@\t\r\n"))
        assert str(made) in (cell, f"'{cell}")
    else:
        assert made is cell


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_kept_as_text(name, tmp_path):
    runs = rate_runs(rules=(name,), members=(Member(label=name, position=1.0),))
    for table, rows in tables_of(runs).items():
        if rows:
            as_csv, as_parquet = save_table(rows, tmp_path / table)
            known = name.encode(errors="replace").decode()
            if "rule" in rows[0]:
                assert {row["rule"].removeprefix("'") for row in read(as_csv)} == {known}
                assert set(parquet.read_table(as_parquet)["rule"].to_pylist()) == {known}


def test_an_interval_without_end_and_a_run_that_diverged_are_empty_cells(tmp_path):
    few = [run for run in rate_runs(seeds=(1,)) if run.log2("lr") < -7]
    (row, *_) = tables_of(few)["optima"]
    assert row["log2_optimum_low"] is None
    assert row["log2_optimum_high"] is None
    assert "few" in row["flags"]
    trial = tables_of([replace(few[0], loss=math.inf)])["trials"][0]
    assert (trial["loss"], trial["diverged"]) == (None, True)


def test_rows_with_other_keys_get_empty_cells_and_no_rows_are_refused(tmp_path):
    as_csv, as_parquet = save_table([{"a": 1}, {"b": "x"}], tmp_path / "t")
    assert read(as_csv) == [{"a": "1", "b": ""}, {"a": "", "b": "x"}]
    assert parquet.read_table(as_parquet).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
    ]
    with pytest.raises(OptionError, match="at least one row"):
        save_table([], tmp_path / "empty")


def test_without_pyarrow_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pyarrow.*mupscale\[report\]"):
        save_table([{"a": 1}], tmp_path / "t")
