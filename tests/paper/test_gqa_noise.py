"""Spreads over seeds against r, in the smallest model with 12 heads, and the committed numbers
again.
"""

from pathlib import Path

import numpy as np
import pytest

from mupscale.checks import coordinate_check
from mupscale.engines import Local
from mupscale.errors import OptionError
from mupscale.paper import catalogue
from mupscale.paper import gqa_noise as experiment
from mupscale.paper.experiment import Execution
from mupscale.paper.few_steps import KV_HEADS, FewSteps, recorded_check
from mupscale.studies import StudyConfig
from mupscale.targets import Family

HERE = Local(workers=0)
COMMITTED = Path(__file__).parents[2] / "results" / "gqa-noise" / "updates"
CPU = experiment.SIZES["cpu"]
EXPERIMENT = experiment.EXPERIMENT
STUDY, PAPER = catalogue.load("gqa-noise", "cpu"), catalogue.load("gqa-noise", "paper")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two r, three seeds, and a study of four rates whose runs are two steps long."""
    tiny = FewSteps(
        Family("gpt:study,depth=1,width=48,head_dim=4"), (12, 1), (1, 2, 3), 1, 1, 32,
        vary="n_kv_heads",
    )  # fmt: skip
    values = STUDY.to_dict()
    values |= {
        "seeds": [42, 43, 44],
        "search": {"method": "grid", "step": 1.0},
        "space": {"lr": ["2^-7", "2^-4"]},
    }
    values |= {"vary": {"n_kv_heads": [12, 1]}, "length": {"steps": 2, "batch": 1, "warmup": 0}}
    values |= {
        "model": {"name": "study", "width": 24, "depth": 1, "head_dim": 2},
        "record": {"eval_batches": 1},
    }
    study = StudyConfig.from_dict(values)
    folder = tmp_path_factory.mktemp("gqa-noise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(experiment.SIZES, "cpu", tiny)
        patch.setattr(catalogue, "load", lambda name, scale: study)
        yield folder, tiny, study


@pytest.fixture(scope="module")
def halfway(made):
    """The updates alone."""
    folder, _, _ = made
    super(experiment.GqaNoise, EXPERIMENT).run("cpu", folder / "updates", Execution(HERE))
    return EXPERIMENT.findings("cpu", folder)


@pytest.fixture(scope="module")
def whole(made, halfway):
    folder, _, _ = made
    seen: list[tuple[int, int]] = []
    EXPERIMENT.run("cpu", folder, Execution(HERE, lambda *count: seen.append(count)))
    assert seen[0][0] == 6  # what was there is not run again
    assert seen[-1] == (12 + 48, 12 + 48)
    return EXPERIMENT.findings("cpu", folder)


def updates_in(folder, tiny):
    return experiment._updates(tiny, EXPERIMENT.checked(tiny, folder / "updates"))


def test_without_the_study_nothing_is_said_of_optima(halfway):
    assert "The study has not been run here" in halfway.lines[-1]
    assert not any("optimal rate" in claim.says for claim in halfway.claims)
    assert len(halfway.claims) == 3


def test_relative_spreads_are_the_same_under_both_rules_and_absolute_ones_differ_by_the_factor(
    made, halfway
):
    """Before anything is learned the rules differ in the rate of keys and values alone."""
    folder, tiny, _ = made
    noises = {(one.quantity, one.rule): one for one in updates_in(folder, tiny)}
    factors = [(1 + r**0.5) / 2 for r in (1, 12)]
    for role in ("key", "value"):
        relative = [
            noises[f"update of {role}, relative", rule] for rule in ("complete-p", "gqa-mup")
        ]
        spreads = [[spread.value for spread in one.spreads()] for one in relative]
        assert spreads[1] == pytest.approx(spreads[0], rel=0.02)
        absolute = [noises[f"update of {role}", rule] for rule in ("complete-p", "gqa-mup")]
        ratios = np.array([s.value for s in absolute[1].spreads()]) / [
            s.value for s in absolute[0].spreads()
        ]
        assert ratios == pytest.approx(factors, rel=0.02)


def test_theory_is_that_of_the_initial_matrix(made, halfway):
    folder, tiny, _ = made
    one = updates_in(folder, tiny)[0]
    assert one.theory == pytest.approx([(r / 96) ** 0.5 for r in (1, 12)])


def test_the_study_adds_optima_and_losses(made, whole):
    folder, _, _ = made
    assert not any("study" in line for line in whole.lines)
    assert len(whole.claims) == 5
    wanted = {
        f"{where}spreads.{kind}" for where in ("", "updates/") for kind in ("csv", "png", "svg")
    }
    assert {path.relative_to(folder).as_posix() for path in whole.paths} == wanted
    assert all(path.stat().st_size for path in whole.paths)


def test_at_r_1_both_rules_have_the_same_runs(made, whole):
    folder, _, _ = made
    trained, runs, remarks = experiment._trained(folder)
    assert runs == 48
    assert not remarks
    for quantity in {one.quantity for one in trained}:
        first, second = (one for one in trained if one.quantity == quantity)
        assert [row[0] for row in first.values] == [row[0] for row in second.values]
        assert (first.r, first.seeds) == ((1, 12), 3)


def test_a_study_that_was_cut_off_is_said_to_be_and_goes_on(made, whole):
    folder, _, _ = made
    records = folder / "records.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(lines[:-1]) + lines[-1][:30])
    halted = EXPERIMENT.findings("cpu", folder)
    assert "The study has 47 of 48 runs" in halted.lines[-1]
    EXPERIMENT.run("cpu", folder, Execution(HERE))
    assert EXPERIMENT.findings("cpu", folder).claims == whole.claims


def test_verdicts_are_those_of_the_intervals():
    noise = np.random.default_rng(0).normal(size=(20, 3))
    noise /= noise.std(axis=0)  # a slope of 0 to begin with

    def spread(slope):
        values = noise * np.array([1.0, 4.0, 12.0]) ** slope
        return experiment.Noise(
            "update of key", "gqa-mup", (1, 4, 12), tuple(map(tuple, values.tolist()))
        )

    assert experiment._grows([spread(1.0)]) == "agrees"
    assert experiment._grows([spread(-1.0)]) == "disagrees"
    assert experiment._grows([spread(0.0)]) == "cannot be decided"
    assert experiment._held([spread(-0.5)]) == "agrees"
    assert experiment._held([spread(1.0)]) == "disagrees"
    assert experiment._like_root([spread(0.5)]).startswith("Yes")
    assert experiment._like_root([spread(1.5)]).startswith("No")


def test_an_empty_folder_is_said_to_be_empty(tmp_path):
    with pytest.raises(OptionError, match="nothing was run there yet"):
        EXPERIMENT.findings("cpu", tmp_path)


def test_the_committed_numbers_come_out_again():
    again = coordinate_check(
        CPU.family,
        {"n_kv_heads": (12, 1)},
        rule="gqa-mup",
        seeds=(1, 2),
        steps=CPU.steps,
        setup=CPU.setup(),
        engine=HERE,
    )
    known = {
        (run["r"], run["seed"]): run
        for run in recorded_check(COMMITTED / "gqa-mup", CPU.starts).runs
    }
    for run in again.runs:
        # Another processor rounds otherwise, and what Adam divides by small numbers carries that on
        # from step to step.
        steps = zip(
            run["series"]["step"],
            known[run["r"], run["seed"]]["series"]["step"],
            (1e-4, 1e-3, 1e-2),
            strict=True,
        )
        for new, old, rounding in steps:
            assert new == pytest.approx(old, rel=rounding)


def test_the_study_is_ten_seeds_of_both_rules_at_either_scale():
    for study in (STUDY, PAPER):
        assert (study.seeds, study.rules) == (tuple(range(42, 52)), tuple(experiment.CHECKS))
        assert study.vary["n_kv_heads"] == (12, 3, 1)


def test_dry_run_says_every_model_of_the_papers_size():
    lines = list(EXPERIMENT.dry_run("paper"))
    assert sum("width 576" in line for line in lines) == len(KV_HEADS)
    assert any("gqa-mup.n_kv_heads-1" in line for line in lines)
