"""Folding, hooking and fusing are the same training: losses in float64 agree over 20 steps, and
only if done right.
"""

import pytest
import torch

import mupscale as mu
from mupscale.errors import NotExactError
from tests.planning.models import SETTINGS, Fusable, batch, loss_of, model_and_base, train

OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-3}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 1e-3, "eps": 1e-3}),
    "momentum": (
        lambda groups: torch.optim.SGD(groups, momentum=0.9),
        {"lr": 0.1, "weight_decay": 1e-3},
    ),
}


def trained(model, plan, make, values, *, clip="plan", change=None):
    """Losses of 20 steps from the plan's own start."""
    plan.initialize_(model, std=0.3, seed=1)
    groups = plan.param_groups(model, **values)
    for group in groups:
        group.update(change(group) if change else {})
    optimizer = make(groups)
    clips = {
        "plan": lambda: plan.clip_grad_norm_(model, 0.05),
        "torch": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05),
        "no": None,
    }
    losses = train(model, optimizer, before_step=clips[clip])
    return torch.tensor(losses, dtype=torch.float64)


def difference(one, other):
    return (one - other).abs().max().item()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", SETTINGS)
def test_folded_and_hooked_models_have_the_same_losses(name, optimizer):
    make, values = OPTIMIZERS[optimizer]
    losses = {}
    for way in ("fold", "hook"):
        model, base = model_and_base(name)
        plan = mu.plan(model, base=base, optimizer=optimizer, multipliers=way)
        losses[way] = trained(model, plan, make, values)
        assert bool(plan.hooks) == (way == "hook" or "without gains" in name)
    assert difference(losses["fold"], losses["hook"]) < 1e-12
    assert losses["fold"].std() > 1e-3  # it did train


@pytest.mark.parametrize(
    "name", ["llama", "gpt2 (tied, biases, transposed, fused)", "olmo2 (post-norm)"]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_clipping_by_the_stored_gradients_is_another_training(name, optimizer):
    make, values = OPTIMIZERS[optimizer]
    model, base = model_and_base(name)
    plan = mu.plan(model, base=base, optimizer=optimizer)
    right = trained(model, plan, make, values, clip="plan")
    assert difference(right, trained(model, plan, make, values, clip="torch")) > 1e-5


def test_forgetting_epsilon_is_another_training():
    make, values = OPTIMIZERS["adamw"]
    model, base = model_and_base("llama")
    plan = mu.plan(model, base=base)
    right = trained(model, plan, make, values)
    assert (
        difference(right, trained(model, plan, make, values, change=lambda _: {"eps": 1e-3})) > 1e-5
    )


@pytest.mark.parametrize("name", ["tied llama", "olmo2 (post-norm)"])
def test_a_factor_that_is_left_out_is_another_training(name):
    """Without its place in a norm's gain, the factor of a tied readout or a post-norm branch would
    be lost.
    """
    make, values = OPTIMIZERS["adamw"]
    model, base = model_and_base(name)
    plan = mu.plan(model, base=base)
    right = trained(model, plan, make, values)
    gains = [p for p in plan.parameters.values() if p.role == "gain" and p.folded != 1]
    assert gains
    plan.initialize_(model, std=0.3, seed=1)
    with torch.no_grad():
        for p in gains:
            model.get_parameter(p.name).fill_(1 - p.offset)
    wrong = train(model, make(plan.param_groups(model, **values)))
    assert difference(right, torch.tensor(wrong, dtype=torch.float64)) > 1e-5


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
class TestFusedAgainstSeparate:
    """A base with r = 1 and a model with r = 4: keys and values need rates of their own."""

    def plans(self, optimizer, bias):
        models = {fused: Fusable(fused=fused, bias=bias).double() for fused in (True, False)}
        decay = "lr_coupled" if optimizer == "adamw" else "independent"
        return models, {
            fused: mu.plan(
                models[fused],
                base=Fusable(16, 2, 2, 1, fused=fused, bias=bias),
                optimizer=optimizer,
                decay=decay,
            )
            for fused in models
        }

    def start_alike(self, models, plans):
        """The separate matrices, from the fused one with its row multipliers put in."""
        plans[True].initialize_(models[True], std=0.3, seed=1)
        plans[False].initialize_(models[False], std=0.3, seed=1)
        with torch.no_grad():
            for k, block in enumerate(models[True].blocks):
                rows = plans[True].parameters[f"blocks.{k}.attn.qkv_proj.weight"].rows
                separate = models[False].blocks[k].attn
                for part, row in zip(
                    (separate.q_proj, separate.k_proj, separate.v_proj), rows, strict=True
                ):
                    start, stop = row.slices[0]
                    part.weight.copy_(block.attn.qkv_proj.weight[start:stop] * row.multiplier)

    def losses(self, optimizer, bias, matching_epsilon):
        make, values = OPTIMIZERS[optimizer]
        values = values | {"weight_decay": 0.0 if optimizer == "momentum" else 0.1}
        models, plans = self.plans(optimizer, bias)
        self.start_alike(models, plans)
        c = plans[True].parameters["blocks.0.attn.qkv_proj.weight"].rows[1].multiplier
        result = []
        for fused, model in models.items():
            groups = plans[fused].param_groups(model, **values)
            if not fused and matching_epsilon:
                for group in groups:
                    if set(group["name"].split("+")) <= {"key", "value"} and "eps" in group:
                        group["eps"] /= c
            optimizer_ = make(groups)
            clip = lambda plan=plans[fused], model=model: plan.clip_grad_norm_(model, 0.05)  # noqa: E731
            result.append(
                torch.tensor(train(model, optimizer_, before_step=clip), dtype=torch.float64)
            )
        return c, *result

    def test_the_same_losses(self, optimizer, bias):
        c, fused, separate = self.losses(optimizer, bias, matching_epsilon=True)
        assert c == pytest.approx(1.5 if optimizer == "adamw" else 0.75**0.5)
        assert difference(fused, separate) < 1e-12

    def test_the_epsilon_of_the_fused_rows_is_that_of_the_matrix_over_c(self, optimizer, bias):
        _, fused, separate = self.losses(optimizer, bias, matching_epsilon=False)
        assert (difference(fused, separate) > 1e-7) == (optimizer == "adamw")  # SGD has no epsilon


def test_fused_rows_cannot_have_an_l2_decay_of_their_own():
    model = Fusable(64, 8, 2, fused=True)
    with pytest.raises(
        NotExactError, match="would need a different decay, which one matrix cannot have"
    ):
        mu.plan(model, base=Fusable(32, 4, 4, fused=True), optimizer="adam")
    assert mu.plan(model, base=Fusable(32, 4, 1, fused=True), optimizer="adam").hooks == ()


@pytest.mark.parametrize("way", ["fold", "hook"])
@pytest.mark.parametrize("name", [name for name in SETTINGS if "without gains" not in name])
def test_a_baked_model_computes_the_same_without_hooks(name, way):
    model, base = model_and_base(name)
    plan = mu.plan(model, base=base, multipliers=way)
    plan.initialize_(model, std=0.3, seed=1)
    train(model, torch.optim.AdamW(plan.param_groups(model, lr=0.01)), steps=3)
    before = loss_of(model, batch(0)).item()
    plan.bake_(model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert loss_of(model, batch(0)).item() == pytest.approx(before, abs=1e-12)
    if plan.hooks:
        with pytest.raises(mu.MupscaleError, match="hooks"):
            plan.param_groups(model, lr=0.01)


def test_a_baked_fused_model_computes_the_same():
    model = Fusable(fused=True, bias=True).double()
    plan = mu.plan(model, base=Fusable(16, 2, 2, 1, fused=True, bias=True))
    plan.initialize_(model, std=0.3, seed=1)
    with torch.no_grad():
        model.blocks[0].attn.qkv_proj.bias.normal_()
    before = loss_of(model, batch(0)).item()
    plan.detach_(model)
    assert abs(loss_of(model, batch(0)).item() - before) > 1e-6
    plan.attach_(model)
    plan.bake_(model)
    assert loss_of(model, batch(0)).item() == pytest.approx(before, abs=1e-13)


def test_what_cannot_be_baked_is_left_as_it_was():
    model, base = model_and_base("olmo (norms without gains, tied)")
    plan = mu.plan(model, base=base)
    plan.initialize_(model, std=0.3, seed=1)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    with pytest.raises(NotExactError, match=r"lm_head.*Keep the hook"):
        plan.bake_(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.named_parameters())
    plan.param_groups(model, lr=0.01)


def test_the_hook_before_a_step_clips_as_the_plan_does():
    make, values = OPTIMIZERS["adamw"]
    model, base = model_and_base("llama")
    plan = mu.plan(model, base=base)
    right = trained(model, plan, make, values)
    plan.initialize_(model, std=0.3, seed=1)
    optimizer = make(plan.param_groups(model, **values))
    plan.clip_before_step(optimizer, 0.05)
    assert difference(right, torch.tensor(train(model, optimizer), dtype=torch.float64)) < 1e-13
