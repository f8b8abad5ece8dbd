"""ε against the width, in the smallest family that shows it, and the committed numbers again."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from mupscale.analysis import fit_slope
from mupscale.checks import coordinate_check
from mupscale.engines import Local
from mupscale.errors import OptionError
from mupscale.paper import adam_epsilon as experiment
from mupscale.paper.experiment import Execution
from mupscale.paper.few_steps import FewSteps, recorded
from mupscale.targets import Family

HERE = Local(workers=0)
COMMITTED = Path(__file__).parents[2] / "results" / "adam-epsilon"
CPU = experiment.SIZES["cpu"]
EXPERIMENT = experiment.EXPERIMENT


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    tiny = FewSteps(
        Family("gpt:cpu_32_r1,depth=1"), (32, 64), (1, 2, 3), steps=1, batch=2, sequence=64
    )
    folder = tmp_path_factory.mktemp("adam-epsilon")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(experiment.SIZES, "cpu", tiny)
        seen: list[tuple[int, int]] = []
        EXPERIMENT.run("cpu", folder, Execution(HERE, lambda *count: seen.append(count)))
        assert seen[-1] == (30, 30)
        yield folder, EXPERIMENT.findings("cpu", folder), tiny


def shares_of(folder, tiny):
    return experiment.Shares(
        tiny, EXPERIMENT.checked(tiny, folder), EXPERIMENT.recorded(tiny, folder)
    )


def test_a_fixed_epsilon_takes_more_of_the_update_the_wider_the_model_and_a_scaled_one_as_much(
    made,
):
    folder, _, tiny = made
    shares = shares_of(folder, tiny)

    def slope(key, role):
        return fit_slope(tiny.values, shares.measured(key, role)).value

    for role in experiment.HIDDEN:
        assert slope("large-fixed", role) < min(-0.03, slope("large-scaled", role) - 0.03)
        assert abs(slope("large-scaled", role)) < 0.15
        assert slope("tiny-fixed", role) == pytest.approx(0, abs=1e-3)


def test_on_the_first_step_theory_from_the_gradient_is_what_the_optimizer_does(made):
    """At the base both look at the same gradient, one through AdamW's update, the other through
    g/(|g| + ε).
    """
    folder, _, tiny = made
    shares = shares_of(folder, tiny)
    for role in experiment.HIDDEN:
        measured, theory = (of("large-fixed", role) for of in (shares.measured, shares.theory))
        assert [row[0] for row in measured] == pytest.approx([row[0] for row in theory], rel=0.01)


def test_the_first_step_is_that_of_torchs_adam():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(24, 16))
    weight.grad = torch.randn(24, 16) * 1e-3
    torch.optim.Adam([weight], lr=1.0, eps=2e-3).step()
    norm = float(torch.linalg.matrix_norm(weight.detach(), ord=2))
    assert experiment.first_step(weight.grad, 2e-3) == pytest.approx(norm, rel=2e-3)


def test_findings_have_figure_table_and_claims(made):
    _, found, _ = made
    assert {path.name for path in found.paths} == {
        "slopes.csv",
        "adam-epsilon.png",
        "adam-epsilon.svg",
    }
    assert all(path.exists() for path in found.paths)
    assert {claim.experiment for claim in found.claims} == {"adam-epsilon"}
    verdicts = {claim.says: claim.verdict for claim in found.claims}
    assert verdicts["In practice, ε = 1e-12 avoids the decay"] == "agrees"
    assert len(verdicts) == 6


def test_what_was_cut_off_is_run_again_and_is_the_same(made):
    folder, found, _ = made
    ledger = folder / "gradients.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-2]) + lines[-2][:40])
    with pytest.raises(OptionError, match=r"gradients.jsonl holds 4 of 6 runs"):
        EXPERIMENT.findings("cpu", folder)
    EXPERIMENT.run("cpu", folder, Execution(HERE))
    assert ledger.read_text().splitlines(keepends=True) == lines
    assert EXPERIMENT.findings("cpu", folder) == found


def test_an_empty_folder_is_said_to_be_empty(tmp_path):
    with pytest.raises(OptionError, match="nothing was run there yet"):
        EXPERIMENT.findings("cpu", tmp_path)


def test_the_committed_numbers_come_out_again():
    size = CPU
    job = EXPERIMENT.jobs(size)["width=64 seed=2"]
    committed = recorded(COMMITTED / "gradients.jsonl", size.starts)[1]["width=64 seed=2"]
    for role, numbers in job.result()["roles"].items():
        assert numbers["rms"] == pytest.approx(committed["roles"][role]["rms"], rel=1e-4)
        assert numbers["left"] == pytest.approx(committed["roles"][role]["left"], rel=1e-3)
    again = coordinate_check(
        size.family, {"width": (32, 64)}, rule=experiment.RULES["fixed"], seeds=(1, 2),
        steps=size.steps, setup=size.setup(1e-3), engine=HERE,
    )  # fmt: skip
    rows = [
        json.loads(line)
        for line in (COMMITTED / "large-fixed" / "runs.jsonl").read_text().splitlines()[1:]
    ]
    known = {(row["result"]["width"], row["result"]["seed"]): row["result"] for row in rows}
    for run in again.runs:
        for new, old in zip(
            run["series"]["step"], known[run["width"], run["seed"]]["series"]["step"], strict=True
        ):
            assert new == pytest.approx(old, rel=1e-3)


def test_dry_run_builds_and_plans_every_width_of_the_papers_size():
    lines = list(EXPERIMENT.dry_run("paper"))
    for width in (384, 768, 1024, 2048):
        assert any(f"width {width}," in line and f"× {384 / width:.4g}" in line for line in lines)
    assert EXPERIMENT.cost("paper", 1).runs == 200


def test_a_changed_setting_is_not_mixed_with_what_is_there(made, monkeypatch):
    folder, _, tiny = made
    monkeypatch.setitem(experiment.SIZES, "cpu", dataclasses.replace(tiny, steps=2))
    with pytest.raises(OptionError, match="another config"):
        EXPERIMENT.run("cpu", folder, Execution(HERE))
