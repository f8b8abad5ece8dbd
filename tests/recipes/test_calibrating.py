"""Calibration of a proxy whose answers are known, and the rule that comes of it."""

import dataclasses
import json
import math
import sys

import pytest
import torch

import mupscale as mu
from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.models import GPT, GPTConfig
from mupscale.recipes.calibrating import (
    answers,
    calibrated_rule,
    calibration,
    factored,
    log2_factor,
)
from mupscale.studies import Study, StudyConfig
from mupscale.theory import Rule, read_rule, rule_named
from mupscale.theory.rule_files import CalibrationEvidence, exponent_formula, write_rule
from tests.odd.copying import HERE
from tests.recipes.made_calibrations import BOWLS, PROXY

QUICK = {
    "name": "quick",
    "space": {"lr": ["2^-8", "2^-4"]},
    "model": {"width": 48, "depth": 1, "n_heads": 12, "vocabulary": 256, "context": 32},
    "data": {"sequence": 32},
    "length": {"steps": 10, "batch": 4},
}
EVIDENCE = CalibrationEvidence(
    gamma=0.4,
    low=0.1,
    high=0.7,
    question="still",
    swept=(-1.0, 2.0),
    repetitions=(1, 4),
    runs=9,
    seeds=3,
    study="ab",
)
RULE = Rule("calibrated", kv_factor=exponent_formula(0.4))


@pytest.fixture
def bowls(tmp_path, monkeypatch):
    (tmp_path / "bowls.py").write_text(
        BOWLS.format(still=0.3, loss=1.2, noise=0.002), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bowls", raising=False)
    return tmp_path


@pytest.mark.parametrize(("question", "true"), [("still", 0.3), ("loss", 1.2)])
def test_a_calibration_finds_the_exponent_that_its_trainer_was_made_with(bowls, question, true):
    made = calibration(PROXY, repetitions=[1, 4, 16])
    for part in made.studies(bowls / "out"):
        part.run()
    rule, evidence = calibrated_rule(made, answers(bowls / "out"), question)
    assert abs(evidence.gamma - true) < 0.1
    assert evidence.high - evidence.low < 0.8
    assert evidence.runs == made.runs() == 27 * 9
    assert evidence.repetitions == (1, 4, 16)
    assert log2_factor(rule, 16) == pytest.approx(evidence.gamma * math.log2(2.5))
    assert rule.kv_factor == exponent_formula(evidence.gamma)


def test_the_base_is_trained_once_and_r_is_chosen_by_the_heads():
    made = calibration(QUICK)
    assert made.base.vary == {"r": (1,)}
    assert made.factors.vary == {"r": (4, 12)}
    assert made.runs() == 27 * (1 + 4 * 2)
    assert made.tokens() == made.runs() * 10 * 4 * 32
    assert {
        cell.tables["base"]["r"] for part in (made.base, made.factors) for cell in part.cells()
    } == {1}


def test_heads_that_a_study_varies_are_kept_as_they_are_named():
    made = calibration({**QUICK, "vary": {"n_kv_heads": [12, 3]}})
    assert (made.base.vary, made.factors.vary) == ({"n_kv_heads": (12,)}, {"n_kv_heads": (3,)})


def test_at_a_gamma_of_0_and_1_the_runs_are_those_of_the_named_rules():
    made = calibration({**QUICK, "rules": ["complete-p"]}, gammas=[0, 1, 2], repetitions=[1, 4])
    named = StudyConfig.from_dict(
        {**QUICK, "rules": ["complete-p", "gqa-mup"], "vary": {"r": [4]}, "base": {"r": 1}}
    )
    for ours, theirs in zip(made.factors.cells()[:2], named.cells(), strict=True):
        plans = [_rates(config, cell) for config, cell in ((made.factors, ours), (named, theirs))]
        assert plans[0] == pytest.approx(plans[1])


def _rates(config, cell):
    from mupscale.training.preparation import plan_for

    made = plan_for(config.run_config(cell, {"lr": 1.0}, 1))
    return {name: p.lr * p.weight_decay + p.lr for name, p in made.parameters.items()}


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"gammas": [0, 1]}, "at least three"),
        ({}, {"gammas": [0, 1, float("nan")]}, "between -10 and 10"),
        ({}, {"repetitions": [1, 5]}, "r = 5 does not divide 12 heads"),
        ({}, {"repetitions": [1]}, "at least one more is needed"),
        ({"base": {"r": 2}}, {"repetitions": [1, 4]}, "the base has r = 2"),
        ({"rules": ["mup", "gqa-mup"]}, {}, "starts from one"),
        ({"vary": {"width": [48, 96]}}, {}, "n_kv_heads or r alone"),
        ({"space": {"lr": [0.1, 0.2], "std": [0.1, 0.2]}}, {}, "lr alone"),
        ({"model": {**QUICK["model"], "n_heads": 1}}, {}, "cannot be shared"),
        ({"trainer": {"function": "bowls:train"}, "model": {}}, {}, "trainer names no model"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_anything_runs(changes, options, message):
    with pytest.raises((OptionError, DimensionError), match=message):
        calibration({**QUICK, **changes}, **options)


class TestRuleFiles:
    def test_a_rule_is_read_as_it_was_written_with_its_reason(self, tmp_path):
        write_rule(tmp_path / "rule.json", RULE, EVIDENCE)
        rule = rule_named(str(tmp_path / "rule.json"))
        assert rule == Rule(
            "calibrated", kv_factor="((1 + sqrt(r))/2)**0.4", evidence=str(EVIDENCE)
        )
        assert "γ = 0.40 [0.10, 0.70]" in rule.evidence

    def test_a_plan_takes_the_file_and_gives_its_factor_and_reason(self, tmp_path):
        write_rule(tmp_path / "rule.json", RULE, EVIDENCE)
        with torch.device("meta"):
            model = GPT(
                GPTConfig(width=64, depth=1, n_heads=8, n_kv_heads=2, vocabulary=64, context=16)
            )
        plan = mu.plan(model, base={"width": 64, "r": 1}, rule=str(tmp_path / "rule.json"))
        rates = {p.role: p.lr for p in plan.parameters.values()}
        assert rates["key"] / rates["query"] == pytest.approx(1.5**0.4)
        assert "γ = 0.40 [0.10, 0.70]" in str(plan)
        key = next(name for name, p in plan.parameters.items() if p.role == "key")
        assert "γ = 0.40" in " ".join(plan.explain(key).split())
        assert mu.Plan.from_json(plan.to_json()) == plan

    def test_a_study_keeps_the_rule_when_its_file_has_gone(self, tmp_path):
        path = tmp_path / "rule.json"
        write_rule(path, RULE, EVIDENCE)
        config = StudyConfig.from_dict({**QUICK, "rules": [str(path)], "vary": {"r": [1, 4]}})
        path.unlink()
        assert config.cells()[1].name == "calibrated.r-4"
        assert StudyConfig.from_dict(config.to_dict()) == config
        run = config.run_config(config.cells()[1], {"lr": 0.1}, 1)
        assert run.rule.kv_factor == "((1 + sqrt(r))/2)**0.4"

    def test_a_rule_for_keys_alone_is_read_as_it_was_written(self, tmp_path):
        for rule in (RULE, dataclasses.replace(RULE, kv_part="keys")):
            write_rule(tmp_path / "rule.json", rule, EVIDENCE)
            assert read_rule(tmp_path / "rule.json").kv_part == rule.kv_part
            stated = "kv_part" in json.loads((tmp_path / "rule.json").read_text())
            assert stated == (rule is not RULE)

    def test_another_factor_drops_the_reason(self):
        rule = Rule("calibrated", kv_factor="r", evidence="measured")
        assert rule.with_(kv_factor="hidden").evidence is None
        assert rule.with_(depth="none").evidence == "measured"

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"kv_factor": "sqrt(r)"}, "the file was edited"),
            ({"format": "mupscale plan"}, "not a rule"),
            ({"version": 9}, "version 9"),
            ({"depht": "none"}, "Did you mean 'depth'"),
            ({"kv_part": "kays"}, "Did you mean 'keys'"),
            ({"evidence": None}, "no evidence"),
            ({"evidence": {"gamma": 3.0}}, "the range that was swept"),
            ({"evidence": {"low": 0.5}}, "outside its own interval"),
            ({"evidence": {"high": None}}, "must have a finite interval"),
            ({"evidence": {"swept": 3}}, "not a list"),
            ({"evidence": {"question": "why"}}, "unknown question"),
        ],
    )
    def test_a_file_that_contradicts_itself_is_refused(self, tmp_path, change, message):
        path = tmp_path / "rule.json"
        write_rule(path, RULE, EVIDENCE)
        content = json.loads(path.read_text())
        if isinstance(change.get("evidence"), dict):
            change = {"evidence": content["evidence"] | change["evidence"]}
        path.write_text(json.dumps(content | change))
        with pytest.raises(OptionError, match=message) as caught:
            read_rule(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("text", ["", "[1, 2]", '{"gamma": NaN}', "\x00"])
    def test_what_is_no_rule_is_said_to_be_none(self, tmp_path, text):
        (tmp_path / "rule.json").write_text(text)
        with pytest.raises(OptionError, match="not a rule"):
            read_rule(tmp_path / "rule.json")

    def test_a_missing_file_and_an_unknown_name_are_told_apart(self, tmp_path):
        with pytest.raises(OptionError, match="mupscale calibrate writes one"):
            rule_named(str(tmp_path / "none.json"))
        with pytest.raises(UnknownNameError, match=r"FILE\.json"):
            rule_named("calibrated")


def test_one_norm_is_a_factor_of_1():
    assert log2_factor(Rule("mine", kv_factor="rms"), 12, base_r=3) == 0


def test_factors_on_different_heads_are_not_one_calibration(tmp_path):
    rules = [{"name": part, "kv_factor": "r", "kv_part": part} for part in ("keys", "values")]
    study = Study.create(
        StudyConfig.from_dict({**QUICK, "rules": rules, "vary": {"r": [1, 4]}}), tmp_path / "study"
    )
    with pytest.raises(OptionError, match=r"different heads \(kv_part = keys, values\)"):
        factored([study])
    assert factored([study], only={study.config.name: ["keys"]}) == []  # nothing has run


def test_a_factor_in_more_than_r_cannot_be_read():
    with pytest.raises(OptionError, match="more than r"):
        log2_factor(Rule("mine", kv_factor="r/n"), 4)


class TestModelsWithoutAConfig:
    """Only the ratio of query heads to key/value heads can be read of them."""

    def proxy(self, target="build", **changes):
        trainer = {"function": "tests.odd.model:train", "target": f"tests.odd.model:{target}"}
        return {
            "name": "odd",
            "space": {"lr": ["2^-8", "2^-4"]},
            "trainer": trainer | changes.pop("trainer", {}),
        } | changes

    def test_r_is_taken_as_it_is_given(self):
        made = calibration(self.proxy(), repetitions=[1, 2, 4])
        assert (made.base.vary, made.factors.vary) == ({"r": (1,)}, {"r": (2, 4)})

    def test_r_that_the_study_varies_is_taken(self):
        made = calibration(self.proxy(vary={"r": [2, 4]}))
        assert (made.base.vary, made.factors.vary) == ({"r": (2,)}, {"r": (4,)})

    def test_heads_follow_from_the_ratio_where_key_value_heads_are_varied(self):
        """They were taken for one head, so that no r above 1 was allowed."""
        made = calibration(self.proxy("by_kv_heads", vary={"n_kv_heads": [4, 2, 1]}))
        assert (made.base.vary, made.factors.vary) == ({"n_kv_heads": (4,)}, {"n_kv_heads": (2, 1)})

    def test_the_base_has_the_r_that_its_matrices_show(self):
        """By the config alone it was 1, whatever the model."""
        base = {"base": "tests.odd.model:build,r=2"}
        assert calibration(self.proxy(trainer=base), repetitions=[2, 4]).base.vary == {"r": (2,)}
        with pytest.raises(DimensionError, match="the base has r = 2"):
            calibration(self.proxy(trainer=base), repetitions=[1, 4])

    def test_without_any_r_they_are_asked_for(self):
        with pytest.raises(OptionError, match="--repetitions 1,2,4"):
            calibration(self.proxy())

    def test_both_studies_keep_what_the_file_beside_the_model_says(self):
        made = calibration(self.proxy(), repetitions=[1, 2])
        said = mu.Reading.load(HERE / "mupscale.toml")
        assert made.base.reading == made.factors.reading == said
