"""A rule comes back from its file with its evidence; a file that contradicts itself does not."""

import json
import math
from dataclasses import replace

import pytest

from mupscale.errors import OptionError, UnknownNameError
from mupscale.theory import RULES, Rule, read_rule, rule_named
from mupscale.theory.rule_files import CalibrationEvidence, exponent_formula, write_rule

EVIDENCE = CalibrationEvidence(
    gamma=0.7,
    low=0.5,
    high=0.9,
    question="still",
    swept=(0.0, 2.0),
    repetitions=(1, 4, 12),
    runs=90,
    seeds=3,
    study="abc",
)
RULE = RULES["gqa-mup"].with_(kv_factor=exponent_formula(0.7))


@pytest.fixture
def path(tmp_path):
    write_rule(tmp_path / "rule.json", RULE, EVIDENCE)
    return tmp_path / "rule.json"


def test_a_rule_comes_back_with_its_evidence(path):
    expected = replace(RULE, evidence=str(EVIDENCE))
    assert read_rule(path) == expected == rule_named(str(path))
    assert Rule.from_dict(expected.to_dict()) == expected
    assert Rule.from_dict(RULE.to_dict()) == RULE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2; this mupscale reads 1"),
        ({"format": "mupscale plan"}, "it is not a rule"),
        ({"kv_factor": "sqrt(r)"}, "does not match gamma = 0.7"),
        ({"evidence": None}, "it has no evidence"),
    ],
)
def test_a_file_that_was_edited_raises_an_error(path, change, message):
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(OptionError, match=message):
        read_rule(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"low": math.nan}, "must have a finite interval"),
        ({"high": "0.9"}, "must have a finite interval"),
        ({"swept": (0.0, 1.0, 2.0)}, "must have a finite interval"),
        ({"swept": (0.0,)}, "must have a finite interval"),
        ({"swept": (0.0, 0.6)}, "lies outside"),
        ({"swept": (0.8, 2.0)}, "lies outside"),
        ({"low": 0.8}, "outside its own interval"),
        ({"high": 0.6}, "outside its own interval"),
    ],
)
def test_evidence_needs_an_exponent_inside_its_interval_and_what_was_swept(change, message):
    with pytest.raises(OptionError, match=message):
        replace(EVIDENCE, **change)


def test_evidence_may_end_where_its_interval_or_the_sweep_ends():
    for change in ({"swept": (0.7, 2.0)}, {"swept": (0.0, 0.7)}, {"low": 0.7}, {"high": 0.7}):
        assert replace(EVIDENCE, **change).gamma == 0.7


def test_an_unknown_question_is_named():
    with pytest.raises(UnknownNameError, match="question"):
        replace(EVIDENCE, question="place")
