"""Factors by kind of weight in a study: searched like any parameter, trained with, and carried into
the plan of a trainer and the recipe of a target.
"""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

import mupscale as mu
from mupscale.cli import main
from mupscale.errors import MupscaleError, OptionError
from mupscale.planning import Plan
from mupscale.studies import StudyConfig
from mupscale.studies.cell_run import fingerprint_of
from mupscale.studies.planning import check_plan, plan_dict
from mupscale.studies.quick import QUICK
from mupscale.studies.trainers import TrialAssignment
from mupscale.training.preparation import plan_for
from tests.recipes.studies import TINY, written

SPACE = {"lr": ["2^-8", "2^-4"], "lr.embedding": ["2^-2", "2^2"], "std.readout": [0.5, 8]}
RANDOM = {"method": "random", "trials": 8}


def study(**changes: Any) -> StudyConfig:
    return StudyConfig.from_dict({**QUICK, "space": SPACE, "search": RANDOM, **changes})


def test_a_run_has_the_factors_of_its_point_in_its_plan():
    config = study()
    (cell,) = config.cells()
    run = config.run_config(cell, {"lr": 0.01, "lr.embedding": 4.0, "std.readout": 2.0}, 1)
    assert run.optimizer.factors == {"lr.embedding": 4.0, "std.readout": 2.0}
    plain = config.run_config(cell, {"lr": 0.01}, 1)
    with_them, without = (plan_for(one).parameters for one in (run, plain))
    for name, p in without.items():
        other = with_them[name]
        assert other.lr == p.lr * (4 if p.role in ("embedding", "position") else 1)
        assert other.init_std == p.init_std * (2 if p.role == "readout" else 1)
    assert tomllib.loads(run.to_toml())["optimizer"]["factors"] == run.optimizer.factors
    assert type(run).from_dict(tomllib.loads(run.to_toml())) == run


def test_fixed_factors_stand_beside_searched_ones():
    optimizer = {**QUICK["optimizer"], "factors": {"lr": {"gains": 2}, "lr.embedding": 8}}
    config = study(optimizer=optimizer)
    run = config.run_config(config.cells()[0], {"lr": 0.01, "lr.embedding": 4.0}, 1)
    assert run.optimizer.factors == {"lr.gains": 2.0, "lr.embedding": 4.0}


def test_epsilon_and_beta2_are_searched_as_values():
    space = {"lr": ["2^-8", "2^-4"], "eps": [1e-12, 1e-8], "one_minus_beta2": [0.01, 0.1]}
    config = study(space=space)
    run = config.run_config(config.cells()[0], {"eps": 1e-9, "one_minus_beta2": 0.02}, 1)
    assert run.optimizer.eps == 1e-9
    assert run.optimizer.betas == pytest.approx((0.9, 0.98))


def test_a_run_without_factors_has_the_fingerprint_it_always_had():
    """So that records from before this setting are reused."""
    config = study(space={"lr": ["2^-8", "2^-4"]})
    (cell,) = config.cells()
    run = config.run_config(cell, {"lr": 0.01}, 1)
    assert "factors" not in run.to_dict()["optimizer"]

    def print_of(params: dict[str, float]) -> str:
        chosen = study().run_config(cell, params, 1)
        values = {"trial": "a/0001", "rule": "mup", "variant": {}, "seed": 1, "folder": "x"}
        return fingerprint_of(TrialAssignment(**values, params=params, config=chosen))

    prints = [print_of({"lr": 0.01, "lr.embedding": factor}) for factor in (1.0, 2.0)]
    assert prints[0] != prints[1]


def test_toml_may_write_a_factor_without_quotes_where_no_value_has_its_name():
    text = 'lr = ["2^-8", "2^-4"]\nstd.embedding = [0.5, 2]\n"lr.gains" = [0.5, 2]'
    config = study(space=tomllib.loads(text))
    assert set(config.space) == {"lr", "std.embedding", "lr.gains"}
    assert StudyConfig.from_dict(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"lr.embeding": [0.5, 2]}, r"lr\.embeding.*Did you mean 'lr\.embedding'"),
        ({"lr.router": [0.5, 2]}, r"lr\.router: the model has no such weights"),
        ({"std.gains": [0.5, 2]}, "starts at a constant"),
        ({"lr.embedding": [0, 2]}, r"space\.lr\.embedding: 0 must be a finite number above 0"),
        ({"beta2": [0.9, 0.99]}, "Search 1 − β2 instead"),
        ({"one_minus_beta2": [0.1, 1]}, "must be below 1"),
    ],
)
def test_what_cannot_be_searched_is_one_clear_line(space: dict[str, Any], told: str):
    with pytest.raises(MupscaleError, match=told) as error:
        study(space={"lr": ["2^-8", "2^-4"], **space})
    assert "\n" not in str(error.value)


def test_a_fixed_factor_of_zero_is_refused():
    with pytest.raises(OptionError, match=r"lr\.embedding = 0.0 must be a finite number above 0"):
        study(optimizer={**QUICK["optimizer"], "factors": {"lr.embedding": 0}})


class TestOwnTrainers:
    def config(self, **changes: Any) -> StudyConfig:
        trainer = {"command": ["train", "{lr}", "{plan}"], "target": TINY}
        values = {"name": "own", "rules": ["gqa-mup"], "space": SPACE, "search": RANDOM}
        values |= {"base": {"width": 32}, "trainer": trainer}
        return StudyConfig.from_dict(values | changes)

    def test_they_receive_them_in_the_plan(self):
        config = self.config()
        (cell,) = config.cells()
        plain = plan_dict(config, cell, {"lr": 0.01})
        found = plan_dict(config, cell, {"lr": 0.01, "lr.embedding": 4.0, "std.readout": 2.0})
        assert plain is not None
        assert found is not None
        assert "factors" not in plain
        assert found["factors"] == {"lr.embedding": 4.0, "std.readout": 2.0}
        name = "model.embed_tokens.weight"
        assert found["parameters"][name]["lr"] == 4 * plain["parameters"][name]["lr"]
        assert (
            Plan.from_json(json.dumps(found)).parameters[name].lr == found["parameters"][name]["lr"]
        )

    def test_a_model_without_such_weights_and_a_study_without_a_plan_are_refused(self):
        check_plan(self.config())
        with pytest.raises(OptionError, match="no such weights"):
            check_plan(self.config(space={"lr": [0.1, 1], "lr.router": [0.5, 2]}))
        trainer = {"command": ["train", "{lr}"]}
        with pytest.raises(OptionError, match=r"lr\.embedding reaches a trainer in its plan"):
            check_plan(self.config(trainer=trainer, rules=["sp"]))


class TestTheCommandLine:
    def test_a_range_is_given_by_a_flag(self, capsys: pytest.CaptureFixture[str]):
        flags = ["--factor", "lr.embedding=2^-2,2^2", "--method", "random", "--trials", "9"]
        assert main(["sweep", *flags, "--show-config"]) == 0
        shown = tomllib.loads(capsys.readouterr().out)
        assert shown["space"]["lr.embedding"] == [0.25, 4.0]

    @pytest.mark.parametrize(
        ("flag", "told"),
        [
            ("lr.embedding", "write NAME=LOW,HIGH"),
            ("lr.embeding=1,2", "Did you mean 'lr.embedding'"),
            ("lr.router=1,2", "no such weights"),
            ("lr.embedding=0,2", "above 0"),
        ],
    )
    def test_a_mistake_is_one_message_and_status_2(
        self, flag: str, told: str, capsys: pytest.CaptureFixture[str]
    ):
        method = ["--method", "random", "--trials", "9"]
        assert main(["sweep", "--factor", flag, *method, "--show-config"]) == 2
        assert told in " ".join(capsys.readouterr().err.split())


def test_a_recipe_and_its_exports_carry_them(tmp_path: Path):
    config = {
        "name": "factors",
        "rules": ["gqa-mup"],
        "seeds": [1, 2, 3],
        "space": {"lr": ["2^-9", "2^-3"], "lr.embedding": ["2^-3", "2^3"]},
        "search": {"method": "grid", "step": 1},
        "model": {"width": 32, "depth": 2, "n_heads": 4, "n_kv_heads": 1, "vocabulary": 128},
        "optimizer": {"factors": {"std.readout": 2.0}},
        "data": {"sequence": 64},
        "length": {"steps": 100, "batch": 4},
    }
    trials = [
        {
            "cell": "gqa-mup", "rule": "gqa-mup", "seed": seed, "steps": 100, "tokens": 25600,
            "params": {"lr": 2.0**x, "lr.embedding": 2.0**y},
            "loss": 3 + 0.04 * (x + 6) ** 2 + 0.03 * (y - 1) ** 2 + 0.0005 * math.sin(9 * x + seed),
        }
        for seed in (1, 2, 3)
        for x in range(-9, -2)
        for y in range(-3, 4)
    ]  # fmt: skip
    recipe = mu.transfer(written(tmp_path, config, trials), to=TINY)
    found = recipe.factors["lr.embedding"]
    assert (found.value, found.source) == (pytest.approx(2, rel=0.1), "searched")
    assert found.low < 2 < found.high
    assert recipe.factors["std.readout"].value == 2.0
    assert recipe.plan.factors == {"std.readout": 2.0, "lr.embedding": found.value}
    rows = {row.pattern: row for row in recipe.rows}
    table, head = rows["model.embed_tokens.weight"], rows["lm_head.weight"]
    assert table.lr == pytest.approx(recipe.lr.value * found.value)
    plain = mu.plan(mu.targets.resolve(TINY).model, base={"width": 32, "depth": 2})
    assert head.std == pytest.approx(
        2 * recipe.std.value * plain.parameters["lm_head.weight"].init_std
    )
    assert "factor lr.embedding" in recipe.to_text()
    assert recipe.to_dict()["factors"]["lr.embedding"]["value"] == found.value
    assert f"{table.lr:.6g}"[:6] in recipe.export("pytorch")
