"""Generated files are run by the trainer that they are for, and give what the plan gives."""

import ast
import dataclasses
import json
import math
import re
import runpy
import subprocess
import sys

import pytest
import torch

import mupscale as mu
from mupscale.errors import NotExactError, OptionError, UnknownNameError
from mupscale.recipes.exports import KINDS
from mupscale.recipes.exports.names import LLAMA_LIKE
from mupscale.recipes.exports.schedules import EXPORTED_SCHEDULES
from mupscale.targets import build, resolve
from mupscale.training.schedule import SCHEDULES, Schedule
from tests.recipes.studies import DENSE, TINY

PYTHON = ("pytorch", "transformers", "lightning")
INJECTION = 'x"""\n\nimport os; os.abort()  # \\"\x1b[31m' + "'" + "y" * 500


def run(recipe, kind, folder):
    """The names that a generated file defines."""
    path = folder / "recipe.py"
    path.write_text(recipe.export(kind))
    return runpy.run_path(str(path), run_name="recipe")


@pytest.fixture
def model():
    return build(resolve(TINY).config, device="cpu")


def values(groups, names):
    return {
        name: tuple(group[key] for key in names)
        for group in groups
        for name in group["param_names"]
    }


def batches(count=8):
    tokens = torch.randint(0, 128, (count, 16), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in tokens]


@pytest.mark.parametrize("kind", PYTHON)
def test_groups_are_those_of_the_plan_to_the_last_digit(recipe, kind, model, tmp_path):
    made = run(recipe, kind, tmp_path)
    expected = recipe.plan.param_groups(model, **recipe.base_values)
    keys = ("lr", "weight_decay", "eps")
    assert values(made["param_groups"](model), keys) == values(expected, keys)
    optimizer, _ = made["optimizer_and_schedule"](model)
    assert all(group["betas"] == (0.9, 0.95) for group in optimizer.param_groups)


def test_weights_start_as_the_plan_has_them(recipe, model, tmp_path):
    wide = build(resolve(TINY.replace("vocab_size=128", "vocab_size=4096")).config, device="cpu")
    made = run(recipe, "pytorch", tmp_path)
    made["initialize_"](wide, seed=0)
    for name, parameter in wide.named_parameters():
        planned = recipe.plan.parameters[name]
        if planned.drawn:
            wanted = recipe.std.value * planned.init_std
            spread = wanted / math.sqrt(2 * parameter.numel())
            assert parameter.std().item() == pytest.approx(wanted, abs=6 * spread)
            assert abs(parameter.mean().item()) < 6 * wanted / math.sqrt(parameter.numel())
        else:
            assert torch.all(parameter == planned.start)


SHARES = {"wsd": (0.2, 0.1, 1 / 3)}
ALL_SCHEDULES = [(name, share) for name in SCHEDULES for share in SHARES.get(name, (None,))]


def scheduled(recipe, name, share, *, steps=300, warmup=20, floor=0.1):
    """The recipe with another schedule and length, and the schedule itself."""
    length = dataclasses.replace(recipe.length, steps=steps, warmup=warmup)
    training = dataclasses.replace(recipe.training, floor=floor, schedule=name, decay_share=share)
    changed = dataclasses.replace(recipe, length=length, training=training)
    return changed, Schedule(name, steps, warmup, floor, share)


@pytest.mark.parametrize(("steps", "warmup", "floor"), [(300, 20, 0.1), (7, 3, 0.0), (2, 0, 0.7)])
@pytest.mark.parametrize(("name", "share"), ALL_SCHEDULES)
@pytest.mark.parametrize("kind", PYTHON)
def test_the_schedule_is_that_of_training_to_the_last_digit(
    recipe, kind, name, share, steps, warmup, floor, tmp_path
):
    changed, ours = scheduled(recipe, name, share, steps=steps, warmup=warmup, floor=floor)
    made = run(changed, kind, tmp_path)
    assert [made["factor"](k) for k in range(steps)] == [ours.at(k) for k in range(steps)]


@pytest.mark.parametrize(("name", "share"), ALL_SCHEDULES)
def test_the_optimizer_follows_the_schedule(recipe, name, share, model, tmp_path):
    changed, ours = scheduled(recipe, name, share, steps=30, warmup=3)
    optimizer, schedule = run(changed, "pytorch", tmp_path)["optimizer_and_schedule"](model)
    group = optimizer.param_groups[0]
    for step in range(30):
        assert group["lr"] == pytest.approx(group["initial_lr"] * ours.at(step))
        optimizer.step()
        schedule.step()


def test_every_schedule_can_be_exported():
    assert list(EXPORTED_SCHEDULES) == list(SCHEDULES)
    for name, row in SCHEDULES.items():
        assert (EXPORTED_SCHEDULES[name].megatron_wsd is not None) == row.stable


@pytest.mark.parametrize(
    ("name", "share", "given"),
    [
        ("cosine", None, {"decay_type": "cosine"}),
        ("linear", None, {"decay_type": "linear"}),
        ("wsd", 0.1, {"decay_type": "linear", "decay_ratio": 0.1}),
    ],
)
def test_torchtitans_scheduler_has_the_recipes_schedule(recipe, name, share, given):
    """test_torchtitan.py runs it; this test needs no torchtitan."""
    tree = ast.parse(scheduled(recipe, name, share)[0].export("torchtitan"))
    (made,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "LRSchedulersContainer.Config"
    ]
    found = {keyword.arg: ast.literal_eval(keyword.value) for keyword in made.keywords}
    assert found == {"warmup_steps": 20, "min_lr_factor": 0.1, **given}


def test_training_by_the_file_is_training_by_the_plan(recipe, model, tmp_path):
    made, losses = run(recipe, "pytorch", tmp_path), []
    recipe.plan.initialize_(model, std=recipe.std.value, seed=0)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    groups = recipe.plan.param_groups(model, **recipe.base_values)
    for optimizer in (made["optimizer_and_schedule"](model)[0], torch.optim.AdamW(groups)):
        model.load_state_dict(start)
        # The schedule starts its groups at the first step of warmup: here both train at the whole
        # rate.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        losses.append([])
        for batch in batches():
            loss = model(input_ids=batch["input_ids"][None], labels=batch["labels"][None]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][-1]


def test_a_model_that_is_not_the_recipes_is_refused(recipe, tmp_path):
    made = run(recipe, "pytorch", tmp_path)
    with pytest.raises(ValueError, match=r"0 patterns match \w+"):
        made["param_groups"](torch.nn.Linear(2, 2))
    without = build(resolve(f"{TINY},tie_word_embeddings=true").config, device="cpu")
    with pytest.raises(ValueError, match=r"no parameter matches \['lm_head.weight'\]"):
        made["param_groups"](without)


def clipped(recipe, norm):
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, clip=norm))


def test_clipping_takes_the_norm_before_folding(recipe, model, tmp_path):
    clipping = clipped(recipe, 1e-3)
    made = run(clipping, "pytorch", tmp_path)
    made["initialize_"](model, seed=0)
    optimizer, _ = made["optimizer_and_schedule"](model)
    batch = batches()[0]
    model(input_ids=batch["input_ids"][None], labels=batch["labels"][None]).loss.backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    by_file = {name: p.grad.clone() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.grad = before[name]
    recipe.plan.clip_grad_norm_(model, 1e-3)
    for name, p in model.named_parameters():
        torch.testing.assert_close(by_file[name], p.grad, rtol=1e-5, atol=0)
    assert "CLIP = 0.001" in clipping.export("transformers")


def test_transformers_trainer_trains_by_it(recipe, model, tmp_path):
    made = run(recipe, "transformers", tmp_path)
    made["initialize_"](model, seed=0)
    with pytest.raises(ValueError, match=r"is not a multiple of \d+. Set it to \d+"):
        made["arguments"](str(tmp_path), sequences_per_device=made["BATCH"] + 1)
    settings = made["arguments"](
        str(tmp_path / "out"),
        sequences_per_device=made["BATCH"],
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=1,
    )
    settings.max_steps = 2
    trainer = made["trainer"](model, settings, train_dataset=batches(2 * made["BATCH"]))
    trainer.train()
    assert trainer.state.global_step == 2
    groups = list(trainer.optimizer.param_groups)
    warmed = made["factor"](2)
    expected = values(
        recipe.plan.param_groups(model, **recipe.base_values), ("lr", "weight_decay", "eps")
    )
    for name, (lr, *rest) in values(groups, ("lr", "weight_decay", "eps")).items():
        assert (lr, *rest) == (expected[name][0] * warmed, *expected[name][1:])


@pytest.mark.filterwarnings("ignore")  # lightning's own
def test_lightning_trains_by_it(recipe, model, tmp_path):
    pytest.importorskip("lightning")
    made = run(recipe, "lightning", tmp_path)
    made["initialize_"](model, seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = made["trainer"](
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
        limit_train_batches=2,
        max_epochs=1,
    )
    assert trainer.max_steps == recipe.length.steps
    trainer.fit(made["Training"](model), torch.utils.data.DataLoader(batches(4), batch_size=2))
    assert trainer.global_step == 2
    assert all(not torch.equal(before[name], p) for name, p in model.named_parameters())
    (optimizer,) = trainer.optimizers
    rows = made["rows_of"](model)
    found = values(optimizer.param_groups, ("lr", "weight_decay", "eps"))
    assert found == {
        n: (row.lr * made["factor"](2), row.weight_decay, row.eps) for n, row in rows.items()
    }


@pytest.mark.filterwarnings("ignore")  # lightning's own
def test_lightning_clips(recipe, model, tmp_path):
    """It makes gradients inside of the step: a hook before the step found none, and the first step
    failed.
    """
    made = run(clipped(recipe, 1e-3), "lightning", tmp_path)
    norms = []

    class Watched(made["Training"]):
        def on_before_zero_grad(self, optimizer):
            gradients = {
                name: p.grad for name, p in self.model.named_parameters() if p.grad is not None
            }
            folded = recipe.plan.parameters
            if gradients:
                norms.append(
                    torch.stack([g.norm() * folded[n].folded for n, g in gradients.items()])
                    .norm()
                    .item()
                )

    made["initialize_"](model, seed=0)
    trainer = made["trainer"](
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
        limit_train_batches=3,
        max_epochs=1,
    )
    trainer.fit(Watched(model), torch.utils.data.DataLoader(batches(6), batch_size=2))
    assert norms == pytest.approx([1e-3] * len(norms), rel=1e-3)
    assert len(norms) >= 2


@pytest.mark.parametrize("kind", ["torchtitan", "megatron"])
def test_clipping_that_a_trainer_cannot_do_is_said(recipe, kind):
    assert "NOT EXPRESSED: the recipe clips" in clipped(recipe, 1.0).export(kind)
    assert "NOT EXPRESSED: the recipe clips" not in recipe.export(kind)


@pytest.mark.parametrize(
    ("clip", "name", "share", "floor"),
    [
        (0.0, "cosine", None, 0.0),
        (1.0, "cosine", None, 0.0),
        (0.0, "linear", None, 1 / 3),
        (1.0, "wsd", 1 / 3, 2 / 3),
    ],
)
@pytest.mark.parametrize("kind", [*PYTHON, "torchtitan", "megatron"])
def test_generated_code_is_formatted_and_needs_no_mupscale(
    recipe, kind, clip, name, share, floor, tmp_path
):
    path = tmp_path / "recipe.py"
    changed, _ = scheduled(recipe, name, share, floor=floor)
    path.write_text(clipped(changed, clip).export(kind))
    assert not re.search(r"^\s*(import|from) mupscale", path.read_text(), flags=re.M)
    for command in (
        ["format", "--isolated", "--check", "--line-length", "100"],
        ["check", "--isolated", "--line-length", "100", "--select", "E,F,W,I,B,UP"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_names_from_users_are_inert(recipe, kind):
    evidence = dataclasses.replace(recipe.evidence, study=INJECTION, members=(INJECTION,))
    poisoned = dataclasses.replace(
        recipe,
        target=INJECTION,
        rule=INJECTION,
        why=INJECTION,
        evidence=evidence,
        risks=(INJECTION,),
        doubts=(INJECTION,),
    )
    text = poisoned.export(kind)
    if kind == "json":
        assert json.loads(text)["target"]["name"] == INJECTION
        return
    plain, tree = ast.parse(recipe.export(kind)), ast.parse(text)
    assert [type(node) for node in tree.body] == [type(node) for node in plain.body]
    assert ast.dump(ast.Module(tree.body[1:], [])) == ast.dump(
        ast.Module(plain.body[1:], [])
    )  # but for the docstring
    assert "\x1b" not in text


@pytest.mark.parametrize("kind", PYTHON)
def test_names_of_parameters_are_inert(recipe, kind, tmp_path):
    first, *rest = recipe.rows
    poisoned = dataclasses.replace(
        recipe, rows=(dataclasses.replace(first, pattern=INJECTION), *rest)
    )
    assert INJECTION in run(poisoned, kind, tmp_path)["TABLE"]


def test_text_and_markdown_hold_nothing_that_acts(recipe):
    poisoned = dataclasses.replace(
        recipe, target="<script>|`\x1b[31m\n# x", risks=("a | b\n\n# c",)
    )
    text, page = poisoned.to_text(), poisoned.to_markdown()
    assert "\x1b" not in text + page
    assert "\n# x" not in text + page
    assert "\\<script>" in page
    assert "\n# c" not in text + page


def test_json_holds_the_recipe_and_the_whole_plan(recipe):
    content = json.loads(recipe.export("json"))
    assert mu.Plan.from_json(json.dumps(content["whole_plan"])) == recipe.plan
    assert content["base_values"]["lr"]["value"] == recipe.lr.value
    assert content["plan"][0]["pattern"] == "model.embed_tokens.weight"
    assert json.loads(recipe.to_json()) == {
        key: value for key, value in content.items() if key != "whole_plan"
    }


def test_what_an_export_cannot_carry_is_refused(analysis):
    fused = mu.transfer(
        DENSE,
        to="hf:phi3,hidden_size=64,num_hidden_layers=2,num_attention_heads=8,"
        "num_key_value_heads=2,intermediate_size=96,vocab_size=128,pad_token_id=0",
        rule="gqa-mup",
        analysis=analysis,
    )
    assert fused.plan.hooks
    for kind in PYTHON:
        with pytest.raises(NotExactError, match=r"hooks in the forward pass.*export json"):
            fused.export(kind)
    json.loads(fused.export("json"))
    gpt = mu.transfer(DENSE, to="gpt:cpu_64_r2", analysis=analysis)
    for kind in ("torchtitan", "megatron"):
        with pytest.raises(OptionError, match=r"supports Llama.*Export pytorch or json"):
            gpt.export(kind)
    lion = dataclasses.replace(gpt, plan=dataclasses.replace(gpt.plan, optimizer="lion"))
    with pytest.raises(OptionError, match="the study trained with lion"):
        lion.export("pytorch")
    with pytest.raises(UnknownNameError, match="Did you mean 'pytorch'"):
        gpt.export("pytorhc")


def titan_names(recipe):
    """Every parameter of the model, as torchtitan calls it."""
    for name, parameter in recipe.plan.parameters.items():
        layer = re.search(r"\.(\d+)\.", name)
        prefix = f"layers.{layer[1]}." if layer else ""
        yield prefix + LLAMA_LIKE[parameter.template].torchtitan, parameter


def test_torchtitans_patterns_find_each_parameter_once(recipe):
    """As torchtitan reads them: the first that `re.search` finds, and none without a parameter."""
    tree = ast.parse(recipe.export("torchtitan"))
    (table,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "PARAM_GROUPS"
    ]
    groups = [
        (call.args[0].value, {k.arg: k.value.value for k in call.keywords}) for call in table.elts
    ]
    unused = {pattern for pattern, _ in groups}
    by_template = {row.pattern: row for row in recipe.rows}
    for name, parameter in titan_names(recipe):
        fitting = [(pattern, given) for pattern, given in groups if re.search(pattern, name)]
        assert len(fitting) == 1, name
        row = by_template[parameter.template]
        assert fitting[0][1] == {"lr": row.lr, "weight_decay": row.weight_decay, "eps": row.eps}
        unused.discard(fitting[0][0])
    assert not unused
