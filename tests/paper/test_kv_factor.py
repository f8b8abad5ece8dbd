"""The experiment on the key/value factor: what is run, and what is said of runs whose answers are
known.
"""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from mupscale.analysis.exponents import log2_paper_factor, still_by_fit
from mupscale.errors import OptionError
from mupscale.paper.kv_factor import BASE, EXPERIMENT, _steps, _without_a_seed
from mupscale.studies import Study
from mupscale.training.preparation import plan_for

ROOT = Path(__file__).parents[2]


def key_factor(config, cell) -> float:
    made = plan_for(config.run_config(cell, {"lr": 1.0}, 42))
    rates = {p.role: p.lr for p in made.parameters.values()}
    return rates["key"] / rates["query"]


def test_the_factors_are_those_of_the_question():
    config = EXPERIMENT.config("cpu")
    found = {
        (cell.rule_name, 12 // cell.dimensions["n_kv_heads"]): key_factor(config, cell)
        for cell in config.cells()
    }
    for r in (4, 12):
        wanted = {
            "complete-p": 1,
            "gqa-mup": (1 + r**0.5) / 2,
            "kv-half": 0.5,
            "kv-sqrt-r": r**0.5,
            "kv-r": r,
        }
        assert {rule: found[rule, r] for rule in wanted} == pytest.approx(wanted, rel=1e-15)


def test_without_sharing_every_rule_is_the_same_training():
    config = replace(EXPERIMENT.config("cpu"), vary={"n_kv_heads": (12,)})
    runs = [
        plan_for(config.run_config(cell, {"lr": 1.0}, 42)).parameters for cell in config.cells()
    ]
    values = [[value for p in parameters.values() for value in p.values] for parameters in runs]
    assert all(one == pytest.approx(values[0]) for one in values)


def test_the_base_is_the_cell_of_the_ablation():
    base, dense = EXPERIMENT.base_config("cpu"), Study.open(ROOT / "results" / "gqa-dense").config
    ours = base.run_config(base.cells()[0], {"lr": 2**-6}, 42)
    cell = next(c for c in dense.cells() if c.name == base.cells()[0].name)
    assert ours == dense.run_config(cell, {"lr": 2**-6}, 42)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Real runs at r = 1, and made ones beside: losses of recorded cells, with bowls in the factor
    put over them.
    """
    place = tmp_path_factory.mktemp("kv") / "kv-factor"
    seeds = (42, 43, 44)  # of the recorded cells
    study = Study.create(replace(EXPERIMENT.config("cpu"), seeds=seeds), place)
    Study.create(replace(EXPERIMENT.base_config("cpu"), seeds=seeds), place / BASE)
    dense = [
        json.loads(line)
        for line in (ROOT / "results/gqa-dense/records.jsonl").read_text().splitlines()[1:]
    ]
    results = [row["result"] for row in dense if row["result"]["rule"] == "complete-p"]
    plain = {
        (one["variant"]["n_kv_heads"], one["seed"], one["params"]["lr"]): one for one in results
    }
    for target in (study, Study.open(place / BASE)):
        _write(target, plain)
    return place


def _write(study: Study, plain: dict) -> None:
    """Each cell takes the recorded runs of its r, and 0.006 nats for each squared octave from f =
    1.
    """
    lines = [json.dumps({"about": {"study": study.config.identity()}})]
    for cell in study.config.cells():
        offset = math.log2(key_factor(study.config, cell))
        heads, number = cell.dimensions["n_kv_heads"], 0
        for seed in study.config.seeds:
            for k in range(9):
                lr = 2.0 ** (-8 + k / 2)
                recorded = plain[heads, seed, lr]
                own = {
                    "cell": cell.name,
                    "rule": cell.rule_name,
                    "number": number,
                    "variant": dict(cell.dimensions),
                }
                result = recorded | own | {"loss": recorded["loss"] + 0.006 * offset**2}
                lines.append(json.dumps({"job": f"{cell.name}/{number:04d}", "result": result}))
                number += 1
    (study.folder / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_findings_answer_both_questions_with_intervals(folder):
    found = EXPERIMENT.exponents("cpu", folder)
    assert found.runs == 11 * 27
    # The optimum is the same whatever the factor: nothing can bound the first, and the second is f
    # = 1 by making.
    assert not found.still.gamma.bounded
    assert abs(found.loss.gamma.value) < 0.1
    assert found.loss.gamma.excludes(1)
    claims = EXPERIMENT.claims_in("cpu", folder)
    assert [claim.verdict for claim in claims] == ["ours", "ours"]
    assert "not bounded" in claims[0].seen
    # Losses have one fit, so that its interval only points.
    assert "points against f = (1 + √r)/2" in claims[1].seen
    assert all(claim.kind == "best rates" for claim in claims)
    assert "by the other fits: quadratic γ" in claims[0].seen
    assert "steps: 481 at r = 1, 427 at r = 4, 415 at r = 12" in claims[0].seen
    assert "(3 seeds)" in claims[0].seen


def test_the_figure_and_the_table_are_written(folder):
    found = EXPERIMENT.findings("cpu", folder)
    assert (folder / "figures" / "factors.png").exists()
    rows = (folder / "factors.csv").read_text().splitlines()
    assert len(rows) == 12
    assert any("γ not bounded" in line for line in found.lines)


def test_without_runs_at_the_base_it_says_what_to_run(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "a" / "kv-factor", ignore=shutil.ignore_patterns(BASE))
    with pytest.raises(OptionError, match="no runs at r = 1"):
        EXPERIMENT.exponents("cpu", tmp_path / "a" / "kv-factor")
    with pytest.raises(OptionError, match="nothing was run there"):
        EXPERIMENT.claims_in("cpu", tmp_path)


def test_the_dry_run_checks_every_cell_at_both_scales():
    lines = list(EXPERIMENT.dry_run("cpu"))
    assert sum("kv-half" in line for line in lines) == 2
    assert any("complete-p.n_kv_heads-12" in line for line in lines)


class TestRecorded:
    """What the committed runs say, recomputed here by other means."""

    @pytest.fixture
    def tried(self):
        return EXPERIMENT.tried("cpu", ROOT / "results" / "kv-factor")

    def test_the_cubic_of_each_seed_excludes_the_papers_factor_as_the_paired_t_test_does(
        self, tried
    ):
        """γ = 1 is excluded if the sum over r of what the optimum moves by is not 0 (t-test)."""
        found = still_by_fit(tried)
        sums = np.zeros(6)
        for r in (4, 12):
            lever = log2_paper_factor(r)
            moved = [cubic_minimum(one) for one in tried if (one.r, one.log2_factor) == (r, lever)]
            base = [cubic_minimum(one) for one in tried if one.r == 1]
            sums += lever * (moved[0] - base[0])
        assert stats.ttest_1samp(sums, 0).pvalue == pytest.approx(0.017, abs=0.002)
        assert found["cubic"].excludes(1)
        assert not found["Gaussian process"].excludes(1)
        assert found["quadratic"] is None

    def test_without_one_seed_the_upper_end_reaches_beyond_the_papers_factor(self, tried):
        text = _without_a_seed(tried)
        ends = [float(one) for one in re.findall(r"(\d+\.\d+) \(without", text)]
        assert ends[0] < 1 < ends[1]
        fewer = [replace(one, runs=[run for run in one.runs if run.seed < 45]) for one in tried]
        assert _without_a_seed(fewer) == ""


def cubic_minimum(one) -> np.ndarray:
    """Of each seed's runs within two octaves of the lowest mean loss, by numpy alone."""
    rates = sorted({math.log2(run.params["lr"]) for run in one.runs})
    losses = {(run.seed, math.log2(run.params["lr"])): run.loss for run in one.runs}
    table = np.array([[losses[seed, rate] for rate in rates] for seed in range(42, 48)])
    centre = rates[int(table.mean(axis=0).argmin())]
    near = np.abs(np.array(rates) - centre) <= 2
    x, fine = np.array(rates)[near], np.linspace(max(rates[0], centre - 2), centre + 2, 4001)
    fine = fine[fine <= rates[-1]]
    return np.array([fine[np.polyval(np.polyfit(x, y[near], 3), fine).argmin()] for y in table])


def test_runs_of_the_same_length_need_no_remark(folder):
    tried = EXPERIMENT.tried("cpu", folder)
    assert "which may move the optimum" in _steps(tried)
    same = [replace(one, runs=[replace(run, steps=9) for run in one.runs]) for one in tried]
    assert _steps(same) == ""
