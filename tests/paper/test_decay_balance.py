"""Decay against learning over the width, in the smallest family that shows it, and the committed
numbers again.
"""

from pathlib import Path

import pytest
import torch

from mupscale.checks.probe import cross_entropy_of
from mupscale.engines import Local
from mupscale.errors import OptionError
from mupscale.paper import decay_balance as experiment
from mupscale.paper.experiment import Execution
from mupscale.paper.few_steps import FewSteps, recorded
from mupscale.targets import Family

HERE = Local(workers=0)
COMMITTED = Path(__file__).parents[2] / "results" / "decay-balance"
CPU = experiment.SIZES["cpu"]
EXPERIMENT = experiment.EXPERIMENT


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    tiny = FewSteps(
        Family("gpt:cpu_32_r1,depth=1"), (32, 64), (1, 2), steps=3, batch=1, sequence=64
    )
    folder = tmp_path_factory.mktemp("decay-balance")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(experiment.SIZES, "cpu", tiny)
        seen: list[tuple[int, int]] = []
        EXPERIMENT.run("cpu", folder, Execution(HERE, lambda *count: seen.append(count)))
        assert seen[-1] == (16, 16)
        yield folder, EXPERIMENT.findings("cpu", folder), tiny


def seen_in(folder, tiny):
    return experiment.BalanceRuns(tiny, EXPERIMENT.recorded(tiny, folder))


def test_the_balance_goes_as_the_width_to_the_power_delta(made):
    folder, _, tiny = made
    rows = [
        row
        for row in experiment._rows(seen_in(folder, tiny))
        if row.of["quantity"] == "relative" and not row.of["rate_lowered"]
    ]
    assert len(rows) == 4 * len(experiment.HIDDEN)
    for row in rows:
        assert row.slope.value == pytest.approx(row.of["delta"], abs=0.03)


def test_with_the_rate_lowered_as_decay_is_raised_less_is_learned_and_as_much_decays(made):
    folder, _, tiny = made
    seen = seen_in(folder, tiny)
    lowered = experiment.Error(1.0, matched=True)
    for taken, gained in zip(
        seen.part(lowered, "taken"), seen.part(lowered, "gained"), strict=True
    ):
        assert taken[1] == pytest.approx(taken[0], rel=1e-4)
        assert gained[1] == pytest.approx(gained[0] / 2, rel=0.25)


def test_the_first_balance_is_that_of_the_gradient():
    """Adam's first step is g/(|g| + ε), here from a gradient of our own, with torch's own norm."""
    tiny = FewSteps(
        Family("gpt:cpu_32_r1,depth=1"), (32, 64), (1, 2), steps=1, batch=1, sequence=64
    )
    job = experiment.BalanceJob(tiny, 64, 1, experiment.Error(0.5))
    found = job.result()["roles"]["mlp_in"]["balance"][0]
    model, made = job.made()
    cross_entropy_of(model, next(job.batches())).backward()
    name = next(name for name, one in made.parameters.items() if one.role == "mlp_in")
    weight, gradient = model.get_parameter(name).detach(), model.get_parameter(name).grad
    learned = torch.linalg.matrix_norm(
        gradient / (gradient.abs() + 1e-12 * made.parameters[name].eps), ord=2
    )
    decay = experiment.DECAY * made.parameters[name].weight_decay * 2**0.5
    assert decay == pytest.approx(experiment.DECAY * 2 * 2**0.5)
    assert found == pytest.approx(
        float(decay * torch.linalg.matrix_norm(weight, ord=2) / learned), rel=2e-3
    )


def test_the_parts_of_a_matrix_are_what_adam_without_decay_says():
    """W_T = D·W_0 − η Σ (1 − ηλ)^(T−1−t) r̂_t, with r̂_t from Adam on the same gradients without
    decay.
    """
    generator = torch.Generator().manual_seed(0)
    lr, decay, steps = 0.02, 1.5, 5
    first = torch.randn(12, 8, generator=generator, dtype=torch.float64)
    gradients = [torch.randn(12, 8, generator=generator, dtype=torch.float64) for _ in range(steps)]
    weight, free = torch.nn.Parameter(first.clone()), torch.nn.Parameter(first.clone())
    decayed, plain = (
        torch.optim.AdamW([weight], lr=lr, weight_decay=decay),
        torch.optim.Adam([free], lr=lr),
    )
    matrix, learned = experiment.Matrix("mlp_in", weight, lr, decay), torch.zeros_like(first)
    for gradient in gradients:
        weight.grad, free.grad = gradient.clone(), gradient.clone()
        start, before = matrix.before, free.detach().clone()
        decayed.step()
        plain.step()
        step = free.detach() - before
        learned = (1 - lr * decay) * learned + step
        matrix.note()
        norm = torch.linalg.matrix_norm
        expected = lr * decay * norm(start, ord=2) / norm(step, ord=2)
        assert matrix.balances[-1] == pytest.approx(float(expected), rel=2e-3)
    ended = matrix.ended()
    assert ended["taken"] == pytest.approx(1 - (1 - lr * decay) ** steps)
    assert ended["gained"] == pytest.approx(
        float(norm(learned, ord=2) / norm(first, ord=2)), rel=2e-3
    )
    assert ended["learned_share"] / ended["initial_share"] == pytest.approx(
        ended["gained"] / (1 - ended["taken"]), rel=1e-6
    )


def test_findings_have_figures_table_and_claims(made):
    _, found, _ = made
    assert {path.name for path in found.paths} == {
        "slopes.csv",
        "balance.png",
        "balance.svg",
        "parts.png",
        "parts.svg",
    }
    verdicts = {claim.says: claim.verdict for claim in found.claims}
    assert len(verdicts) == 5
    assert {claim.experiment for claim in found.claims} == {"decay-balance"}


def test_what_was_cut_off_is_run_again_and_is_the_same(made):
    folder, found, _ = made
    ledger = folder / "runs.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]) + lines[-1][:40])
    with pytest.raises(OptionError, match=r"runs.jsonl holds 15 of 16 runs"):
        EXPERIMENT.findings("cpu", folder)
    EXPERIMENT.run("cpu", folder, Execution(HERE))
    assert ledger.read_text().splitlines(keepends=True) == lines
    assert EXPERIMENT.findings("cpu", folder) == found


@pytest.mark.parametrize("key", ["δ = 0 width=32 seed=1", "δ = +1, η lowered width=64 seed=2"])
def test_the_committed_numbers_come_out_again(key):
    jobs = EXPERIMENT.jobs(CPU)
    committed, again = recorded(COMMITTED / "runs.jsonl", len(jobs))[1][key], jobs[key].result()
    assert again["losses"] == pytest.approx(committed["losses"], rel=1e-4)
    for role, numbers in again["roles"].items():
        for name, value in numbers.items():
            assert value == pytest.approx(committed["roles"][role][name], rel=1e-3)


def test_dry_run_builds_and_plans_every_width_of_the_papers_size():
    lines = list(EXPERIMENT.dry_run("paper"))
    for width in (384, 768, 1024, 2048):
        assert any(f"width {width}," in line and f"× {384 / width:.4g}" in line for line in lines)
    assert EXPERIMENT.cost("paper", 1).runs == 220
