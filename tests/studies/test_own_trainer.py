"""The example of a trainer of one's own: an ordinary script, driven by a command, that applies a
plan.json as we do.
"""

import importlib.util
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

import mupscale
from mupscale.planning import Plan
from mupscale.studies import StudyConfig
from mupscale.studies.commands import check_command
from mupscale.studies.trainers import TrialAssignment, train
from mupscale.targets import resolve
from tests.studies.assignments import assigned, strict

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_trainer"
STUDY = tomllib.loads((EXAMPLE / "study.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_llama", EXAMPLE / "train_llama.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan(**settings: int) -> Plan:
    """For the target of the study, with its own heads as the base."""
    target = STUDY["trainer"]["target"]
    changed = target.replace(
        "num_key_value_heads=6", f"num_key_value_heads={settings['n_kv_heads']}"
    )
    return mupscale.plan(resolve(changed).model, base=resolve(target).model)


def trial(root: Path, lr: float) -> TrialAssignment:
    return assigned(
        root,
        StudyConfig.from_dict(STUDY).trainer,
        params={"lr": lr},
        plan=json.loads(plan(n_kv_heads=3).to_json()),
        time_limit=STUDY["engine"]["time_limit"],
    )


def test_the_script_knows_nothing_of_us():
    text = (EXAMPLE / "train_llama.py").read_text(encoding="utf-8")
    assert "import mupscale" not in text
    assert "from mupscale" not in text


def test_the_study_can_be_checked_before_it_runs():
    check_command(STUDY["trainer"]["command"], STUDY["trainer"]["metrics"], ["lr", "n_kv_heads"])


def test_a_trial_trains_and_its_evaluation_is_the_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = strict(train(trial(tmp_path, 2**-7)))
    assert result["status"] == "finished", result["error"]
    losses = [loss for _, loss in result["curve"]]
    assert len(losses) == 12  # 60 steps, one line in five
    assert losses[-1] < losses[0] - 1
    printed = (Path(trial(tmp_path, 1).folder) / "output.txt").read_text(encoding="utf-8")
    assert f"{result['loss']:.4f}" in printed.split("eval_loss")[-1]


def test_a_rate_that_is_far_too_high_diverges(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = strict(train(trial(tmp_path, 1e30)))
    assert (result["status"], result["loss"]) == ("diverged", None), result["error"]


def test_the_script_applies_a_plan_as_the_plan_itself_does(script, tmp_path):
    made = plan(n_kv_heads=3)
    made.save(tmp_path / "plan.json")
    model = script.build(script.ModelArguments(n_kv_heads=3))
    optimizer = script.planned_optimizer(
        model, str(tmp_path / "plan.json"), std=0.1, lr=0.01, decay=0.1
    )
    made.verify(_named(optimizer, model), model=model, lr=0.01, weight_decay=0.1, eps=1e-8, std=0.1)
    for name, weight in model.named_parameters():
        expected = made.parameters[name]
        if expected.drawn:
            assert weight.std().item() == pytest.approx(0.1 * expected.init_std, rel=0.05)
        else:
            assert torch.all(weight == expected.start)


def test_the_script_leaves_a_gain_without_a_known_start_as_the_model_made_it(script, tmp_path):
    """It drew such a gain with a standard deviation of 0: zeros, behind which nothing learns."""
    made = plan(n_kv_heads=3)
    gains = {
        name: replace(p, start=None) for name, p in made.parameters.items() if p.role == "gain"
    }
    replace(made, parameters=dict(made.parameters) | gains).save(tmp_path / "plan.json")
    model = script.build(script.ModelArguments(n_kv_heads=3))
    for name in gains:
        torch.nn.init.constant_(model.get_parameter(name), 0.75)
    script.planned_optimizer(model, str(tmp_path / "plan.json"), std=0.1, lr=0.01, decay=0.1)
    assert gains
    for name in gains:
        assert torch.all(model.get_parameter(name) == 0.75)


def _named(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
    names = {id(weight): name for name, weight in model.named_parameters()}
    for group in optimizer.param_groups:
        group["param_names"] = [names[id(weight)] for weight in group["params"]]
    return optimizer


def test_the_script_refuses_a_plan_that_it_cannot_apply(script, tmp_path):
    target = resolve(STUDY["trainer"]["target"]).model
    mupscale.plan(target, base={"width": 48}, multipliers="hook").save(tmp_path / "plan.json")
    with pytest.raises(SystemExit, match="without hooks"):
        script.planned_optimizer(target, str(tmp_path / "plan.json"), std=0.1, lr=0.01, decay=0.1)
