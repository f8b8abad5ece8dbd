"""The export is read by torchtitan itself, which `make test` installs beside the rest: see
torchtitan.txt.

`make test` runs this file once more, with torchtitan in sight; there a missing piece is a failure.
"""

import importlib
import os
import re
import sys

import pytest
import torch

import mupscale as mu
from mupscale.training.schedule import Schedule
from tests.recipes.studies import DENSE
from tests.recipes.test_exports import ALL_SCHEDULES, scheduled, titan_names

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def titan():
    name = "torchtitan.models.llama3.config_registry"
    if "TORCHTITAN" in os.environ:
        return importlib.import_module(name)
    return pytest.importorskip(
        name, exc_type=ImportError, reason="run with torchtitan in sight, by make test"
    )


def parsed(recipe, folder, monkeypatch, *arguments):
    """By torchtitan's own command line."""
    from torchtitan.config import ConfigManager

    (folder / "titan_recipe.py").write_text(recipe.export("torchtitan"))
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("titan_recipe", None)
    return ConfigManager().parse_args(
        ["--module", "titan_recipe", "--config", "recipe", *arguments]
    )


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-32b"])
def test_its_config_and_its_optimizer_hold_the_plans_values(
    name, titan, analysis, tmp_path, monkeypatch
):
    recipe = mu.transfer(DENSE, to=name, rule="gqa-mup", analysis=analysis)
    config = parsed(recipe, tmp_path, monkeypatch, "--training.local_batch_size", "1")
    length = recipe.length
    assert (config.training.steps, config.training.seq_len) == (length.steps, length.sequence)
    assert (config.training.global_batch_size, config.lr_scheduler.warmup_steps) == (
        length.batch_sequences,
        length.warmup,
    )
    with torch.device("meta"):
        model = config.model_spec.model.build()
    from torchtitan.components.optimizer import OptimizersContainer

    groups, _ = OptimizersContainer._build_param_groups(model, config.optimizer.param_groups, {})
    found = {
        parameter: (group["lr"], group["weight_decay"], group["eps"])
        for group in groups["AdamW"]
        for parameter in group["param_names"]
    }
    rows = {row.pattern: row for row in recipe.rows}
    expected = {titan: rows[p.template] for titan, p in titan_names(recipe)}
    assert found == {name: (row.lr, row.weight_decay, row.eps) for name, row in expected.items()}
    shapes = {titan: p.shape for titan, p in titan_names(recipe)}
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == shapes
    assert all(group["betas"] == recipe.betas for group in groups["AdamW"])
    for module, parent in model.named_modules():
        start = getattr(parent, "_param_init", None)
        row = expected.get(f"{module}.weight")
        if row is not None:
            value = row.std if row.std is not None else row.start
            assert next(iter(start["weight"].keywords.values())) == value, module


@pytest.mark.parametrize(("name", "share"), ALL_SCHEDULES)
def test_its_schedule_is_ours_but_for_the_last_step(
    name, share, titan, analysis, tmp_path, monkeypatch
):
    """torchtitan reaches the floor one step after the last: it is ours for one step more, with a
    decay of as many steps.
    """
    recipe = mu.transfer(DENSE, to="llama-3-8b", analysis=analysis)
    changed, ours = scheduled(recipe, name, share, steps=301)
    config = parsed(changed, tmp_path, monkeypatch)
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0)
    built = config.lr_scheduler.build(optimizers=[optimizer], training_steps=config.training.steps)
    factor = next(iter(built)).lr_lambdas[0]
    decay = ours.decay_steps
    longer = Schedule(name, 302, 20, 0.1, None if decay is None else decay / 302)
    assert longer.decay_steps == decay
    assert [factor(k) for k in range(301)] == pytest.approx([longer.at(k) for k in range(301)])


def test_another_shape_is_refused(titan, analysis, tmp_path, monkeypatch):
    recipe = mu.transfer(DENSE, to="llama-3-8b", analysis=analysis)
    parsed(recipe, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=re.escape("the recipe is for 4096 x 32")):
        sys.modules["titan_recipe"].applied(titan.llama3_debugmodel())
