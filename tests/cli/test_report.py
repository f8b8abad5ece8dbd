"""`mupscale report` as a user meets it."""

import json
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

from mupscale.cli import main, report
from mupscale.studies import Study
from tests.cli.toy_trainer import TOY

DENSE = Path(__file__).parents[2] / "results" / "gqa-dense"

STUDY = """
name = "toy"
rules = ["sp"]
seeds = [1, 2]

[space]
lr = ["2^-8", "2^-4"]

[search]
method = "grid"
step = 0.5

[engine]
workers = 0

[trainer]
function = "report_toy:{function}"
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "report_toy.py").write_text(TOY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "report_toy", raising=False)
    monkeypatch.chdir(tmp_path)

    def swept(function: str = "train") -> Path:
        (tmp_path / "study.toml").write_text(STUDY.format(function=function), encoding="utf-8")
        main(["sweep", "study.toml", "--output", "toy"])
        return Path("toy")

    return swept


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["report", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_page_is_written_and_its_answer_printed(toy, capsys):
    status, out, _ = run(capsys, str(toy()), "--output", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert status == 0
    assert "written: page.html (4.9 MB)" in out
    assert page.startswith("<!DOCTYPE html>")
    assert "toy · mupscale report" in page


def test_the_page_is_in_the_folder_of_the_study_unless_said(toy, capsys):
    folder = toy()
    assert run(capsys, str(folder))[0] == 0
    assert (folder / "report.html").exists()


def test_scripts_read_what_people_read(capsys, tmp_path):
    status, out, _ = run(capsys, str(DENSE), "--output", str(tmp_path / "page.html"), "--json")
    said = json.loads(out)
    assert status == 0
    assert [one["rule"] for one in said["rules"]] == ["mup", "complete-p", "gqa-mup"]
    assert said["bytes"] == (tmp_path / "page.html").stat().st_size
    assert said["done"] is True


def test_the_recipe_of_a_target_stands_first(capsys, tmp_path):
    status, *_ = run(
        capsys, str(DENSE), "--output", str(tmp_path / "page.html"), "--to", "llama-3-8b"
    )
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert status == 0
    assert 0 < page.index("Recipe for llama-3-8b") < page.index('class="lead"')


def test_the_figures_are_written_beside_it(toy, capsys):
    status, out, _ = run(capsys, str(toy()), "--figures", "figures")
    assert status == 0
    assert "files in figures" in out
    assert {path.suffix for path in Path("figures").iterdir()} >= {
        ".png",
        ".svg",
        ".pdf",
        ".csv",
        ".parquet",
    }


@pytest.mark.parametrize(("function", "words"), [("diverging", "diverged"), ("failing", "failed")])
def test_a_study_in_which_nothing_finished_has_a_page_and_status_1(toy, capsys, function, words):
    status, out, _ = run(capsys, str(toy(function)), "--output", "page.html")
    assert status == 1
    assert words in out
    assert "nothing is recommended" in Path("page.html").read_text(encoding="utf-8")


def test_a_study_without_a_record_has_a_page(toy, capsys):
    folder = toy()
    (folder / "records.jsonl").unlink()
    status, out, _ = run(capsys, str(folder))
    assert status == 0
    assert "No trial has finished yet" in out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("nowhere",), 2, "nowhere holds no study"),
        ((str(DENSE), "--check", "."), 2, "holds no coordinate check"),
        ((str(DENSE), "--output", "."), 2, "is a folder. Name the file"),
        ((str(DENSE), "--output", "/dev/null/page.html"), 4, "could not write /dev/null/page.html"),
        ((str(DENSE), "--output", "page.html", "--to", "lama-3-8b"), 2, "llama-3-8b"),
    ],
    ids=["no-study", "no-check", "folder", "unwritable", "unknown-target"],
)
def test_wrong_use_is_one_message_that_names_the_fix(
    arguments, status, words, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found, _, err = run(capsys, *arguments)
    assert found == status
    assert words in err
    assert "Traceback" not in err


def test_keys_in_the_trainers_environment_are_not_passed_on(toy, capsys, tmp_path):
    folder = toy()
    config = STUDY.format(function="train") + 'environment = { TOKEN = "hidden-key" }\n'
    (folder / "study.toml").write_text(config, encoding="utf-8")
    assert run(capsys, str(folder), "--output", "page.html")[0] == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "TOKEN" in page
    assert "hidden-key" not in page


def test_watching_follows_the_records_and_ends_with_the_study(toy, capsys, monkeypatch):
    folder = toy()
    whole = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "records.jsonl").write_bytes(b"".join(whole[:6]))
    monkeypatch.setattr(report, "_LOOK_SECONDS", 0.05)
    pages: list[str] = []

    def growing() -> None:
        page = folder / "report.html"
        while not page.exists():
            time.sleep(0.02)
        pages.append(page.read_text(encoding="utf-8"))
        (folder / "records.jsonl").write_bytes(b"".join(whole))

    grower = threading.Thread(target=growing)
    grower.start()
    status, _, err = run(capsys, str(folder), "--watch")
    grower.join()
    assert status == 0
    assert "5 of 18 trials have ended" in err
    assert '"refresh_seconds":15' in pages[0]
    last = (folder / "report.html").read_text(encoding="utf-8")
    assert "all 18 trials have ended" in last
    assert '"refresh_seconds":null' in last


def test_an_interrupted_watch_leaves_a_page_that_does_not_refresh_for_ever(
    toy, capsys, monkeypatch
):
    folder = toy()
    records = folder / "records.jsonl"
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:6]))

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(report.time, "sleep", interrupted)
    status, *_ = run(capsys, str(folder), "--watch")
    assert status == 0
    assert '"refresh_seconds":null' in (folder / "report.html").read_text(encoding="utf-8")


def test_a_page_of_the_same_study_elsewhere_says_the_same(toy, capsys):
    folder = toy()
    shutil.copytree(folder, "copy")
    assert [trial.loss for trial in Study.open("copy").trials] == [
        trial.loss for trial in Study.open(folder).trials
    ]
    first, second = (
        json.loads(run(capsys, str(place), "--json")[1]) for place in (folder, Path("copy"))
    )
    assert first["answer"] == second["answer"]
