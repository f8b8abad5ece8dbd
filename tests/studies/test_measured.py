"""From trials to measurements: what is kept, and where each model stands."""

import json

import pytest

from mupscale.analysis.measurements import Member
from mupscale.studies import Study, StudyConfig
from mupscale.studies.measured import analysis_of, measured

BASE = {
    "name": "made",
    "rules": ["mup"],
    "seeds": [1],
    "space": {"lr": ["2^-8", "2^-4"]},
    "search": {"method": "grid", "step": 0.5},
    "model": {"width": 32, "depth": 2, "n_heads": 4, "vocabulary": 64, "context": 16},
    "base": {"width": 8, "depth": 1, "r": 1},
    "data": {"sequence": 16},
    "length": {"steps": 20, "batch": 2},
}


def study(folder, changes, trials=()):
    """A study on disk, with trials of its first cell: (lr, status, loss)."""
    made = Study.create(StudyConfig.from_dict({**BASE, **changes}), folder)
    cell = made.config.cells()[0]
    rows = [
        {"job": f"{cell.name}/{number:04d}", "result": {
            "cell": cell.name, "rule": cell.rule_name, "variant": cell.variant, "number": number,
            "round": 0, "seed": 1, "params": {"lr": lr}, "status": status, "loss": loss,
            "steps": 20}}
        for number, (lr, status, loss) in enumerate(trials)
    ]  # fmt: skip
    lines = [{"about": {"study": made.config.identity()}}, *rows]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


def test_only_runs_that_came_to_their_end_are_measured(tmp_path):
    """A stopped trial is known to be worse, but not by how much; a failed one says nothing."""
    ends = [
        ("finished", 2.0),
        ("diverged", None),
        ("stopped", None),
        ("failed", None),
        ("oom", None),
        ("timeout", None),
    ]
    runs, axis = measured(study(tmp_path, {}, [(0.01, status, loss) for status, loss in ends]))
    assert [run.loss for run in runs] == [2.0, None]
    assert axis is None


@pytest.mark.parametrize(
    ("changes", "axis", "member"),
    [
        ({}, None, Member(label="the model")),
        ({"vary": {"n_kv_heads": [2, 1]}}, "r", Member(label="n_kv_heads = 2", position=2.0)),
        ({"vary": {"r": [4, 1]}}, "r", Member(label="r = 4", position=4.0)),
        ({"vary": {"width": [32, 64]}}, "width", Member(label="width = 32", position=32.0)),
        ({"vary": {"depth": [2, 4]}}, "depth", Member(label="depth = 2", position=2.0)),
        # Two blocks of 12 n² and a readout of 64 n, with five gains: n = 16.
        (
            {"variants": [{"name": "small", "model": {"width": 16}}, {"name": "large"}]},
            "parameters",
            Member(label="small", position=2 * 12 * 16**2 + 64 * 16 + 5 * 16),
        ),
    ],
)
def test_members_stand_on_the_axis_that_is_varied(changes, axis, member, tmp_path):
    if "variants" in changes:  # heads follow no variant by themselves
        changes["variants"][0]["model"]["n_heads"] = 4
    runs, found = measured(study(tmp_path, changes, [(0.01, "finished", 2.0)]))
    assert found == axis
    assert runs[0].member == member


def test_the_analysis_of_a_study_is_that_of_its_runs(tmp_path):
    trials = [
        (2.0**x, "finished", 2 + 0.05 * (x + 6.1) ** 2)
        for x in (-8, -7.5, -7, -6.5, -6, -5.5, -5, -4.5, -4)
    ]
    made = study(tmp_path, {}, trials)
    found = analysis_of(made).cell("mup", "the model")
    assert found.found["lr"].value == pytest.approx(-6.1, abs=0.01)
    assert analysis_of(made.snapshot()).cells == analysis_of(made).cells
