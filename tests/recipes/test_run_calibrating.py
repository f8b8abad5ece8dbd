"""Calibration over batch and tokens of a trainer whose exponents are known."""

import json
import sys
from typing import Any

import pytest

import mupscale as mu
from mupscale.cli import main
from mupscale.errors import MupscaleError, OptionError
from mupscale.recipes.run_calibrating import (
    RunCalibration,
    calibrated_run,
    carried_rates,
    is_run_calibration,
    run_answers,
    run_calibration,
    sized_tables,
)
from mupscale.studies import Study
from mupscale.theory import Rule, RunSize, derive_run, read_rule
from mupscale.theory.rule_files import exponent_formula, write_rule
from tests.recipes.studies import DENSE, TINY
from tests.recipes.test_calibrating import EVIDENCE

A, B = 0.4, 0.2
BOWL = """
import math
import random


def train(trial):
    batch = math.log2(trial.variant["batch"] / 4)
    length = math.log2(trial.variant["tokens"] / 2**20)
    x = math.log2(trial.lr) + 7 - {a} * batch + {b} * length
    source = random.Random(f"{{trial.seed}} {{trial.lr}} {{batch}} {{length}}")
    loss = 2 - 0.1 * length + 0.1 * x * x + 0.01 * trial.seed + source.gauss(0, {noise})
    if "weight_decay" in trial.params:
        y = math.log2(trial.params["weight_decay"]) + 3 + 0.5 * length
        loss += 0.02 * y * y
    return {{"loss": loss, "tokens": trial.variant["tokens"], "steps": 100}}
"""
PROXY: dict[str, Any] = {
    "name": "runs",
    "rules": ["gqa-mup"],
    "seeds": [1, 2, 3],
    "space": {"lr": ["2^-9", "2^-5"]},
    "engine": {"workers": 0},
    "data": {"sequence": 128},
    "length": {"batch": 4, "tokens": 2**20},
    "trainer": {"function": "bowl:train", "target": "gpt:cpu_64_r1"},
}
OVER = ["batch", "tokens"]


@pytest.fixture
def bowl(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bowl", raising=False)
    monkeypatch.chdir(tmp_path)

    def write(noise: float) -> None:
        text = BOWL.format(a=A, b=B, noise=noise)
        (tmp_path / "bowl.py").write_text(text, encoding="utf-8")

    write(0.001)
    return write


def run(made: RunCalibration, folder: Any) -> Study:
    for study in made.studies(folder):
        study.run()
    return Study.open(folder)


def test_it_finds_the_exponents_and_every_command_takes_the_rule(bowl, tmp_path, capsys):
    made = run_calibration(PROXY, OVER, tokens=[2**20, 2**22])
    assert made.runs() == 3 * 2 * 9 * 3
    assert made.tokens() == 3 * 9 * 3 * (2**20 + 2**22)
    ranges = [part.space["lr"] for part in made.parts.values()]
    assert [low / ranges[0][0] for low, _ in ranges] == pytest.approx([1, 2**0.5, 2])

    study = run(made, tmp_path / "c")
    assert is_run_calibration(tmp_path / "c")
    assert RunCalibration.open(tmp_path / "c").fingerprint() == made.fingerprint()
    found = run_answers(study)
    rule, evidence = calibrated_run(made, found)
    for axis, true in (("batch", A), ("tokens", -B)):
        value, low, high = evidence.exponents[f"lr.{axis}"]
        assert low <= true <= high
        assert value == pytest.approx(true, abs=0.03)
    assert evidence.ranges == {"batch": (512, 2048), "tokens": (2**20, 2**22)}

    path = tmp_path / "rule.json"
    write_rule(path, rule, evidence)
    again = read_rule(path)
    assert again == rule
    size = {"base": RunSize(512, 2**20), "target": RunSize(2048, 2**22)}
    lr = derive_run(again.run, "adamw").evaluate(**size).lr
    assert lr == pytest.approx(4 ** (A - B), rel=0.05)
    assert main(["derive", "run", "--rule", str(path)]) == 0
    shown = ["plan", "gpt:cpu_64_r1", "--base", "width=32", "--rule", str(path)]
    assert main(shown) == 0
    assert "lr ∝ B^0.4" in capsys.readouterr().out


def test_a_recipe_follows_what_was_measured_and_warns_beyond_it(bowl, tmp_path):
    made = run_calibration(PROXY, ["batch"], batches=[4, 16])
    rule, evidence = calibrated_run(made, run_answers(run(made, tmp_path / "c")))
    path = tmp_path / "rule.json"
    write_rule(path, rule, evidence)
    plain, measured = (
        mu.transfer(DENSE, to=TINY, run=mu.TargetRun(tokens=1e7, run=choice))
        for choice in (None, str(path))
    )
    factor = plain.crossing.batch_growth ** evidence.exponents["lr.batch"][0]
    for name, parameter in plain.plan.parameters.items():
        assert measured.plan.parameters[name].lr == pytest.approx(factor * parameter.lr)
    assert any("for which the rule's exponents were measured" in one for one in measured.risks)
    write_rule(path, Rule("calibrated", kv_factor=exponent_formula(0.4)), EVIDENCE)
    with pytest.raises(OptionError, match="says nothing about batch and tokens"):
        mu.transfer(DENSE, to=TINY, run=mu.TargetRun(tokens=1e7, run=str(path)))


def test_published_rules_stand_beside_what_was_measured(bowl, tmp_path):
    made = run_calibration(PROXY, OVER, batches=[4, 16], tokens=[2**20, 2**22])
    study = run(made, tmp_path / "c")
    by_name = {one.choice: one for one in carried_rates(sized_tables(study))}
    true = 2 * A - 2 * B
    for name, octaves in (("none", 0.0), ("sde", 1.0), ("completed-p", 0.0), ("bjorck", -0.64)):
        one = by_name[name]
        assert one.octaves == pytest.approx(octaves)
        assert one.off.widest.value == pytest.approx(octaves - true, abs=0.05)
        assert one.regret.widest.value == pytest.approx(0.1 * (octaves - true) ** 2, abs=0.01)
    assert by_name["sde"].off.verdict == "too high"
    assert by_name["bjorck"].off.verdict == "too low"
    assert by_name["sde"].regret.verdict == "costs loss"


def test_decay_has_exponents_of_its_own(bowl, tmp_path):
    space = {"lr": ["2^-8", "2^-6"], "weight_decay": ["2^-5", "2^-2.5"]}
    proxy = {**PROXY, "space": space, "seeds": [1, 2]}
    made = run_calibration(proxy, ["tokens"], tokens=[2**20, 2**21, 2**22])
    _, evidence = calibrated_run(made, run_answers(run(made, tmp_path / "c")))
    assert evidence.exponents["weight_decay.tokens"][0] == pytest.approx(-0.5, abs=0.1)
    assert evidence.formula.startswith("lr=D**-0.2")


def test_runs_that_do_not_bound_them_write_no_rule(bowl, tmp_path, capsys):
    bowl(0.2)
    (tmp_path / "p.toml").write_text(toml(PROXY | {"seeds": [1, 2]}), encoding="utf-8")
    assert main(["calibrate", "p.toml", "--over", "batch", "--output", "c"]) == 3
    assert "No rule was written" in capsys.readouterr().out
    assert not (tmp_path / "c" / "rule.json").exists()


def test_the_command_continues_and_prints_the_same_again(bowl, tmp_path, capsys):
    (tmp_path / "p.toml").write_text(toml(PROXY), encoding="utf-8")
    flags = ["--over", "batch", "--batches", "4,16", "--output", "c"]
    assert main(["calibrate", "p.toml", *flags, "--dry-run"]) == 0
    assert "to run: 2 cells, 54 runs" in capsys.readouterr().out
    assert main(["calibrate", "p.toml", *flags]) == 0
    out = capsys.readouterr().out
    assert "batch: rises, exponent 0.40" in out
    assert "sde" in out
    (tmp_path / "bowl.py").write_text("raise RuntimeError", encoding="utf-8")
    assert main(["calibrate", "c"]) == 0
    assert capsys.readouterr().out == out
    assert main(["calibrate", "c", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["evidence"]["exponents"]["lr.batch"][0] == pytest.approx(A, abs=0.03)
    assert main(["calibrate", "c", "--over", "tokens"]) == 2


def toml(values: dict[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(values)


def test_a_rule_file_that_was_edited_is_refused(bowl, tmp_path):
    made = run_calibration(PROXY, ["batch"], batches=[4, 16])
    rule, evidence = calibrated_run(made, run_answers(run(made, tmp_path / "c")))
    path = tmp_path / "rule.json"
    write_rule(path, rule, evidence)
    for old, new, message in (
        (f'"run": "{rule.run}"', '"run": "lr=B**0.5"', "the file was edited"),
        ('"lr.batch"', '"lr.bach"', "is not one of lr or weight_decay over batch or tokens"),
        ('"ranges": {', '"ranges": 3, "x": {', "unknown part of the evidence"),
    ):
        text = path.read_text(encoding="utf-8")
        assert old in text
        (tmp_path / "edited.json").write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(MupscaleError, match=message):
            read_rule(tmp_path / "edited.json")


def test_outside_of_the_measured_range_a_plan_warns(bowl, tmp_path):
    made = run_calibration(PROXY, ["batch"], batches=[4, 16])
    rule, _ = calibrated_run(made, run_answers(run(made, tmp_path / "c")))
    model = mu.targets.resolve("gpt:cpu_64_r1").model
    plan = mu.plan(model, base={"width": 32}, rule=rule)
    size = mu.RunSize(batch=512, tokens=2**20)
    inside = plan.with_run(base=size, target=mu.RunSize(batch=2048, tokens=2**20))
    assert inside.warnings == plan.warnings
    beyond = plan.with_run(base=size, target=mu.RunSize(batch=65_536, tokens=2**20))
    (warning,) = set(beyond.warnings) - set(plan.warnings)
    assert "65,536 tokens lies outside 512 to 2,048" in warning


@pytest.mark.parametrize(
    ("changes", "over", "more", "message"),
    [
        ({"vary": {"r": [1, 2]}}, OVER, {}, "leave vary out"),
        ({"rules": ["mup", "sp"]}, OVER, {}, "several rules"),
        ({"rules": [{"name": "s", "run": "sde"}]}, OVER, {}, "already scales with batch"),
        ({"space": {"lr": [0.1, 0.2], "std": [0.1, 0.2]}}, OVER, {}, "space has std"),
        ({"search": {"method": "adaptive"}}, OVER, {}, 'Use "grid"'),
        ({}, OVER, {"batches": [4]}, "at least two different"),
        ({}, OVER, {"batches": [0, 4]}, "at least two different"),
        ({}, ["batch"], {"tokens": [100, 200]}, "Add tokens to --over"),
        ({}, OVER, {"batches": [4, 2**20]}, "less than one batch"),
        ({"length": {"batch": 4}}, OVER, {}, "needs length.tokens"),
    ],
)
def test_a_mistake_is_one_line(bowl, changes, over, more, message):
    with pytest.raises(MupscaleError, match=message) as error:
        run_calibration({**PROXY, **changes}, over, **more)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--over", "bach"], "Did you mean 'batch'"),
        (["--over", "batch", "--gammas", "0,1,2"], "--gammas does not go with"),
        (["--batches", "4,8"], "--batches does not go with a calibration over r"),
        (["--over", "batch", "--batches", "4,x"], "is not a list of whole numbers"),
        (["--over", "batch", "--question", "loss"], "leave it out over batch"),
    ],
)
def test_wrong_flags_are_one_line(bowl, tmp_path, capsys, flags, message):
    (tmp_path / "p.toml").write_text(toml(PROXY), encoding="utf-8")
    assert main(["calibrate", "p.toml", *flags]) == 2
    assert message in capsys.readouterr().err
