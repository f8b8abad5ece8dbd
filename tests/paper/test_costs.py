"""What a study costs: counted against a real one, reckoned by hand, timed against real training."""

import dataclasses
import json
import math
import time
from pathlib import Path

import pytest

from mupscale import training
from mupscale.errors import OptionError
from mupscale.models import GPTConfig
from mupscale.paper import costs
from mupscale.paper.catalogue import load
from mupscale.paper.costs import (
    adaptive_runs,
    step_seconds,
    study_cost,
    study_work,
    timed_step,
    training_operations,
)
from mupscale.studies import StudyConfig
from mupscale.studies.config import Search
from mupscale.training.devices import one_thread

DENSE = Path(__file__).parents[2] / "results/gqa-dense"
SMALL = {
    "name": "small", "rules": ["mup", "gqa-mup"], "seeds": [1, 2],
    "space": {"lr": ["2^-8", "2^-5"]},
    "search": {"method": "grid", "step": 1.0},
    "model": {"width": 64, "depth": 2, "n_heads": 4, "vocabulary": 256, "context": 64},
    "base": {"width": 32}, "data": {"sequence": 64}, "length": {"steps": 30, "batch": 8},
}  # fmt: skip


@pytest.fixture
def a_second_a_step(monkeypatch):
    monkeypatch.setattr(costs, "step_seconds", lambda work: [1.0] * len(work))


def with_search(**values: object) -> StudyConfig:
    return dataclasses.replace(StudyConfig.from_dict(SMALL), search=Search(**values))


def test_runs_and_tokens_are_those_of_a_study_that_was_run(a_second_a_step):
    lines = (DENSE / "records.jsonl").read_text(encoding="utf-8").splitlines()
    results = [json.loads(line)["result"] for line in lines if "result" in json.loads(line)]
    cost = study_cost(StudyConfig.load(DENSE / "study.toml"), workers=2)
    assert (cost.runs, cost.tokens) == (len(results), sum(result["tokens"] for result in results))


def test_workers_share_the_hours_and_there_are_never_more_than_runs(a_second_a_step):
    config = StudyConfig.from_dict(SMALL)
    alone, two, many = (study_cost(config, workers).hours for workers in (1, 2, 1000))
    assert alone == pytest.approx(2 * two)
    assert many == pytest.approx(alone / 16)
    # 16 runs of 30 steps, and 16 evaluations of 8 sequences, a third of a step each.
    assert alone * 3600 == pytest.approx(16 * (30 + 16 / 3))
    assert study_cost(config, 0).hours == alone


def test_every_search_has_its_number_of_runs(a_second_a_step):
    assert study_cost(with_search(method="random", trials=25), 1).runs == 50
    assert study_cost(with_search(method="grid", step=0.5), 1).runs == 2 * 2 * 7
    assert study_cost(with_search(method="grid", step=0.5, trials=5), 1).runs == 10
    a_run = 30 * 8 * 64
    assert study_cost(with_search(method="tpe", tokens=3.5 * a_run), 1).runs == 8


def test_the_adaptive_search_takes_what_replays_took(a_second_a_step):
    """9.8 full runs with one proposal at a time, 11.6 with three:
    results/benchmarks/search_cost.txt.
    """
    assert adaptive_runs(with_search(at_once=1)) == math.ceil(9.8)
    assert adaptive_runs(with_search(at_once=3)) == math.ceil(11.6)
    assert adaptive_runs(with_search(tolerance=0.125)) > 2 * adaptive_runs(with_search())
    assert study_cost(with_search(tolerance=0.01), 1).runs == 2 * 60
    assert study_cost(with_search(trials=6), 1).runs == 12


def test_operations_are_six_for_each_parameter_and_those_of_attention():
    """kvr_12 for a token, by hand: 7 blocks of 12·768² and the head; causal attention over half of
    8192 tokens.
    """
    model = GPTConfig(width=768, depth=7, n_heads=12, vocabulary=50304)
    matrices = 7 * 12 * 768**2 + 768 * 50304
    gains = 15 * 768
    attention = 3 * 7 * 2 * 2 * 768 * (8192 / 2)  # thrice the forward pass: scores and sums
    assert training_operations(model, 8192, tokens=1) == 6 * (matrices + gains) + attention


def test_a_large_model_is_reckoned_from_the_speed_of_a_product(monkeypatch):
    monkeypatch.setattr(costs, "_product_rate", lambda device, kind: 1e12)
    monkeypatch.setattr(costs, "timed_step", None)
    config = dataclasses.replace(load("gqa-ablation", "paper"), rules=("mup",), rule_space={})
    work = study_work(config)
    a_step = training_operations(work[0].config.model, 8192, tokens=33 * 8192)
    share = costs.UTILISATION["cuda" if costs.torch.cuda.is_available() else "cpu"]
    assert step_seconds(work)[0] == pytest.approx(a_step / (1e12 * share))
    assert study_cost(config, 1).runs == 6 * 3 * 13


def test_few_shapes_are_timed_and_the_rest_lie_between(monkeypatch):
    timed: list[float] = []

    def watched(work: costs.Work) -> float:
        timed.append(work.operations)
        return work.operations / 1e9

    monkeypatch.setattr(costs, "timed_step", watched)
    config = StudyConfig.from_dict({**SMALL, "vary": {"width": [16, 32, 48, 64, 80, 96, 112, 128]}})
    work = study_work(config)
    seconds = step_seconds(work)
    sizes = sorted({one.operations for one in work})
    assert len(timed) == 4
    assert (min(timed), max(timed)) == (sizes[0], sizes[-1])
    assert seconds == pytest.approx([one.operations / 1e9 for one in work])


def test_a_timed_step_takes_as_long_as_training_does(tmp_path):
    """Time of the processor, so that other work on the machine does not count, and one thread, as
    in a study: threads that wait for each other count as busy. Start and end of a run cancel out.
    """
    config = StudyConfig.from_dict(SMALL)
    work = study_work(config)[0]
    estimate = step_seconds([work])[0]

    def seconds(steps: int) -> float:
        length = dataclasses.replace(work.config.length, steps=steps)
        began = time.process_time()
        with one_thread():
            training.run(dataclasses.replace(work.config, length=length), tmp_path / str(steps))
        return time.process_time() - began

    seconds(2)
    real = (seconds(70) - seconds(10)) / 60
    assert real / 2.5 < estimate < real * 2.5


def test_of_a_large_batch_a_part_is_run_and_counts_for_the_whole(monkeypatch):
    work = study_work(StudyConfig.from_dict(SMALL))[0]
    whole = timed_step(work)
    monkeypatch.setattr(costs, "_OPERATIONS", work.operations / 4)
    assert whole / 2.5 < timed_step(work) < whole * 2.5


def test_a_trainer_of_ones_own_is_not_reckoned():
    config = StudyConfig.from_dict(
        {
            "name": "own",
            "rules": ["sp"],
            "space": {"lr": ["2^-8", "2^-5"]},
            "trainer": {"function": "a:b"},
        }
    )
    with pytest.raises(OptionError, match="the cost of a custom trainer is unknown"):
        study_cost(config, 1)
