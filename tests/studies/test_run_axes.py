"""Batch and tokens as axes of a study, and rules that scale with them."""

import json
from typing import Any

import pytest

from mupscale.errors import MupscaleError
from mupscale.models import GPT
from mupscale.planning import Plan
from mupscale.studies import StudyConfig
from mupscale.studies.config import Cell
from mupscale.studies.measured import measured, member_label
from mupscale.studies.planning import plan_dict
from mupscale.studies.study import Study
from mupscale.training import lengths
from mupscale.training.preparation import optimizers, plan_for

SEQUENCE = 64
VALUES: dict[str, Any] = {
    "name": "run-axes",
    "rules": ["gqa-mup"],
    "seeds": [1],
    "space": {"lr": ["2^-8", "2^-6"]},
    "search": {"method": "grid", "step": 1.0},
    "model": {"width": 32, "depth": 1, "n_heads": 2, "vocabulary": 256, "context": SEQUENCE},
    "data": {"sequence": SEQUENCE},
    "length": {"warmup_share": 0.1},
    "vary": {"batch": [4, 16], "tokens": [20_480, 81_920]},
}
SDE = {"name": "sde", "run": "sde"}
TRAINER = {
    "function": "toy:train",
    "target": "gpt:cpu_64_r2",
}


def config(**changes: Any) -> StudyConfig:
    return StudyConfig.from_dict({**VALUES, **changes})


def run_of(made: StudyConfig, cell: Cell) -> Any:
    return made.run_config(cell, {"lr": 2**-7}, 1)


def cell(made: StudyConfig, batch: int, tokens: int) -> Cell:
    return next(c for c in made.cells() if c.run_sizes == {"batch": batch, "tokens": tokens})


def prepare(changes: dict[str, Any]) -> None:
    """As far as the first step of every cell."""
    made = config(**changes)
    for one in made.cells():
        run = run_of(made, one)
        optimizers(plan_for(run), GPT(run.model), run.optimizer)


def test_every_batch_meets_every_length_and_the_model_stays():
    made = config()
    assert [one.name for one in made.cells()][:2] == [
        "gqa-mup.batch-4.tokens-20480",
        "gqa-mup.batch-4.tokens-81920",
    ]
    for one in made.cells():
        run, (batch, tokens) = run_of(made, one), one.run_sizes.values()
        found = lengths(run)
        assert (found.batch, found.tokens) == (batch, tokens)
        assert found.steps == tokens // (batch * SEQUENCE)
        assert found.warmup == round(0.1 * found.steps)
        assert run.model.width == 32
        assert one.model_sizes == {}


def test_they_were_tuned_at_the_least_unless_the_base_says_otherwise():
    made = config(rules=[{**SDE, "depth": "none"}])
    base = run_of(made, made.cells()[-1]).base
    assert (base["batch"], base["tokens"]) == (4, 20_480)
    other = config(base={"batch": 8})
    assert run_of(other, other.cells()[0]).base == {"batch": 8, "tokens": 20_480}
    assert run_of(other, other.cells()[0]).base_model().width == 32


def test_a_rule_that_scales_with_them_reaches_the_optimizer():
    """√4 on the rate, and 4 on 1 − β at four times the batch; the length does not enter."""
    made = config(rules=[SDE])
    small, large = (run_of(made, cell(made, batch, 81_920)) for batch in (4, 16))
    groups = []
    for run in (small, large):
        model = GPT(run.model)
        (optimizer,) = optimizers(plan_for(run), model, run.optimizer)
        groups.append(optimizer.param_groups)
    for one, other in zip(*groups, strict=True):
        assert other["lr"] == pytest.approx(2 * one["lr"])
        assert other["eps"] == pytest.approx(one["eps"] / 2)
        assert 1 - other["betas"][1] == pytest.approx(4 * (1 - one["betas"][1]))
    unscaled = config()
    assert plan_for(run_of(unscaled, unscaled.cells()[-1])).run is None


def test_momentum_is_changed_with_the_batch():
    made = config(rules=[SDE], optimizer={"name": "momentum"})
    run = run_of(made, cell(made, 16, 81_920))
    (optimizer,) = optimizers(plan_for(run), GPT(run.model), run.optimizer)
    for group in optimizer.param_groups:
        assert group["momentum"] == pytest.approx(0.6)


def test_own_trainers_get_the_numbers_and_the_plan():
    made = config(
        rules=[SDE], trainer=TRAINER, model={}, length={}, data={"sequence": SEQUENCE},
        base={"width": 32, "batch": 4, "tokens": 20_480},
    )  # fmt: skip
    plans = [
        Plan.from_json(json.dumps(plan_dict(made, cell(made, batch, 81_920), {"lr": 1.0})))
        for batch in (4, 16)
    ]
    small, large = (next(iter(plan.parameters.values())).lr for plan in plans)
    assert large == pytest.approx(2 * small)
    assert plans[1].run is not None
    assert plans[1].run.target.batch == 16 * SEQUENCE
    assert made.cells()[0].variant == {"batch": 4, "tokens": 20_480}


def test_two_axes_are_no_line_and_one_is(tmp_path):
    both = Study.create(config(), tmp_path / "both")
    assert measured(both)[1] is None
    single = Study.create(
        config(vary={"batch": [4, 16]}, length={"tokens": 81_920}), tmp_path / "b"
    )
    assert measured(single)[1] == "batch"
    assert member_label(single.config.cells()[0]) == "batch = 4"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": {"steps": 10}}, "would change the tokens with the batch"),
        ({"vary": {"batch": [4]}, "length": {}}, "give steps, tokens, or tokens_per_parameter"),
        ({"vary": {"batch": [4, 512], "tokens": [20_480]}}, "less than one batch"),
        ({"vary": {"batch": [0, 4], "tokens": [20_480]}}, "each at least 1"),
        ({"vary": {"bach": [4]}}, "batch"),
        ({"base": {"batch": 0}}, "base.batch = 0 must be at least 1"),
        ({"length": {"warmup_share": 1.5}}, "warmup_share = 1.5 must be from 0 to 1"),
        ({"length": {"warmup_share": 0.1, "warmup": 3}}, "set the same thing"),
        ({"length": {"tokens_per_parameter": 2.0}}, "set the same thing"),
        (
            {"rules": [SDE], "vary": {}, "length": {"steps": 10, "batch": 4}},
            "does not say in which run its values were tuned",
        ),
        (
            {
                "rules": [SDE], "vary": {"batch": [4, 2000], "tokens": [20_480_000]},
            },
            "no moving average",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(changes, message):
    with pytest.raises(MupscaleError) as error:
        prepare(changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_configs_without_them_are_unchanged():
    made = config(vary={}, length={"steps": 10, "batch": 4})
    table = run_of(made, made.cells()[0]).to_dict()
    assert table["length"].keys() == {"steps", "batch", "batch_rule", "floor", "accumulate"}
    assert "batch" not in table["base"]
