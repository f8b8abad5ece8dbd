"""The whole way on a model with odd names and no config, from one file of roles: check, sweep,
transfer, calibrate.
"""

import json
import math
from pathlib import Path

import pytest

from mupscale.cli import main
from mupscale.planning import Plan
from mupscale.reading import Reading
from tests.odd.copying import HERE, copied

SAID = Reading.load(HERE / "mupscale.toml")
STUDY = """
name = "odd"
seeds = [1, 2]
keep_runs = true
{vary}
[space]
lr = ["2^-8", "2^-2"]
[search]
method = "grid"
step = 2.0
[engine]
workers = 0
[optimizer]
weight_decay = 0.1
std = 0.1
[trainer]
function = "{name}:train"
target = "{name}:build"
"""
CHECK = (
    "--vary width=32,64,128 --seeds 6 --steps 1 --batch 2 --sequence 32 --tolerance 0.35 "
    "--workers 0 --json --output "
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("odd")


@pytest.fixture(scope="module")
def name(folder) -> str:
    """The model with the file beside it, and two studies of it."""
    name = copied(folder)
    (folder / "study.toml").write_text(STUDY.format(name=name, vary="[vary]\nwidth = [16, 32]"))
    (folder / "proxy.toml").write_text(STUDY.format(name=name, vary=""))
    return name


@pytest.fixture(autouse=True)
def _inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def run(capsys, line: str) -> tuple[int, dict, str]:
    status = main(line.split())
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else {}, captured.err


def kept_plans(study: Path) -> dict[str, Plan]:
    """One for each cell, as its trainer got it."""
    return {path.parts[-3]: Plan.load(path) for path in sorted(study.rglob("plan.json"))}


def test_check(name, folder, capsys):
    status, shown, err = run(capsys, f"check {name}:build {CHECK} runs/check")
    assert (status, shown["verdict"]) == (0, "pass")
    assert err.startswith(f"reading: {folder / 'mupscale.toml'}\n")
    judged = {one["role"] for one in shown["findings"] if one["judged"]}
    assert judged == set(SAID.roles.values()) - {"gain"}


def test_standard_parametrization_fails_the_same_check(name, capsys):
    """So that the pass is not owed to a check that sees nothing."""
    status, shown, _ = run(capsys, f"check {name}:build {CHECK} runs/sp --rule sp")
    failed = {
        one["role"] for one in shown["findings"] if one["judged"] and one["verdict"] == "fail"
    }
    assert status == 1
    assert failed == set(SAID.roles.values()) - {"gain", "embedding"}


def test_sweep_then_transfer(name, folder, capsys):
    status, shown, err = run(capsys, "sweep study.toml --output runs/study --json")
    assert status == 0, err
    assert [cell["finished"] for cell in shown["cells"]] == [8, 8]
    plans = kept_plans(Path("runs/study"))
    assert {made.reading for made in plans.values()} == {SAID}
    assert plans["gqa-mup.width-32"].parameters["storeys.0.talk.beta.weight"].lr == 0.5
    target = f"--to {name}:build,width=64,depth=4 --tokens 1e6 --sequence 32"
    status, shown, err = run(capsys, f"transfer runs/study {target} --export json")
    assert status in (0, 3), err
    assert f"reading: {folder / 'mupscale.toml'}" in err
    made = Plan.from_json(json.dumps(shown["whole_plan"]))
    assert made.reading == SAID
    # From width 16 and depth 2 to 64 and 4, by hand: μP's 1/n, and 1/L on the branches, folded in.
    lr = {
        role: next(p.lr for p in made.parameters.values() if p.role == role)
        for role in SAID.roles.values()
    }
    std = {
        role: next(p.init_std for p in made.parameters.values() if p.role == role)
        for role in SAID.roles.values()
    }
    assert lr == pytest.approx({
        "embedding": 1, "gain": 1, "query": 1 / 4, "key": 1 / 4, "value": 1 / 4, "mlp_in": 1 / 4,
        "attention_output": 1 / 8, "mlp_out": 1 / 8, "readout": 1 / 4,
    })  # fmt: skip
    assert [
        std[role] for role in ("embedding", "query", "key", "mlp_out", "readout")
    ] == pytest.approx([1, 1 / 2, 1 / 2, 1 / 4, 1 / 4])


def test_calibrate(name, capsys):
    line = "calibrate proxy.toml --repetitions 1,2,4 --gammas 0,1,2 --output runs/calibrate --json"
    status, shown, err = run(capsys, line)
    assert status in (0, 3), err  # so few and short trials need not bound γ
    assert {cell["r"] for cell in shown["cells"]} == {1, 2, 4}
    assert shown["runs"] == 7 * 4 * 2
    plans = kept_plans(Path("runs/calibrate/factors"))
    assert len(plans) == 6
    for cell, made in plans.items():
        gamma, r = (
            float(part.partition(mark)[2]) for part, mark in zip(cell.split("."), "_-", strict=True)
        )
        rates = {p.role: p.lr for p in made.parameters.values()}
        for role in ("key", "value"):
            assert rates[role] / rates["query"] == pytest.approx(
                ((1 + math.sqrt(r)) / 2) ** gamma
            ), cell


def test_without_the_file_every_command_refuses_the_model_by_name(folder, capsys, monkeypatch):
    bare = folder / "bare"
    bare.mkdir()
    monkeypatch.chdir(bare)
    name = copied(bare, beside=None)
    (bare / "study.toml").write_text(STUDY.format(name=name, vary=""))
    for line in (
        f"plan {name}:build --base width=16,r=2",
        f"check {name}:build {CHECK} runs/check",
        "sweep study.toml --vary r=1,2",
        "calibrate study.toml --repetitions 1,2 --dry-run",
        f"transfer ../runs/study --to {name}:build --tokens 1e6 --sequence 32",
    ):
        status, _, err = run(capsys, line)
        assert status == 2, line
        assert "House" in err, line
        assert "reading:" not in err
