import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mupscale.errors import DimensionError, MupscaleError, OptionError, UnknownNameError
from mupscale.studies import Study, StudyConfig
from mupscale.studies.quick import QUICK
from mupscale.training import lengths


def study(**changes: Any) -> dict[str, Any]:
    return {**QUICK, **changes}


class TestCells:
    def test_every_rule_meets_every_variant(self) -> None:
        config = StudyConfig.from_dict(
            study(rules=["mup", "gqa-mup"], vary={"n_kv_heads": [12, 3], "depth": [2, 4]})
        )
        assert [cell.name for cell in config.cells()] == [
            f"{rule}.n_kv_heads-{heads}.depth-{depth}"
            for rule in ("mup", "gqa-mup")
            for heads in (12, 3)
            for depth in (2, 4)
        ]

    def test_a_variant_changes_the_model_and_the_point_the_optimizer(self) -> None:
        config = StudyConfig.from_dict(study(vary={"n_kv_heads": [3]}))
        run = config.run_config(config.cells()[0], {"lr": 0.01, "std": 0.3}, seed=7)
        assert (run.model.kv_heads, run.model.repetitions, run.seed) == (3, 4, 7)
        assert (run.optimizer.lr, run.optimizer.std, run.optimizer.weight_decay) == (0.01, 0.3, 0.1)
        assert run.base_model().repetitions == 1

    def test_a_rule_may_have_a_range_of_its_own(self) -> None:
        space = {"lr": ["2^-8", "2^-4"], "sp": {"lr": ["2^-10", "2^-6"]}}
        config = StudyConfig.from_dict(study(rules=["sp", "mup"], space=space))
        assert [cell.space["lr"] for cell in config.cells()] == [(2**-10, 2**-6), (2**-8, 2**-4)]
        assert config.widest_space() == {"lr": (2**-10, 2**-4)}
        assert StudyConfig.from_dict(tomllib.loads(config.to_toml())) == config
        assert "rule_space" not in config.identity()

    @pytest.mark.parametrize(
        ("space", "told"),
        [
            ({"lr": ["2^-8", "2^-4"], "ps": {"lr": ["2^-9", "2^-5"]}}, "ps"),
            ({"lr": ["2^-8", "2^-4"], "mup": {"std": [0.1, 0.2]}}, "std"),
            ({"lr": ["2^-8", "2^-4"], "mup": {"lr": ["2^-4", "2^-8"]}}, "space.mup.lr"),
            ({"mup": {"lr": ["2^-8", "2^-4"]}}, "lr is not searched"),
        ],
    )
    def test_a_range_of_a_rule_that_is_not_there_is_refused(
        self, space: dict[str, Any], told: str
    ) -> None:
        with pytest.raises(MupscaleError, match=told):
            StudyConfig.from_dict(study(rules=["mup"], space=space))

    def test_named_variants_change_any_table(self) -> None:
        variants = [
            {"name": "small", "model": {"width": 96, "n_heads": 12}, "length": {"batch": 4}},
            {"name": "large", "model": {"width": 192, "n_heads": 24}},
        ]
        config = StudyConfig.from_dict(study(variants=variants, base={}))
        small, large = (config.run_config(cell, {"lr": 0.01}, 1) for cell in config.cells())
        assert (small.model.width, small.length.batch) == (96, 4)
        assert (large.model.width, large.length.batch) == (192, 16)

    def test_what_is_varied_was_tuned_at_its_least_unless_the_base_says_otherwise(self) -> None:
        base = {"width": 32}
        by_heads = StudyConfig.from_dict(study(base=base, vary={"n_kv_heads": [1, 6, 3]}))
        by_r = StudyConfig.from_dict(study(base=base, vary={"r": [12, 2, 4]}))
        for config in (by_heads, by_r):
            assert all(
                config.run_config(cell, {"lr": 0.01}, 1).base["r"] == 2 for cell in config.cells()
            )
        said = StudyConfig.from_dict(study(base={"width": 32, "r": 4}, vary={"r": [12, 2]}))
        assert said.run_config(said.cells()[0], {"lr": 0.01}, 1).base["r"] == 4

    def test_tau_epoch_is_the_time_of_decay_in_runs(self) -> None:
        config = StudyConfig.from_dict(
            study(space={"lr": [0.001, 0.1], "tau_epoch": [0.1, 10]}, search=RANDOM)
        )
        run = config.run_config(config.cells()[0], {"lr": 0.01, "tau_epoch": 2.0}, seed=1)
        assert run.optimizer.weight_decay * 0.01 * lengths(run).steps == pytest.approx(
            1 / 2.0, rel=1e-12
        )


RANDOM = {"method": "random", "trials": 5}

MISTAKES: list[tuple[dict[str, Any], type[MupscaleError], str]] = [
    ({"name": "../gqa"}, OptionError, "not a plain name"),
    ({"name": ".."}, OptionError, "not a plain name"),
    ({"name": "x" * 65}, OptionError, "not a plain name"),
    ({"rules": []}, OptionError, "at least one"),
    ({"rules": ["mup", "mup"]}, OptionError, "none twice"),
    ({"rules": ["mup2"]}, UnknownNameError, "mup"),
    ({"seeds": "1,2"}, OptionError, "not a list"),
    ({"seeds": [True]}, OptionError, "expected int"),
    ({"seeds": [-1]}, OptionError, "at least 0"),
    ({"vary": {"heads": [1]}}, UnknownNameError, "n_kv_heads"),
    ({"vary": {"n_kv_heads": [5]}}, DimensionError, "n_kv_heads=5"),
    ({"vary": {"r": [5]}}, DimensionError, "r = 5 does not divide"),
    ({"vary": {"r": [2, 2]}}, DimensionError, "different"),
    ({"space": {}}, OptionError, "lr is not searched"),
    ({"space": {"lr": ["2^-4", "2^-8"]}}, OptionError, "smaller end first"),
    ({"space": {"lr": [0, 1]}}, OptionError, "above 0"),
    ({"space": {"lr": ["a", 1]}}, OptionError, "not a number"),
    ({"space": {"lr": [math.nan, 1]}}, OptionError, "finite"),
    ({"space": {"lr": 0.1}}, OptionError, "not a range"),
    ({"space": {"rl": [0.1, 1]}}, UnknownNameError, "lr"),
    (
        {"space": {"lr": [0.1, 1], "weight_decay": [0.1, 1], "tau_epoch": [0.1, 1]}},
        OptionError,
        "are equivalent",
    ),
    ({"space": {"lr": [0.1, 1], "weight_decay": [0.1, 1]}}, OptionError, "searches only lr"),
    ({"search": {"method": "tpe"}}, OptionError, "search.trials"),
    ({"search": {"method": "gird"}}, UnknownNameError, "grid"),
    ({"search": {"trials": 0}}, OptionError, "above 0"),
    ({"search": {"tolerance": math.inf}}, OptionError, "above 0"),
    ({"engine": {"name": "spark"}}, UnknownNameError, "ray"),
    ({"engine": {"ranks": 0}}, OptionError, "at least 1"),
    ({"trainer": {}}, OptionError, "either command or function"),
    ({"trainer": {"command": "python train.py --lr {lr}"}}, OptionError, "as a list"),
    ({"trainer": {"function": "a:b", "command": ["a"]}}, OptionError, "either command or function"),
    ({"trainer": {"function": "a:b"}, "engine": {"ranks": 2}}, OptionError, "torchrun"),
    ({"model": {"name": "study", "n_heads": 0}}, DimensionError, "n_heads"),
    ({"length": {"steps": 9, "batch": 4, "schedule": "lineer"}}, UnknownNameError, "'linear'"),
    (
        {"length": {"steps": 9, "batch": 4, "schedule": "wsd", "warmup": 8}},
        DimensionError,
        "a warmup of 8 steps and a decay of 2 .* exceed the run of 9 steps",
    ),
    ({"storage": "postgresql://me:secret@host/studies"}, OptionError, "PGPASSWORD"),
    ({"modle": {}}, UnknownNameError, "model"),
    ({"variants": [{"name": "a", "modle": {}}]}, UnknownNameError, "model"),
    ({"variants": [{"name": "a"}, {"name": "a"}]}, OptionError, "same name"),
    ({"variants": [{"name": "a/b"}]}, OptionError, "not a plain name"),
]


@pytest.mark.parametrize(
    ("change", "kind", "words"), MISTAKES, ids=[str(change)[:60] for change, _, _ in MISTAKES]
)
def test_a_mistake_is_one_error_that_names_it(
    change: dict[str, Any], kind: type[MupscaleError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        StudyConfig.from_dict(study(**change))


def test_what_is_missing_is_said() -> None:
    for name in ("name", "space"):
        with pytest.raises(OptionError, match=name):
            StudyConfig.from_dict({key: value for key, value in QUICK.items() if key != name})


def test_toml_gives_the_same_study_back(tmp_path: Path) -> None:
    config = StudyConfig.from_dict(
        study(
            vary={"n_kv_heads": [3]},
            variants=[{"name": "a", "model": {"depth": 4}}],
            trainer={"command": ["a", '{lr} "{seed}"'], "environment": {"A": "b c"}},
            rules=[
                "mup",
                {"name": "mine", "kv_factor": "hidden"},
                {"name": "on-keys", "kv_factor": "sqrt(r)", "kv_part": "keys"},
            ],
        )
    )
    path = tmp_path / "study.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert StudyConfig.load(path) == config
    assert StudyConfig.load(path).identity() == config.identity()


def test_a_rule_for_keys_alone_reaches_its_runs() -> None:
    rules = [{"name": part, "kv_part": part} for part in ("both", "keys")]
    config = StudyConfig.from_dict(study(rules=rules))
    runs = [config.run_config(cell, {"lr": 0.1}, 1) for cell in config.cells()]
    assert [run.rule.kv_part for run in runs] == ["both", "keys"]
    assert ["kv_part" in run.to_dict()["rule"] for run in runs] == [False, True]
    with pytest.raises(UnknownNameError, match="Did you mean 'keys'"):
        StudyConfig.from_dict(study(rules=[{"name": "mine", "kv_part": "keyz"}]))


def test_budgets_and_places_do_not_make_it_another_study() -> None:
    one = StudyConfig.from_dict(study(search={"trials": 5}, engine={"workers": 1}))
    other = StudyConfig.from_dict(
        study(search={"trials": 9, "tolerance": 0.1}, engine={"name": "ray"})
    )
    third = StudyConfig.from_dict(study(search={"trials": 9, "seed": 1}))
    assert one.identity() == other.identity() != third.identity()


def test_a_schedule_belongs_to_the_study_and_older_studies_are_unchanged() -> None:
    older = StudyConfig.from_dict(study())
    assert older.identity()["length"] == QUICK["length"]
    length = {**QUICK["length"], "schedule": "wsd", "decay_share": 0.1}
    wsd = StudyConfig.from_dict(study(length=length))
    assert wsd.identity() != older.identity()
    made = lengths(wsd.run_config(wsd.cells()[0], {"lr": 0.1}, 1)).schedule
    assert (made.name, made.decay_share) == ("wsd", 0.1)


def test_variants_may_differ_in_their_schedule() -> None:
    variants = [{"name": name, "length": {"schedule": name}} for name in ("cosine", "linear")]
    config = StudyConfig.from_dict(study(variants=variants))
    runs = [config.run_config(cell, {"lr": 0.1}, 1) for cell in config.cells()]
    assert [lengths(run).schedule.name for run in runs] == ["cosine", "linear"]


def test_the_committed_dense_study_is_whole() -> None:
    study = Study.open(Path(__file__).parents[2] / "results/gqa-dense")
    snapshot = study.snapshot()
    assert len(snapshot.done) == len(study.config.cells()) == 9
    assert len(snapshot.trials) == 459
    one, other = (
        [t.loss for t in snapshot.cells[f"{rule}.n_kv_heads-12"].values()]
        for rule in ("complete-p", "gqa-mup")
    )
    assert one == other  # without sharing, the two rules are one
