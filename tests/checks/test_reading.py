"""A model with names of its own is checked with what its reading says, however that reaches the
check.
"""

import dataclasses
import json
import math

import pytest
import torch
from torch import Tensor, nn

import mupscale
from mupscale.checks import Setup, coordinate_check
from mupscale.checks.probe import Probe, run_probe
from mupscale.engines import Local
from mupscale.errors import OptionError, UnreadableModelError
from mupscale.reading import Reading
from mupscale.targets import Family
from mupscale.testing import assert_transfers
from mupscale.theory import rule_named
from tests.odd.copying import HERE, copied
from tests.odd.model import build

SAID = Reading.load(HERE / "mupscale.toml")
SETUP = Setup(batch=1, sequence=32)
WIDTHS = {"width": [16, 32]}
QUICK = {"seeds": 2, "steps": 1, "setup": SETUP, "engine": Local(workers=0)}

ROLES = {
    # kind, outputs, inputs and repetitions of the model at width 32
    "embedding": ("table", 32, 256, 1),
    "query": ("matrix", 32, 32, 1),
    "key": ("matrix", 16, 32, 2),
    "value": ("matrix", 16, 32, 2),
    "attention_output": ("matrix", 32, 32, 1),
    "mlp_in": ("matrix", 64, 32, 1),
    "mlp_out": ("matrix", 32, 64, 1),
    "readout": ("matrix", 256, 32, 1),
}


def probe(**changes) -> Probe:
    reading = changes.pop("reading", SAID)
    setup = dataclasses.replace(SETUP, base=16, steps=1, **changes)
    return Probe(build, "width", 32, 1, rule_named("gqa-mup"), setup, reading)


def planned(model: nn.Module, base: nn.Module) -> mupscale.Plan:
    return mupscale.plan(model, base=base, reading=SAID)


def test_the_parts_are_those_that_the_reading_says():
    parts = run_probe(probe())["parts"]
    found = {
        role: (kind, n_out, n_in, r)
        for role, kind, n_out, n_in, r in zip(
            *(parts[name] for name in ("role", "kind", "n_out", "n_in", "repetitions")), strict=True
        )
        if kind != "vector"
    }
    assert found == ROLES
    assert parts["role"].count("gain") == 7
    wanted = dict(zip(parts["role"], parts["wanted"], strict=True))
    sigma = 0.02 / math.sqrt(2)  # twice as wide as the base
    assert wanted["key"] == pytest.approx(sigma * (math.sqrt(16) + math.sqrt(32)), rel=1e-4)
    assert wanted["mlp_out"] == pytest.approx(sigma * (math.sqrt(32) + math.sqrt(64)), rel=1e-4)


def test_r_is_that_of_the_matrices():
    """By the config alone it was 1 at every value: 'build ignores r'."""
    result = coordinate_check(build, {"r": [1, 2, 4]}, reading=SAID, **QUICK)
    assert (result.quantity, result.x, result.about["base"]) == ("r", (1, 2, 4), 1)


def test_with_a_planner_the_facts_are_those_of_its_plan():
    """Reading again without the roles raised: 'parameters are not understood'."""
    assert run_probe(probe(planner=planned, reading=Reading())) == run_probe(probe())


def test_where_the_planner_says_nothing_the_reading_counts():
    def silent(model: nn.Module, base: nn.Module) -> mupscale.Plan:
        return dataclasses.replace(planned(model, base), reading=Reading())

    assert run_probe(probe(planner=silent)) == run_probe(probe())


def test_without_a_reading_it_is_refused():
    with pytest.raises(UnreadableModelError):
        coordinate_check(build, WIDTHS, **QUICK)


def test_the_function_takes_it_and_so_does_the_assertion():
    result = coordinate_check(build, WIDTHS, reading=SAID, **QUICK)
    assert {one.role for one in result.findings if one.judged} == set(ROLES)
    assert result.about["reading"] == SAID.to_dict()
    same = assert_transfers(build, WIDTHS, reading=SAID, allow_inconclusive=True, **QUICK)
    assert same.runs == result.runs


def test_a_model_by_name_brings_the_file_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    family = Family(f"{copied(tmp_path)}:build")
    result = coordinate_check(family, WIDTHS, **QUICK)
    assert result.about["reading"] == SAID.to_dict()
    with pytest.raises(UnreadableModelError):
        coordinate_check(family, WIDTHS, reading=Reading(), **QUICK)


class TestFolder:
    def test_it_goes_on_with_the_same_reading_and_not_with_another(self, tmp_path, monkeypatch):
        first = coordinate_check(build, WIDTHS, reading=SAID, folder=tmp_path, **QUICK)
        reordered = Reading(dict(reversed(SAID.roles.items())))
        other = SAID | Reading({"storeys.*.think.tilt": "bias"})
        with pytest.raises(OptionError, match=r"reading.roles.storeys.*\"gain\" → \"bias\""):
            coordinate_check(build, WIDTHS, reading=other, folder=tmp_path, **QUICK)
        monkeypatch.setattr("mupscale.checks.check.run_probe", None)
        assert (
            coordinate_check(build, WIDTHS, reading=reordered, folder=tmp_path, **QUICK).runs
            == first.runs
        )

    def test_one_without_a_reading_begins_as_it_did_before_there_were_any(self, tmp_path):
        coordinate_check(Family("gpt:cpu_32_r2"), {"width": [32, 64]}, folder=tmp_path, **QUICK)
        about = json.loads((tmp_path / "runs.jsonl").read_text().splitlines()[0])["about"]
        assert set(about) == {
            "vary",
            "base",
            "seeds",
            "steps",
            "rule",
            "data",
            "setup",
            "build",
            "planner",
            "loss",
        }


class Bare(nn.Module):
    """Both matrices are parameters of one module, whose output is neither's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(2 * width, width))
        self.down = nn.Parameter(torch.randn(width, 2 * width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.up.T) @ self.down.T


def with_bare_matrices(width: int) -> nn.Module:
    model = build(width)
    for storey in model.storeys:
        storey.think = Bare(width)
    return model


def test_the_output_of_a_module_with_two_matrices_is_not_taken_for_that_of_one():
    roles = {p: role for p, role in SAID.roles.items() if "think" not in p}
    said = Reading(roles | {"storeys.*.think.up": "mlp_in", "storeys.*.think.down": "mlp_out"})
    run = run_probe(dataclasses.replace(probe(reading=said), build=with_bare_matrices))
    seen = dict(zip(run["parts"]["role"], run["series"]["h"][0], strict=True))
    assert seen["mlp_in"] is seen["mlp_out"] is None
    assert seen["query"] > 0
    assert all(norm > 0 for norm in run["series"]["step"][0])
