"""`mupscale sweep` as a user meets it."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from mupscale.cli import main
from tests.cli.toy_trainer import TOY

STUDY = """
name = "toy"
rules = ["sp"]
seeds = [1, 2]

[space]
lr = ["2^-8", "2^-4"]

[engine]
workers = 0

[trainer]
function = "sweep_toy:{function}"
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "sweep_toy.py").write_text(TOY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sweep_toy", raising=False)
    monkeypatch.chdir(tmp_path)

    def write(function: str = "train") -> str:
        (tmp_path / "study.toml").write_text(STUDY.format(function=function), encoding="utf-8")
        return "study.toml"

    return write


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["sweep", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_it_prints_the_optimum_with_its_interval_and_where_the_records_are(study, capsys):
    status, out, err = run(capsys, study(), "--output", "runs/a")
    assert status == 0
    line = out.splitlines()[1]
    assert line.startswith("sp ")
    assert "2 seeds" in line
    assert "runs/a/records.jsonl" in out
    assert "1 of 1 cells done" in err


@pytest.mark.parametrize(("method", "least"), [("adaptive", True), ("grid", False)])
def test_the_time_left_of_a_search_that_ends_by_itself_is_a_least(
    study, capsys, monkeypatch, method, least
):
    monkeypatch.setattr("mupscale.cli.study_progress._LINE_SECONDS", 0.0)
    _, _, err = run(capsys, study(), "--output", "runs/a", "--method", method)
    lines = [line for line in err.splitlines() if line.endswith(" left")]
    assert lines
    assert all(("trials or more," in line) == ("at least" in line) == least for line in lines)


def test_json_and_status_say_the_same(study, capsys):
    _, out, _ = run(capsys, study(), "--output", "runs/a", "--json")
    cells = json.loads(out)["cells"]
    assert cells[0]["low"] < cells[0]["optimum"] < cells[0]["high"]
    assert abs(cells[0]["optimum"] + 6.2) < 0.3
    _, again, _ = run(capsys, "runs/a", "--status", "--json")
    assert json.loads(again)["cells"] == cells


def test_flags_are_put_over_the_file_and_the_whole_study_can_be_shown(study, capsys):
    status, out, _ = run(
        capsys, study(), "--seeds", "7", "--method", "grid", "--lr", "2^-7,0.0625", "--show-config"
    )
    shown = tomllib.loads(out)
    assert status == 0
    assert (shown["seeds"], shown["search"]["method"], shown["space"]["lr"]) == (
        [7],
        "grid",
        [2**-7, 0.0625],
    )
    assert not Path("runs").exists()


def test_without_a_file_the_quick_study_is_shown(capsys):
    _, out, _ = run(capsys, "--vary", "n_kv_heads=12,1", "--length.steps", "5", "--show-config")
    shown = tomllib.loads(out)
    assert shown["vary"] == {"n_kv_heads": [12, 1]}
    assert shown["length"]["steps"] == 5


def test_a_schedule_is_a_setting(capsys):
    wsd = ["--length.schedule", "wsd", "--length.decay-share", "0.1"]
    status, out, _ = run(capsys, *wsd, "--show-config")
    assert status == 0
    shown = tomllib.loads(out)["length"]
    assert (shown["schedule"], shown["decay_share"]) == ("wsd", 0.1)
    status, _, err = run(capsys, "--length.schedule", "wdd", "--show-config")
    assert status == 2
    assert "unknown length.schedule 'wdd'. Did you mean 'wsd'?" in " ".join(err.split())


def test_all_diverged_is_status_1_and_no_recommendation(study, capsys):
    status, out, _ = run(capsys, study("diverging"), "--output", "runs/a", "--method", "grid")
    assert status == 1
    assert "there is no optimum" in out


def test_a_study_in_which_all_fails_is_status_1_with_the_reason(study, capsys):
    status, _, err = run(capsys, study("failing"), "--output", "runs/a")
    assert status == 1
    assert "no such thing" in err
    assert "--retry-failed" in err


def test_a_changed_study_is_refused_and_can_be_forked(study, capsys):
    name = study()
    assert run(capsys, name, "--output", "runs/a", "--method", "grid")[0] == 0
    status, _, err = run(capsys, name, "--output", "runs/a", "--method", "grid", "--seeds", "1,2,3")
    assert status == 2
    assert "--fork runs/a" in err
    status, out, _ = run(
        capsys,
        name,
        "--output",
        "runs/b",
        "--method",
        "grid",
        "--seeds",
        "1,2,3",
        "--fork",
        "runs/a",
        "--json",
    )
    assert status == 0
    assert json.loads(out)["cells"][0]["finished"] == 27


def test_the_folder_is_its_own_output(study, capsys):
    run(capsys, study(), "--output", "runs/a")
    status, _, err = run(capsys, "runs/a", "--output", "runs/b")
    assert status == 2
    assert "its own --output" in err
