"""The width study: nothing but width, rule and the range of rates differs from file to file."""

import math
from pathlib import Path

import pytest

from mupscale.studies import Study, StudyConfig
from mupscale.studies.searching import grid
from mupscale.theory import RULES
from mupscale.training import RunConfig

RESULTS = Path(__file__).parents[2] / "results" / "width"
STUDIES = {
    path.parent.name: StudyConfig.load(path) for path in sorted(RESULTS.glob("*/study.toml"))
}
WIDTHS = {"64": 64, "128": 128, "256": 256, "512": 512, "512-at-64": 512}


def runs(name: str) -> dict[str, RunConfig]:
    """A run of each rule, all with the same rate and seed."""
    config = STUDIES[name]
    return {cell.rule_name: config.run_config(cell, {"lr": 2**-7}, 42) for cell in config.cells()}


def test_every_width_has_the_same_training_and_the_same_base():
    assert STUDIES.keys() == WIDTHS.keys()
    (reference,) = runs("64").values()
    for name, width in WIDTHS.items():
        for run in runs(name).values():
            assert (run.data, run.optimizer, run.length, run.record) == (
                reference.data, reference.optimizer, reference.length, reference.record,
            )  # fmt: skip
            assert run.base_model() == reference.model
            model = run.model
            assert (model.width, model.n_heads * 16, model.repetitions, model.head_size) == (
                width,
                width,
                4,
                16,
            )
            assert model.d_ff == 172 * width // 64


@pytest.mark.parametrize("name", ["128", "256", "512"])
def test_the_rules_are_gqa_mup_and_sp_with_either_std(name: str):
    rules = {rule: run.rule for rule, run in runs(name).items()}
    assert rules["gqa-mup"] == RULES["gqa-mup"]
    assert rules["sp"] == RULES["sp"]
    fan_in = RULES["sp"].with_(width="init")
    assert rules["sp-fan-in"].choices | {"name": ""} == fan_in.choices | {"name": ""}


def rates(name: str, rule: str) -> list[float]:
    config = STUDIES[name]
    (cell,) = (cell for cell in config.cells() if cell.rule_name == rule)
    points = grid(cell.space, config.seeds, config.search.step)
    assert {point.seed for point in points} == set(config.seeds)
    return sorted({round(math.log2(point.params["lr"]), 6) for point in points})


@pytest.mark.parametrize("rule", ["sp", "sp-fan-in", "gqa-mup"])
def test_the_range_of_sp_moves_down_by_an_octave_per_doubling_and_that_of_gqa_mup_stays(rule: str):
    at_base = rates("64", "gqa-mup")
    assert at_base == [-9 + k / 2 for k in range(9)]
    for name in ("128", "256", "512"):
        octaves = 0 if rule == "gqa-mup" else math.log2(WIDTHS[name] / 64)
        count = 7 if name == "512" else 9
        assert rates(name, rule) == [rate - octaves for rate in at_base[:count]]


def test_the_sp_rules_are_trained_at_512_with_the_rate_that_was_best_at_64():
    losses: dict[float, list[float]] = {}
    for trial in Study.open(RESULTS / "64").trials:
        assert trial.loss is not None
        losses.setdefault(trial.log2_lr, []).append(trial.loss)
    best = min(losses, key=lambda rate: sum(losses[rate]))
    assert {len(of_rate) for of_rate in losses.values()} == {3}
    assert [rates("512-at-64", rule) for rule in ("sp", "sp-fan-in")] == [[best], [best]]
