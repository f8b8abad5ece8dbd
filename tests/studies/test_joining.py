"""A folder of studies, read as one."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mupscale.cli import main
from mupscale.errors import OptionError
from mupscale.paper.width import EXPERIMENT
from mupscale.reports.page import study_page
from mupscale.reports.page.of_study import page_data
from mupscale.studies import Study
from mupscale.studies.joining import joined_config
from tests.paper.made_widths import write_part


def loss(rule: str, width: int, seed: int, rate: float) -> float:
    return 2 - width / 1000 + 0.01 * (seed - 42) + 0.05 * (rate + 6.7) ** 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two widths, and one rate of the larger one in a study of its own."""
    part = EXPERIMENT.part("cpu", 128)
    write_part(EXPERIMENT.part("cpu", 64), tmp_path / "all" / "64", loss)
    write_part(part, tmp_path / "all" / "128", loss, runs=20)
    more = replace(
        part, name="more", rules=("sp",), space={"lr": (2**-5.5, 2**-5.25)}, rule_space={}
    )
    write_part(more, tmp_path / "all" / "more", loss)
    return tmp_path / "all"


def test_its_trials_are_those_of_the_parts(folder: Path):
    study = Study.open(folder)
    by_part = [
        trial for name in ("64", "128", "more") for trial in Study.open(folder / name).trials
    ]
    snapshot = study.snapshot()
    own = [
        trial
        for name, cell in snapshot.cells.items()
        if name not in snapshot.copies
        for trial in cell.values()
    ]

    def told(trials):
        return sorted((t.cell, t.seed, t.params["lr"], t.loss) for t in trials)

    assert told(own) == told(by_part)
    assert len({trial.key for trial in study.trials}) == len(study.trials)


def test_its_config_covers_the_parts(folder: Path):
    config = Study.open(folder).config
    assert (config.name, config.vary, config.seeds) == ("all", {"width": (64, 128)}, (42, 43, 44))
    assert [cell.rule_name for cell in config.cells()][::2] == ["sp", "sp-fan-in", "gqa-mup"]
    assert config.space["lr"] == (2.0**-10, 2.0**-5)


def test_cells_without_a_part_show_the_same_training_under_another_rule(folder: Path):
    """At the base every rule gives the same values; at other widths none does."""
    snapshot = Study.open(folder).snapshot()
    assert snapshot.copies == {"sp.width-64", "sp-fan-in.width-64"}
    for name in snapshot.copies:
        copied, source = snapshot.cells[name], snapshot.cells["gqa-mup.width-64"]
        assert [one.loss for one in copied.values()] == [one.loss for one in source.values()]
        assert {one.cell for one in copied.values()} == {name}
    (folder / "64" / "study.toml").unlink()
    assert Study.open(folder).snapshot().copies == set()


def test_the_page_counts_a_run_that_rules_share_once(folder: Path):
    page = study_page(page_data(Study.open(folder)))
    (counts,) = re.findall(r'<dl class="counts".*?</dl>', page, flags=re.S)
    shown = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", counts))
    assert (shown["trials"], shown["finished"]) == ("90", "90")


def test_it_knows_what_has_ended(folder: Path):
    snapshot = Study.open(folder).snapshot()
    assert snapshot.expected["sp.width-128"] == 27 + 3
    assert {"gqa-mup.width-64", "sp.width-64"} <= snapshot.done
    assert not {name for name in snapshot.done if "128" in name}
    progress = page_data(Study.open(folder)).progress
    assert (progress.ended, progress.expected) == (27 + 3 * 20 + 3, 27 + 81 + 3)


def test_it_cannot_be_run(folder: Path):
    with pytest.raises(OptionError, match=r"joins several studies \(128, 64, more\)"):
        Study.open(folder).run()


def test_parts_that_differ_in_more_are_refused(folder: Path):
    part = EXPERIMENT.part("cpu", 256)
    other = {**part.tables, "optimizer": {**part.tables["optimizer"], "weight_decay": 0.2}}
    write_part(replace(part, tables=other), folder / "256", loss)
    with pytest.raises(OptionError, match=r"cannot be read as one study.*weight_decay"):
        Study.open(folder)


def variants(*models: dict) -> dict:
    return {"vary": {}, "variants": models}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (variants({"name": "a", "model": {"width": 96}}), "variants: a"),
        (variants(), "variants"),
        (variants({"name": "b", "model": {"width": 96}}), None),
    ],
)
def test_variants_are_joined_by_name_if_they_are_the_same(other: dict, named: str | None):
    first = replace(EXPERIMENT.part("cpu", 64), **variants({"name": "a", "model": {"width": 64}}))
    second = replace(first, **other)
    if named is None:
        assert [one["name"] for one in joined_config("all", [first, second]).variants] == ["a", "b"]
    else:
        with pytest.raises(OptionError, match=rf"cannot be read as one study.*{named}"):
            joined_config("all", [first, second])


def test_a_folder_without_studies_is_an_error(tmp_path: Path):
    with pytest.raises(OptionError, match="holds no study"):
        Study.open(tmp_path)


def test_the_report_opens_it(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(folder)]) == 0
    assert "written" in capsys.readouterr().out
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "90 of 111 trials have ended" in page
    assert main(["sweep", str(folder / "64"), "--status"]) == 0
