"""The studies that come with the package: what the paper says is in them, what is ours lies
below.
"""

import pytest

from mupscale.errors import UnknownNameError
from mupscale.paper.catalogue import load, middle_run, over, studies_of
from mupscale.training.preparation import plan_for

PAPER = {
    "gqa-ablation",
    "weight-decay",
    "horizon",
    "depth",
    "kv-factor",
    "gqa-noise",
    "muon",
    "sgd",
    "width",
}


def test_every_study_has_the_name_of_its_file():
    assert set(studies_of("paper")) >= PAPER
    for name in studies_of("paper"):
        assert load(name, "paper").name == name


def test_the_ablation_is_the_papers():
    config = load("gqa-ablation", "paper")
    assert {"sp", "mup", "gqa-mup"} <= set(config.rules)
    assert config.seeds == (42, 43, 44)
    runs = [middle_run(config, cell) for cell in config.cells() if cell.rule == "gqa-mup"]
    assert [run.model.repetitions for run in runs] == [1, 2, 3, 4, 6, 12]
    for run in runs:
        assert (run.optimizer.weight_decay, run.length.tokens_per_parameter) == (0.1, 10)
        assert (run.data.corpus, run.data.sequence) == ("hf:openwebtext", 8192)


def test_the_sweep_of_rate_and_decay_is_the_papers():
    config = load("weight-decay", "paper")
    assert (config.rules, len(config.seeds)) == (("sp", "mup", "complete-p"), 1)
    assert (config.search.method, config.search.trials) == ("random", 250)
    assert set(config.space) == {"lr", "weight_decay"}
    assert config.tables["length"]["tokens_per_parameter"] == 3


def test_the_horizon_is_the_papers():
    config = load("horizon", "paper")
    assert {"mup", "gqa-mup"} <= set(config.rules)
    runs = [middle_run(config, cell) for cell in config.cells() if cell.rule == "mup"]
    assert [run.model.repetitions for run in runs] == [1, 2, 4, 8, 4]
    assert {run.length.tokens_per_parameter for run in runs} == {20}


@pytest.mark.parametrize(
    ("name", "models"), [("gqa-ablation", {"kvr_1"}), ("weight-decay", {"small", "large"})]
)
def test_epsilon_comes_out_as_1e_9_over_n_where_a_rule_scales_it(name, models):
    """In the multiplier form: a readout with its 1/n folded in has n times as much."""
    config = load(name, "paper")
    for cell in (cell for cell in config.cells() if cell.label in models):
        run = middle_run(config, cell)
        found = {
            p.role: p.eps * (run.optimizer.eps or 0) * p.folded
            for p in plan_for(run).parameters.values()
        }
        width = run.model.width if cell.rule in ("complete-p", "gqa-mup") else 256
        assert found["embedding"] == pytest.approx(1e-9 / width)
        if cell.rule in ("complete-p", "gqa-mup"):
            assert found["readout"] == pytest.approx(1e-9 / width)
            assert found["query"] == pytest.approx(1e-9 / width * 2 / run.model.depth)


def test_factors_of_the_kv_study_are_those_it_is_about():
    config = load("kv-factor", "paper")
    wanted = {
        "complete-p": lambda r: 1, "gqa-mup": lambda r: (1 + r**0.5) / 2, "kv-half": lambda r: 0.5,
        "kv-sqrt-r": lambda r: r**0.5, "kv-r": lambda r: r,
    }  # fmt: skip
    for cell in config.cells():
        run = middle_run(config, cell)
        lr = {p.role: p.lr for p in plan_for(run).parameters.values()}
        assert lr["key"] / lr["query"] == pytest.approx(
            wanted[cell.rule_name](run.model.repetitions), rel=1e-12
        )


def test_a_study_goes_before_what_is_shared():
    shared = {"search": {"method": "grid", "step": 0.5}, "base": {"r": 1}}
    assert over(shared, {"search": {"step": 1.0}}) == {
        "search": {"method": "grid", "step": 1.0},
        "base": {"r": 1},
    }
    assert shared["search"]["step"] == 0.5
    assert load("weight-decay", "paper").search.step == load("gqa-ablation", "paper").search.step


def test_what_there_is_not():
    with pytest.raises(UnknownNameError, match="Did you mean 'gqa-ablation'"):
        load("gqa-ablatoin", "paper")
    with pytest.raises(UnknownNameError, match="Known: cpu, paper"):
        load("depth", "gpu")
