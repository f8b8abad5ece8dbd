"""The paper's coordinate checks in the smallest size that still has 12 heads."""

import dataclasses
import json
import shutil

import pytest

from mupscale.cli import main
from mupscale.engines import Local
from mupscale.paper import coordinate_check as experiment
from mupscale.paper.experiment import Cost, Execution
from mupscale.targets import Family


@pytest.fixture(scope="module")
def tiny():
    small = Family("gpt:check,width=96,depth=1,head_dim=32")
    return dataclasses.replace(
        experiment.SIZES["cpu"], family=small, seeds=(1, 2), steps=1, sequence=64
    )


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("coordinate-check")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(experiment.SIZES, "cpu", tiny)
        seen: list[tuple[int, int]] = []
        how = Execution(Local(workers=0), lambda *count: seen.append(count))
        experiment.EXPERIMENT.run("cpu", folder, how)
    assert seen[-1] == (36, 36)
    return folder, experiment.EXPERIMENT.checked(tiny, folder)


def test_three_rules_differ_in_keys_and_values_as_derived(made):
    _, results = made
    predicted = {
        name: result.finding("update", "key").predicted for name, result in results.items()
    }
    assert predicted["gqa-mup"] == pytest.approx(0, abs=1e-4)
    assert predicted["mup"] < -0.2 < 0.05 < predicted["gqa-mup-as-printed"]
    for name, result in results.items():
        measured = result.finding("update", "value").flatness.slope.value
        assert measured == pytest.approx(predicted[name], abs=0.12)


def test_the_table_has_both_checks_for_each_rule(made):
    rows = experiment.table(made[1])
    assert {tuple(row.of.values()) for row in rows} == {
        (rule, label) for rule in experiment.CHECKS for label in ("‖Δh‖", "‖ΔW‖/‖W0‖")
    }
    text = list(experiment.to_text(rows, made[1]))
    assert sum("spectral check" in line for line in text) == 3


def test_files_are_written(made, monkeypatch):
    folder, results = made
    assert experiment.STATISTICS == ("dh", "step", "update")
    monkeypatch.setattr(experiment, "STATISTICS", ("update",))  # figures take their time
    names = {str(path.relative_to(folder)) for path in experiment.save(results, folder)}
    for rule in experiment.CHECKS:
        assert {f"{rule}/{stem}.png" for stem in ("slopes", "update")} <= names
    assert "table.csv" in names


def test_the_command_reads_what_is_there(made, tiny, monkeypatch, capsys):
    folder, results = made
    monkeypatch.setitem(experiment.SIZES, "cpu", tiny)
    monkeypatch.setattr("mupscale.checks.check.run_probe", None)
    monkeypatch.setattr(experiment, "save", lambda results, folder: [folder / "table.csv"])
    assert (
        main(["paper", "coordinate-check", "--output", str(folder), "--workers", "0", "--json"])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["files"] == [str(folder / "table.csv")]
    assert {name: check["verdict"] for name, check in data["checks"].items()} == {
        name: result.verdict for name, result in results.items()
    }


def test_the_cost_is_computed_once_and_only_if_runs_are_left(
    made, tiny, monkeypatch, capsys, tmp_path
):
    folder, _ = made
    shutil.copytree(folder, tmp_path / "copy")
    asked: list[int] = []
    monkeypatch.setitem(experiment.SIZES, "cpu", tiny)
    monkeypatch.setattr(experiment, "save", lambda results, folder: [])
    monkeypatch.setattr(
        type(experiment.EXPERIMENT),
        "cost",
        lambda *given: asked.append(given[-1]) or Cost(runs=2, tokens=8.0, hours=0.1),
    )
    command = ["paper", "coordinate-check", "--output", str(tmp_path / "copy"), "--workers", "0"]
    assert main(command) == 0
    assert asked == []
    for rule in list(experiment.CHECKS)[:2]:  # each rule has its own session
        records = tmp_path / "copy" / rule / "runs.jsonl"
        records.write_text("".join(records.read_text().splitlines(keepends=True)[:-1]))
    capsys.readouterr()
    assert main(command) == 0
    assert len(asked) == 1
    assert capsys.readouterr().err.count("2 runs, 8 tokens, about 6 minutes on this machine") == 1


def test_the_papers_size_is_what_it_prints():
    size = experiment.SIZES["paper"]
    assert size.seeds == tuple(range(1, 11))
    setup = size.setup()
    assert (setup.eps, setup.std, setup.batch, setup.weight_decay) == (1e-12, 0.02, 1, 0.0)
    assert size.sequence == 1024
    shape = size.family(n_kv_heads=3).config
    assert (shape.width, shape.depth, shape.n_heads, shape.head_size, shape.kv_heads) == (
        576,
        8,
        12,
        64,
        3,
    )
    assert setup.betas == (0.9, 0.999)
