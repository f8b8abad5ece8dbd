"""`verify`: the optimizer's class and settings, weights that the plan never drew, and a second
clipping.
"""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adafactor, Adam, AdamW, Muon, NAdam
from transformers import Trainer, TrainingArguments

import mupscale as mu
from mupscale.errors import OptionError, PlanMismatchError
from mupscale.optim import Lion
from mupscale.planning import clipping, fingerprint
from tests.planning.models import SETTINGS, Fusable, batch, loss_of, model_and_base, train


def planned(name: str = "llama", **choices: Any) -> tuple[nn.Module, mu.Plan]:
    model, base = model_and_base(name)
    return model, mu.plan(model, base=base, **choices)


@pytest.fixture(scope="module")
def llama() -> tuple[nn.Module, nn.Module]:
    return model_and_base("llama")


class TestClass:
    """Each of these has the plan's values in its groups, so the class itself must be checked."""

    def made(
        self, llama: Any, kind: str, cls: type, decay: float = 0.1, **settings: Any
    ) -> tuple[mu.Plan, Any]:
        model, base = llama
        plan = mu.plan(model, base=base, optimizer=kind)
        plan.attach_(model)
        groups = plan.param_groups(model, lr=0.01, weight_decay=decay)
        plan.detach_(model)
        return plan, cls(groups, **settings)

    @pytest.mark.parametrize(
        ("kind", "cls", "settings"),
        [
            ("adamw", AdamW, {}),
            ("adamw", Adam, {"decoupled_weight_decay": True}),
            ("adamw", type("Mine", (AdamW,), {}), {}),
            ("adam", Adam, {}),
            ("sgd", SGD, {}),
            ("momentum", SGD, {"momentum": 0.9}),
            ("lion", Lion, {}),
            ("adafactor", Adafactor, {}),
        ],
    )
    def test_the_optimizer_that_the_plan_is_for(self, llama, kind, cls, settings):
        plan, optimizer = self.made(llama, kind, cls, **settings)
        assert "class" in plan.verify(optimizer).checked

    @pytest.mark.parametrize(
        ("kind", "cls", "settings", "said"),
        [
            (
                "adamw",
                Adam,
                {},
                r"torch\.optim\.adam\.Adam adds decay to the gradient \(l2\); the plan is for "
                r"lr_coupled",
            ),
            (
                "adam",
                AdamW,
                {},
                r"AdamW decays apart from the gradient.*the plan is for l2 decay\. Use "
                r"torch\.optim\.Adam",
            ),
            ("adamw", SGD, {}, "SGD is sgd without momentum; the plan is for adamw"),
            ("adamw", Lion, {}, "Lion is lion; the plan is for adamw"),
            ("lion", AdamW, {}, "AdamW is adamw; the plan is for lion"),
            ("sgd", SGD, {"momentum": 0.9}, "SGD is sgd with momentum; the plan is for sgd"),
            ("momentum", SGD, {}, "SGD is sgd without momentum; the plan is for momentum"),
            ("sgd", AdamW, {}, "AdamW is adamw; the plan is for sgd"),
        ],
    )
    def test_another_one_is_named(self, llama, kind, cls, settings, said):
        plan, optimizer = self.made(llama, kind, cls, **settings)
        with pytest.raises(PlanMismatchError, match=rf"group 0 \(.*\): .*{said}"):
            plan.verify(optimizer)

    def test_without_decay_adam_is_adamw(self, llama):
        """They differ in nothing else: torch's own steps are equal to the bit."""
        plan, optimizer = self.made(llama, "adamw", Adam, decay=0.0)
        plan.verify(optimizer)
        plan, optimizer = self.made(llama, "adam", AdamW, decay=0.0)
        plan.verify(optimizer)

    @pytest.mark.parametrize("adjust", ["match_rms_adamw", None])
    def test_muons_are_told_apart_by_how_they_lengthen_their_steps(self, llama, adjust):
        model, base = llama
        plan = mu.plan(model, base=base, optimizer="muon")
        groups = plan.param_groups(model, lr=0.01, optimizer="muon")
        plan.verify(Muon(copy.copy(groups)))
        for group in groups:
            group["adjust_lr_fn"] = adjust
        optimizer = Muon(groups)
        if adjust is None:  # torch's default is the original
            plan.verify(optimizer)
        else:
            with pytest.raises(
                PlanMismatchError, match="Muon is muon-match-rms; the plan is for muon"
            ):
                plan.verify(optimizer)
        with pytest.raises(PlanMismatchError, match="AdamW is adamw; the plan is for muon"):
            plan.verify(AdamW(plan.param_groups(model, lr=0.01, optimizer="muon")))

    def test_a_class_of_another_package_goes_by_its_name(self, llama):
        cls = type(
            "PagedAdamW8bit", (torch.optim.Optimizer,), {"__module__": "bitsandbytes.optim.adamw"}
        )
        plan, optimizer = self.made(llama, "adamw", cls, defaults={})
        plan.verify(optimizer)
        plan, optimizer = self.made(llama, "lion", cls, defaults={})
        with pytest.raises(
            PlanMismatchError, match="PagedAdamW8bit is adamw; the plan is for lion"
        ):
            plan.verify(optimizer)

    def test_one_that_is_not_known_is_warned_of(self, llama):
        plan, optimizer = self.made(llama, "adamw", NAdam)
        with pytest.warns(
            UserWarning,
            match=r"NAdam: it could not check whether it steps like adamw",
        ):
            found = plan.verify(optimizer)
        assert "class" not in found.checked
        assert found.skipped[0] == "class, since it is not known"

    @pytest.mark.parametrize(
        "wrap", [LightningOptimizer, lambda inner: SimpleNamespace(optimizer=inner)]
    )
    def test_a_wrapper_is_looked_into(self, llama, wrap):
        plan, optimizer = self.made(llama, "adamw", Adam)
        with pytest.raises(
            PlanMismatchError, match=r"torch\.optim\.adam\.Adam adds decay to the gradient"
        ):
            plan.verify(wrap(optimizer))

    @pytest.mark.parametrize("option", ["amsgrad", "maximize"])
    def test_options_without_a_rule_are_warned_of(self, llama, option):
        plan, optimizer = self.made(llama, "adamw", AdamW, **{option: True})
        with pytest.warns(UserWarning, match=f"{option}=True"):
            plan.verify(optimizer)

    def test_betas(self, llama):
        model, base = llama
        plan = mu.plan(model, base=base)
        optimizer = AdamW(plan.param_groups(model, lr=0.01, betas=(0.9, 0.95)))
        plan.verify(optimizer, betas=(0.9, 0.95))
        with pytest.raises(
            PlanMismatchError,
            match=r"group 0 .*betas are \(0\.9, 0\.95\), \(0\.9, 0\.999\) was given",
        ):
            plan.verify(optimizer, betas=(0.9, 0.999))
        optimizer.param_groups[1]["betas"] = (0.8, 0.95)
        with pytest.raises(
            PlanMismatchError,
            match=r"group 1 \(.*\): betas are \(0\.8, 0\.95\), the others have \(0\.9, 0\.95\)",
        ) as caught:
            plan.verify(optimizer)
        assert "group 0" not in str(caught.value)


class TestTolerance:
    """Policy: rounding passes, a change of a few millionths does not. 1e-6, relative."""

    @pytest.mark.parametrize("field", ["lr", "initial_lr", "weight_decay", "eps"])
    @pytest.mark.parametrize(("change", "follows"), [(5e-7, True), (3e-6, False)])
    def test_of_a_value(self, llama, field, change, follows):
        model, base = llama
        plan = mu.plan(model, base=base)
        optimizer = AdamW(plan.param_groups(model, lr=0.01, weight_decay=0.1))
        # The middle group sets what is expected of the others, so another one must change.
        optimizer.param_groups[-1][field] *= 1 + change
        if follows:
            plan.verify(optimizer)
        else:
            with pytest.raises(PlanMismatchError, match="does not follow the plan"):
                plan.verify(optimizer)

    def test_of_a_schedule(self, llama):
        model, base = llama
        plan = mu.plan(model, base=base)
        optimizer = AdamW(plan.param_groups(model, lr=0.01))
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        plan.verify(optimizer)
        optimizer.param_groups[-1]["lr"] *= 1 + 3e-6
        with pytest.raises(PlanMismatchError, match=r"lr is at 0\.5 of its start, the others"):
            plan.verify(optimizer)

    def test_a_message_about_weights_lists_eight_templates(self):
        model, plan = planned("granite (multipliers)")
        for parameter in model.parameters():
            nn.init.uniform_(parameter, 3, 4)
        with pytest.raises(PlanMismatchError) as caught:
            plan.verify(AdamW(plan.param_groups(model, lr=0.01)), model=model, std=0.02)
        lines = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
        templates = {p.template for p in plan.parameters.values()}
        assert len(lines) == 9
        assert lines[-1] == f"  and {len(templates) - 8} more"


class TestWeights:
    """The values in the groups do not depend on `initialize_`, so the weights must be checked."""

    @pytest.mark.parametrize("name", [*SETTINGS, "hand-written", "hand-written, fused"])
    @pytest.mark.parametrize(
        "std", [0.3, {"default": 0.02, "embedding": 1.0}], ids=["one std", "by role"]
    )
    def test_those_that_the_plan_drew(self, name, std):
        model, plan = self.hand_written(name) if name not in SETTINGS else planned(name)
        plan.initialize_(model, std=std, seed=5)
        optimizer = AdamW(plan.param_groups(model, lr=0.01))
        assert "weights" in plan.verify(optimizer, model=model, std=std).checked
        if std == 0.3:
            assert "weights" in plan.verify(optimizer, model=model).checked

    def hand_written(self, name: str) -> tuple[nn.Module, mu.Plan]:
        fused = name.endswith("fused")
        model = Fusable(64, 8, 2, fused=fused, bias=True)
        return model, mu.plan(model, base=Fusable(16, 2, 2, fused=fused, bias=True))

    @pytest.mark.parametrize("fused", [False, True])
    @pytest.mark.parametrize("std", [None, 0.02])
    def test_those_of_nn_linear(self, fused, std):
        model, plan = self.hand_written("fused" if fused else "")
        plan.attach_(model)
        with pytest.raises(
            PlanMismatchError, match=r"were not drawn by the plan:\n(.*\n)+Call plan\.initialize_"
        ) as caught:
            plan.verify(AdamW(plan.param_groups(model, lr=0.01)), model=model, std=std)
        assert "blocks.*.mlp.fc1.bias is not 0, the constant of the plan" in str(caught.value)

    def test_uniform_weights_of_the_right_size(self):
        model, plan = self.hand_written("")
        plan.initialize_(model, std=0.02, seed=0)
        weight = model.blocks[0].mlp.fc1.weight
        nn.init.uniform_(weight, -weight.std().item() * 3**0.5, weight.std().item() * 3**0.5)
        with pytest.raises(
            PlanMismatchError,
            match=r"blocks\.\*\.mlp\.fc1\.weight is not normal: its kurtosis is 1\.[78]",
        ):
            plan.verify(AdamW(plan.param_groups(model, lr=0.01)), model=model, std=0.02)

    @pytest.mark.parametrize("std", [None, 0.02])
    def test_those_of_transformers_which_are_normal_with_one_std(self, std):
        model, plan = planned("tied llama")
        optimizer = AdamW(plan.param_groups(model, lr=0.01))
        with pytest.raises(PlanMismatchError, match="the plan draws it with") as caught:
            plan.verify(optimizer, model=model, std=std)
        assert ("pass the same std to verify" in str(caught.value)) == (std is None)
        assert plan.verify(optimizer, model=model, drawn=False).skipped == (
            "weights, since drawn=False",
        )
        assert plan.verify(optimizer).skipped == ("weights, since no model was given",)

    def test_one_matrix_that_another_hand_drew(self):
        model, plan = planned()
        plan.initialize_(model, std=0.02, seed=0)
        optimizer = AdamW(plan.param_groups(model, lr=0.01))
        nn.init.normal_(model.model.layers[1].self_attn.k_proj.weight, std=0.03)
        with pytest.raises(
            PlanMismatchError, match=r"k_proj\.weight has a root mean square of 0\.0\d+, the plan"
        ) as caught:
            plan.verify(optimizer, model=model)
        assert str(caught.value).count("root mean square") == 1

    def test_gains_that_are_not_where_the_plan_sets_them(self):
        model, plan = planned()
        plan.initialize_(model, std=0.02, seed=0)
        nn.init.zeros_(model.model.norm.weight)
        with pytest.raises(PlanMismatchError, match=r"model\.norm\.weight is not 1, the constant"):
            plan.verify(AdamW(plan.param_groups(model, lr=0.01)), model=model)

    def test_after_a_step_they_are_left_alone_unless_asked_for(self):
        model, plan = planned()
        plan.initialize_(model, std=0.02, seed=0)
        optimizer = AdamW(plan.param_groups(model, lr=0.5))
        train(model, optimizer, steps=2)
        found = plan.verify(optimizer, model=model)
        assert found.skipped == ("weights, since the optimizer has already stepped",)
        assert "weights" not in found.checked
        with pytest.raises(PlanMismatchError, match="were not drawn by the plan"):
            plan.verify(optimizer, model=model, drawn=True)

    def test_sgd_does_not_say_whether_it_has_stepped(self):
        model, plan = planned(optimizer="sgd")
        plan.attach_(model)
        optimizer = SGD(plan.param_groups(model, lr=0.01))
        assert "drawn=True checks them" in plan.verify(optimizer, model=model).skipped[0]
        with pytest.raises(PlanMismatchError, match="were not drawn by the plan"):
            plan.verify(optimizer, model=model, drawn=True)

    def test_a_readout_that_starts_at_zero_is_a_std_of_its_own(self):
        model, plan = planned()
        std = {"default": 0.02, "readout": 0.0}
        plan.initialize_(model, std=std, seed=0)
        optimizer = AdamW(plan.param_groups(model, lr=0.01))
        plan.verify(optimizer, model=model)
        plan.verify(optimizer, model=model, std=std)
        with pytest.raises(
            PlanMismatchError,
            match=r"lm_head\.weight has a root mean square of 0, the plan draws it",
        ):
            plan.verify(optimizer, model=model, std=0.02)

    def test_half_precision_and_frozen_and_meta(self):
        model, plan = planned()
        model.bfloat16()
        plan.initialize_(model, std=0.02, seed=0)
        nn.init.ones_(model.model.embed_tokens.weight).requires_grad_(False)
        plan.verify(AdamW(plan.param_groups(model, lr=0.01)), model=model, std=0.02)
        model.to("meta")
        optimizer = AdamW(plan.param_groups(model, lr=0.01))
        assert plan.verify(optimizer, model=model).skipped == (
            "weights, since the model is on the meta device",
        )

    def test_a_padded_row_is_no_difference(self):
        model, plan = planned()
        model.model.embed_tokens.padding_idx = 3
        plan.initialize_(model, std=0.02, seed=0)
        assert not model.model.embed_tokens.weight[3].any()
        plan.verify(AdamW(plan.param_groups(model, lr=0.01)), model=model, std=0.02)
        sample = next(
            fingerprint._samples(
                plan.parameters["model.embed_tokens.weight"], torch.ones(61, 32), padded=True
            )
        )
        assert sample.rms == pytest.approx((61 / 60) ** 0.5)

    def test_std_needs_a_model(self):
        model, plan = planned()
        with pytest.raises(OptionError, match="Pass the model too"):
            plan.verify(AdamW(plan.param_groups(model, lr=0.01)), std=0.02)

    def test_what_it_takes_for_chance(self):
        """Policy: 5 % and six standard errors of the size, 0.2 and six of the kurtosis, of 65,536
        entries.
        """
        assert (fingerprint.SIZE, fingerprint.SHAPE, fingerprint.ERRORS, fingerprint.SAMPLE) == (
            0.05,
            0.2,
            6,
            65536,
        )
        parameter = planned()[1].parameters["lm_head.weight"]
        numbers = torch.randn(4096, 61, generator=torch.Generator().manual_seed(0))
        sample = next(fingerprint._samples(parameter, numbers, padded=False))
        assert sample.count == 83286
        assert sample.rms == pytest.approx(numbers.std().item(), rel=0.01)
        assert not sample.differs_from(1.04)
        assert sample.differs_from(1.08)


class TestSecondClipping:
    def made(self, plan: mu.Plan, model: nn.Module, hooked: bool = True, lr: float = 0.01) -> AdamW:
        optimizer = AdamW(plan.param_groups(model, lr=lr))
        if hooked:
            plan.clip_before_step(optimizer, 0.5)
        return optimizer

    @pytest.mark.parametrize(
        ("trainer", "said"),
        [
            (SimpleNamespace(gradient_clip_val=1.0), "gradient_clip_val=None"),
            (SimpleNamespace(args=SimpleNamespace(max_grad_norm=2.0)), "max_grad_norm=0"),
        ],
    )
    def test_a_trainer_that_clips_beside_the_plan(self, trainer, said):
        model, plan = planned()
        with pytest.warns(UserWarning, match=rf"clips them again\. Turn it off \({said}\)"):
            plan.verify(self.made(plan, model), trainer=trainer)
        with pytest.warns(UserWarning, match=r"norm after folding.*clip_before_step"):
            plan.verify(self.made(plan, model, hooked=False), trainer=trainer)

    def test_transformers_clips_unless_told_not_to(self, tmp_path):
        model, plan = planned()
        optimizer = self.made(plan, model)
        with pytest.warns(UserWarning, match=r"the trainer clips gradients \(max_grad_norm=1\)"):
            plan.verify(optimizer, trainer=TrainingArguments(str(tmp_path), use_cpu=True))
        off = TrainingArguments(str(tmp_path), use_cpu=True, max_grad_norm=0)
        assert "clipping" in plan.verify(optimizer, trainer=Trainer(model, off)).checked

    def test_where_nothing_is_folded_a_trainers_own_clipping_is_the_plans(self):
        model, plan = planned(multipliers="hook")
        plan.attach_(model)
        plan.verify(
            self.made(plan, model, hooked=False), trainer=SimpleNamespace(max_grad_norm=1.0)
        )

    def test_a_trainer_that_says_nothing(self):
        model, plan = planned()
        with pytest.raises(OptionError, match="neither max_grad_norm nor gradient_clip_val"):
            plan.verify(self.made(plan, model), trainer=object())

    def test_twice_by_the_plan_is_refused(self):
        model, plan = planned()
        optimizer = self.made(plan, model)
        with pytest.raises(OptionError, match=r"already clips before each step, to a norm of 0\.5"):
            plan.clip_before_step(optimizer, 1.0)

    def test_a_closure_makes_gradients_too_late(self):
        """Lightning steps this way: at the hook there are no gradients to clip yet."""
        model, plan = planned()
        optimizer = self.made(plan, model)
        for step in (
            lambda: optimizer.step(lambda: 0.0),
            lambda: optimizer.step(closure=lambda: 0.0),
        ):
            with pytest.raises(OptionError, match="configure_gradient_clipping"):
                step()
        optimizer.step(None)
        optimizer.step(closure=None)

    def trained(self, steps: int, **between: Any) -> clipping.ClipBeforeStep:
        """Trains like a trainer: backward, its own clipping, step."""
        model, plan = planned()
        plan.initialize_(model, std=0.3, seed=0)
        optimizer = self.made(plan, model, lr=between.get("lr", 0.01))
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, batch(between.get("batch", step))).backward()
            if "max_norm" in between:
                clip_grad_norm_(model.parameters(), between["max_norm"])
            optimizer.step()
        hook = clipping.hook_of(optimizer)
        assert hook is not None
        return hook

    def test_gradients_that_arrive_clipped_are_seen_in_five_steps(self):
        with pytest.warns(
            UserWarning, match=r"in 5 consecutive steps their norm was 0\.01 before"
        ) as caught:
            hook = self.trained(12, max_norm=0.01)
        assert hook.warned
        assert len(caught) == 1

    def test_what_is_not_clipped_or_seldom_is_no_alarm(self):
        assert not self.trained(12).warned
        assert not self.trained(12, max_norm=1e6).warned

    def test_one_batch_seen_again_and_again_is_no_alarm(self):
        """At a tiny rate its norm is constant without clipping."""
        hook = self.trained(12, batch=0, lr=1e-9)
        assert not hook.warned

    def test_how_often_it_looks(self):
        """Policy: five steps of a hundred, the same to 1e-3, with one tensor that moves by 1e-2."""
        assert (clipping.LOOK_EVERY, clipping.LOOK_AT, clipping.SAME, clipping.DIFFERENT) == (
            100,
            5,
            1e-3,
            1e-2,
        )
        hook = self.trained(9)
        assert hook.steps == 9
        assert hook.norms == []
