"""What the page says and holds, before any browser sees it."""

import base64
import dataclasses
import hashlib
import json
import math
import re
from collections import defaultdict
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.families import Comparison
from mupscale.analysis.timescales import tau_epoch
from mupscale.errors import OptionError, StorageError
from mupscale.reports.page import StudyProgress, read_check, study_page
from mupscale.reports.page.answer import answer
from mupscale.reports.page.curves import curve_figure
from mupscale.reports.page.embedding import embedded_json
from mupscale.reports.page.maps import map_figures
from mupscale.reports.page.recipes import no_recipe
from mupscale.reports.page.trials import trial_columns
from tests.reports.page import studies
from tests.reports.page.studies import RESULTS, curves, page_of, recorded, surfaces


class Reader(HTMLParser):
    """What a browser would find: scripts, their types, the policy, and the text outside of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[tuple[str | None, str]] = []
        self.policy, self.text, self.links = "", "", []
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self._inside = tag
        if tag == "script":
            self.scripts.append((found.get("type"), ""))
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = kind, text + data
        elif self._inside != "style":
            self.text += data


# What it says


def test_a_rate_that_drifts_beyond_its_interval_moves_and_one_that_does_not_is_still():
    said = answer(page_of(curves(drift=0.6)))
    assert {one.rule: one.tone for one in said.rules} == {"sp": "moves", "mup": "still"}
    assert "under sp the best rate moves with width" in said.lead[0].lower()


def test_every_claim_stands_beside_its_interval_runs_and_seeds():
    for one in answer(recorded()).rules:
        assert re.search(r"interval of log2 \[.+\]; 153 runs, 3 seeds", one.lines[0])
        assert re.search(r"Drift \S+ \[.+\] octaves", one.lines[1])


def test_better_is_said_only_where_a_comparison_says_it():
    data = page_of(curves())
    apart = Comparison(
        "loss at the optimum", "nats", "sp", "mup", Estimate(-0.1, -0.2, -0.05), "sp"
    )
    unknown = Comparison("drift", "octaves", "sp", "mup", Estimate(-0.1, -0.2, 0.1), None)
    for comparisons, expected in ([[apart, unknown], 1], [[unknown], 0], [[], 0]):
        analysis = dataclasses.replace(data.analysis, comparisons=tuple(comparisons))
        said = answer(dataclasses.replace(data, analysis=analysis)).comparisons
        assert sum("is better than" in line for line in said) == expected


def test_an_unfinished_study_says_so_before_anything_else():
    data = page_of(curves(), progress=StudyProgress(ended=108, expected=200, running=2, done=False))
    assert answer(data).lead[0].startswith("So far (108 of 200 trials have ended, 2 are running)")


def diverged_only():
    return page_of([dataclasses.replace(run, loss=None) for run in curves()])


def failed_only():
    trials = [
        studies.trial(run, n, status="failed", loss=None, error="no")
        for n, run in enumerate(curves())
    ]
    return page_of([], trials=trials)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda: page_of([]), "No trial has finished yet"),
        (lambda: page_of(curves()[:1]), "No optimum is known yet. The lowest loss"),
        (
            diverged_only,
            "None of 216 trials finished (216 diverged, 0 failed): nothing is recommended",
        ),
        (failed_only, "None of 216 trials finished (0 diverged, 216 failed)"),
        (lambda: page_of(curves(seeds=1)), "best rate"),
        (lambda: page_of(curves()[:40]), "loss"),
        (lambda: page_of(surfaces()[:5]), "loss"),
    ],
    ids=["empty", "one-trial", "diverged", "failed", "one-seed", "missing-cells", "few-points"],
)
def test_a_study_that_went_wrong_has_a_useful_page(data, words):
    found = data()
    page = study_page(found)
    assert words in Reader(page).text
    if not any(run.loss is not None for run in found.runs):
        assert len(page) < 100_000  # the library that draws is left out


def test_the_results_stand_in_the_page_without_any_script():
    text = Reader(study_page(recorded())).text
    for cell in recorded().analysis.cells:
        assert f"{cell.loss:.4f}" in text
    assert "16 of 18 judged slopes pass" in text


def test_a_study_without_an_optimum_has_no_recipe_and_says_why():
    page = study_page(page_of(curves(), recipe=no_recipe("llama-3-8b", "there is no optimum.")))
    assert "No recipe for llama-3-8b" in page
    assert "There is no optimum." in page


# What it draws


def test_the_curves_are_the_means_over_seeds():
    runs = curves()
    expected = defaultdict(list)
    for run in runs:
        expected[run.rule, run.member.label, round(run.log2("lr"), 5)].append(run.loss)
    figure = curve_figure(page_of(runs).analysis, runs)
    assert figure is not None
    drawn = {
        (panel["rule"], line["member"], x): mean
        for panel in figure["panels"]
        for line in panel["lines"]
        for x, mean in zip(line["x"], line["mean"], strict=True)
    }
    assert drawn == pytest.approx(
        {key: np.mean(losses) for key, losses in expected.items()}, abs=1e-6
    )


def test_the_cells_of_a_map_fill_its_box_and_no_more():
    """Of the map over what was searched; that over τ shows the part that was searched, which
    leans.
    """
    runs = surfaces()
    for figure in map_figures(page_of(runs).analysis, runs):
        (left, right), (bottom, top) = figure["box"]
        assert len(figure["panels"]) == 4
        for panel in figure["panels"]:
            filled = sum(_area(polygon) for polygon in panel["polygons"]) / (
                (right - left) * (top - bottom)
            )
            assert (
                filled == pytest.approx(1, rel=1e-3)
                if not figure["derived"]
                else 0.3 < filled < 0.95
            )


def _area(polygon: list[list[float]]) -> float:
    x, y = np.reshape(polygon, (-1, 2)).T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)


def test_the_second_map_is_the_first_in_the_time_scale_of_decay():
    runs = surfaces()
    decay, tau = map_figures(page_of(runs).analysis, runs)
    assert (decay["second"], tau["second"]) == ("weight_decay", "tau_epoch")
    for first, second in zip(decay["panels"], tau["panels"], strict=True):
        expected = [
            math.log2(tau_epoch(2**x, 2**y, 200))
            for x, y in zip(first["x"], first["y"], strict=True)
        ]
        assert second["y"] == pytest.approx(expected, abs=1e-3)
        assert second["optimum"][1] == pytest.approx(
            -sum(first["optimum"]) - math.log2(200), abs=0.4
        )


def test_the_optimum_of_a_known_surface_is_marked_where_it_is():
    runs = surfaces()
    figure = map_figures(page_of(runs).analysis, runs)[0]
    for panel in figure["panels"]:
        assert panel["optimum"] == pytest.approx([-6, -3], abs=0.3)
        assert [loss is None for loss in panel["loss"]] == [x > -3.2 for x in panel["x"]]


def test_one_parameter_makes_no_map():
    assert map_figures(recorded().analysis, recorded().runs) == []


def test_the_table_of_trials_holds_every_trial():
    trials = recorded().trials
    columns = {column["key"]: column for column in trial_columns(trials)}
    read = {
        key: [column["words"][value] for value in column["values"]]
        if "words" in column
        else column["values"]
        for key, column in columns.items()
    }
    assert read["rule"] == [trial["rule"] for trial in trials]
    assert read["status"] == [trial["status"] for trial in trials]
    assert read["loss"] == pytest.approx([trial["loss"] for trial in trials], rel=1e-6)
    assert read["param:lr"] == pytest.approx([trial["params"]["lr"] for trial in trials], rel=1e-6)


# What may stand in it


@given(st.text() | st.sampled_from(["</script>", "<!--", "<script", "]]>", "\u2028", "\ud800"]))
def test_no_text_can_leave_its_script(text):
    page = f"<script type='application/json'>{embedded_json({'name': text})}</script><p>after</p>"
    reader = Reader(page)
    assert [json.loads(script) for _, script in reader.scripts] == [{"name": text}]
    assert reader.text == "after"


def test_only_the_scripts_of_the_page_may_run_and_nothing_is_loaded():
    reader = Reader(study_page(recorded()))
    running = [text for kind, text in reader.scripts if kind is None]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    assert re.findall(r"'sha256-([^']+)'", reader.policy) == hashes
    assert reader.policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in reader.policy
    assert all(link.startswith("#") for link in reader.links)


def test_ten_thousand_trials_fit_into_fifteen_megabytes():
    assert len(study_page(studies.many(10_000)).encode()) < 15e6


# Checks


def test_the_summary_of_a_check_is_its_verdict():
    check = read_check(RESULTS / "coordinate-check" / "cpu" / "mup")
    assert (check.rule, check.quantity, check.verdict) == ("mup", "r", "fail")
    assert {one["role"] for one in check.findings if one["verdict"] == "fail"} == {"key", "value"}


def test_a_folder_that_is_no_check_is_refused(tmp_path):
    with pytest.raises(OptionError, match="holds no coordinate check"):
        read_check(tmp_path)
    (tmp_path / "findings.jsonl").write_text('{"role": "key"}\n')
    with pytest.raises(StorageError, match="a row lacks one of"):
        read_check(tmp_path)
