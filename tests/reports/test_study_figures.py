"""A study gives the files that its runs allow, and never a traceback."""

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mupscale.analysis.measurements import Measurement, Member
from mupscale.errors import MissingExtraError, UnknownNameError
from mupscale.reports import save_study_figures
from mupscale.studies import Study
from mupscale.studies.measured import measured
from tests.reports.made_studies import HOSTILE, analysed, rate_runs, surface_runs

BEGINS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".parquet": b"PAR1"}


def saved(
    runs: list[Measurement], folder: Path, axis: str | None = "r", formats=("png",)
) -> dict[str, Path]:
    paths = save_study_figures(analysed(runs, axis), runs, folder, formats)
    assert sorted(paths) == sorted(folder.iterdir()) if paths else not folder.exists()
    return {path.name: path for path in paths}


def test_a_study_of_two_parameters_has_every_figure_in_every_format_and_every_table(tmp_path):
    files = saved(surface_runs(rules=("mup",)), tmp_path / "out", formats=("png", "svg", "pdf"))
    figures = {"loss-by-lr", "map-lr-weight-decay", "map-lr-tau-epoch"}
    assert {name for name in files if name.endswith((".png", ".svg", ".pdf"))} == {
        f"{stem}.{kind}" for stem in figures for kind in ("png", "svg", "pdf")
    }
    assert {"trials.csv", "trials.parquet", "optima.csv", "optima.parquet", "transfer.csv"} <= set(
        files
    )
    for path in files.values():
        assert path.read_bytes().startswith(BEGINS.get(path.suffix, b""))


def test_the_real_study_is_drawn(tmp_path):
    runs, axis = measured(Study.open(Path(__file__).parents[2] / "results" / "gqa-dense"))
    files = saved(runs, tmp_path / "out", axis=axis, formats=("svg",))
    drawing = files["loss-by-lr.svg"].read_text(encoding="utf-8")
    for text in (
        "gqa-mup",
        "complete-p",
        "n_kv_heads = 1 (r = 12)",
        "153 runs, 3 seeds",
        "optimum, 95% interval",
    ):
        assert f">{text}<" in drawing
    assert len(files["trials.csv"].read_text().splitlines()) == 460


def test_the_same_runs_give_the_same_files(tmp_path):
    first, second = (
        saved(rate_runs(), tmp_path / name, formats=("png", "svg", "pdf")) for name in ("a", "b")
    )
    assert {name: path.read_bytes() for name, path in first.items()} == {
        name: path.read_bytes() for name, path in second.items()
    }


def one_trial() -> list[Measurement]:
    return rate_runs()[:1]


def all_diverged() -> list[Measurement]:
    return [replace(run, loss=None) for run in surface_runs()]


def missing_seeds() -> list[Measurement]:
    return [run for place, run in enumerate(rate_runs()) if place % 3]


def one_cell_empty() -> list[Measurement]:
    return [run for run in surface_runs() if (run.rule, run.member.label) != ("mup", "large")]


def no_steps() -> list[Measurement]:
    return [replace(run, steps=None) for run in surface_runs()]


def nothing_varied() -> list[Measurement]:
    return rate_runs(rules=("mup",), members=(Member(label="all"),))


@pytest.mark.parametrize(
    ("make", "figures"),
    [
        (one_trial, {"loss-by-lr.png"}),
        (all_diverged, {"loss-by-lr.png", "map-lr-weight-decay.png", "map-lr-tau-epoch.png"}),
        (missing_seeds, {"loss-by-lr.png"}),
        (one_cell_empty, {"loss-by-lr.png", "map-lr-weight-decay.png", "map-lr-tau-epoch.png"}),
        (no_steps, {"loss-by-lr.png", "map-lr-weight-decay.png"}),
        (nothing_varied, {"loss-by-lr.png"}),
    ],
)
def test_what_is_missing_costs_only_what_needs_it(make, figures, tmp_path):
    files = saved(make(), tmp_path / "out", axis=None if make is nothing_varied else "r")
    assert {name for name in files if name.endswith(".png")} == figures
    assert "trials.parquet" in files


def test_an_empty_study_has_no_file(tmp_path):
    assert saved([], tmp_path / "out") == {}


def test_hostile_names_come_out_inert(tmp_path):
    html, dollars, controls, formula, long, glyphs = HOSTILE
    members = (Member(label=html, position=1.0), Member(label=glyphs + dollars, position=2.0))
    runs = surface_runs(rules=(formula + controls, long), members=members)
    files = saved(runs, tmp_path / "out", axis=html, formats=("svg",))
    for path in files.values():
        if path.suffix == ".svg":
            assert b"<script" not in path.read_bytes()
            ElementTree.parse(path)


def test_a_wrong_format_and_a_missing_extra_are_said(tmp_path, monkeypatch):
    with pytest.raises(
        UnknownNameError, match=r"unknown format of a figure 'pgn'. Did you mean 'png'"
    ):
        saved(rate_runs(), tmp_path / "out", formats=("pgn",))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"mupscale\[report\]"):
        saved(rate_runs(), tmp_path / "other")
    assert list(tmp_path.iterdir()) == []
