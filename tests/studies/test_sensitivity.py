"""What a paired search found, on the terminal, in JSON, on the page and as a figure."""

import json
from pathlib import Path

import pytest

import mupscale as mu
from mupscale.cli import main
from mupscale.reports.sensitivity import draw_sensitivity
from mupscale.studies import Study
from mupscale.studies.sensitivity import FLAT, MATTERS, UNTRIED, found_in
from tests.recipes.studies import TINY, written
from tests.studies.test_paired import bowl, carried_out, configured


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("paired") / "study"
    config = configured()
    written(made, config.to_dict(), [one.to_dict() for one in carried_out(config, bowl)])
    return made


def test_each_parameter_has_its_verdict_and_the_losses_around_it(folder: Path):
    rows, (gain,) = found_in(Study.open(folder).snapshot())
    by_name = {row.parameter: row for row in rows}
    verdicts = {name: row.verdict for name, row in by_name.items()}
    assert verdicts == {
        "lr": MATTERS, "lr.embedding": MATTERS, "std.readout": MATTERS, "lr.gains": FLAT,
    }  # fmt: skip
    assert [name for name, row in by_name.items() if row.moved] == ["lr", "lr.embedding"]
    for x, one in by_name["lr.embedding"].points:
        assert one.value == pytest.approx(0.02 * (x - 2) ** 2, abs=0.01)
    assert gain.factors == {"lr.embedding": 4}
    assert gain.gain is not None
    assert gain.gain.low < gain.gain.value < gain.gain.high < 0
    assert gain.done


def test_the_gain_is_that_of_the_factors_and_not_of_the_rate(folder: Path):
    """Tuned values with all factors at 1 lie 0.08 nats above, apart from the rate's own step."""
    _, (gain,) = found_in(Study.open(folder).snapshot())
    assert gain.gain is not None
    assert gain.gain.value == pytest.approx(-0.08, abs=0.05)


def test_a_search_that_has_begun_shows_what_there_is(folder: Path, tmp_path: Path):
    config = configured()
    some = [one.to_dict() for one in carried_out(config, bowl)][:9]
    study = written(tmp_path / "some", config.to_dict(), some)
    rows, (gain,) = found_in(study.snapshot())
    assert {row.verdict for row in rows} == {MATTERS, UNTRIED}
    assert (gain.factors, gain.gain, gain.done) == ({}, None, False)


def test_status_prints_it_within_80_columns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["sweep", str(folder), "--status"]) == 0
    text = capsys.readouterr().out
    assert "no significant difference" in text
    assert "factors lr.embedding × 4. Loss with them minus without: -0." in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80 or "records:" in text
    assert main(["sweep", str(folder), "--status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["parameter"] for one in found["sensitivity"]] == [
        "lr", "lr.embedding", "std.readout", "lr.gains",
    ]  # fmt: skip
    assert found["gains"][0]["factors"] == {"lr.embedding": 4.0}


def test_the_report_has_a_table_and_a_figure(folder: Path, tmp_path: Path):
    output = tmp_path / "page.html"
    figures = tmp_path / "figures"
    assert main(["report", str(folder), "--output", str(output), "--figures", str(figures)]) == 0
    page = output.read_text(encoding="utf-8")
    assert "Which parameters matter" in page
    assert "no significant difference" in page
    assert (figures / "sensitivity.png").stat().st_size > 5000
    rows, _ = found_in(Study.open(folder).snapshot())
    figure = draw_sensitivity(rows, title="")
    assert [axes.get_title("left") for axes in figure.axes] == [row.parameter for row in rows]


def test_a_recipe_takes_the_point_that_the_search_found(folder: Path):
    recipe = mu.transfer(folder, to=TINY)
    values = {name: one.value for name, one in recipe.factors.items()}
    assert values == pytest.approx({"lr.embedding": 4, "std.readout": 1, "lr.gains": 1})
    assert recipe.log2_lr.value == pytest.approx(-6.5, abs=0.2)
    assert recipe.plan.factors["lr.embedding"] == pytest.approx(4)
