"""The rival of the width study: microsoft/mup by hand trains as gqa-mup does, but for gains."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from mupscale.engines.ledger import Ledger
from mupscale.models import GPT
from mupscale.training.preparation import optimizers, plan_for

pytest.importorskip("mup")

FOLDER = Path(__file__).parents[2] / "results" / "width" / "microsoft-mup"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("microsoft_mup", FOLDER / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def losses(model: nn.Module, running: list[torch.optim.Optimizer]) -> list[float]:
    tokens = torch.randint(256, (4, 33), generator=torch.Generator().manual_seed(1))
    seen: list[float] = []
    for _ in range(8):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        for optimizer in running:
            optimizer.step()
            optimizer.zero_grad()
        seen.append(loss.item())
    return seen


@pytest.mark.parametrize("width", [64, 256])
def test_without_decay_of_gains_it_is_the_same_training(script: ModuleType, width: int):
    run = script.run_of(width, 2**-6.5, 42)
    plan, ours = plan_for(run), GPT(run.model)
    plan.initialize_(ours, std=run.optimizer.std, seed=run.seed)
    expected = losses(ours, optimizers(plan, ours, run.optimizer))
    theirs = script.prepared(run)
    found = losses(theirs, [script.optimizer_of(theirs, run, script.VARIANTS[1])])
    assert found == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0] - 1


def test_mup_as_it_is_decays_gains_and_nothing_else_differs(script: ModuleType):
    run = script.run_of(256, 2**-6.5, 42)
    model = script.prepared(run)
    by_variant = [
        {
            id(p): (group["lr"], group["weight_decay"], group["eps"], group["betas"], p.ndim)
            for group in script.optimizer_of(model, run, variant).param_groups
            for p in group["params"]
        }
        for variant in script.VARIANTS
    ]
    differing = [key for key, one in by_variant[0].items() if one != by_variant[1][key]]
    assert {by_variant[0][key][-1] for key in differing} == {1}
    assert len(differing) == sum(p.ndim == 1 for p in model.parameters())
    assert {by_variant[0][key][1] for key in differing} == {0.1}
    assert {by_variant[1][key][1] for key in differing} == {0.0}


def test_its_records_are_those_of_width_64s_best_rate(script: ModuleType):
    about, results = Ledger.read(FOLDER / "losses.jsonl")
    assert 2 ** about["log2_lr"] == pytest.approx(script.best_rate())
    for one in results.values():
        assert (one["width"] in script.WIDTHS, one["seed"] in script.SEEDS) == (True, True)
        # At the base the two are one training, up to rounding that 300 steps amplify.
        mine = script.ours(one["width"], script.best_rate(), one["seed"])
        if one["width"] == 64 and one["variant"] == script.VARIANTS[1]:
            assert one["loss"] == pytest.approx(mine, abs=2e-3)
