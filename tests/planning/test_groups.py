"""Groups for an optimizer: few, named, safe for schedules, and checked."""

import copy

import numpy
import pytest
import torch
from torch import nn

import mupscale as mu
from mupscale.errors import NotExactError, OptionError, PlanMismatchError, UnknownNameError
from tests.planning.models import Fusable, batch, hugging_face, loss_of, model_and_base, train


@pytest.fixture
def llama():
    return model_and_base("llama")


def planned(llama, **options):
    model, base = llama
    return model, mu.plan(model, base=base, **options)


class TestGroups:
    def test_are_as_many_as_there_are_values_however_deep(self):
        common = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 1,
                  "intermediate_size": 96, "vocab_size": 61}  # fmt: skip
        counts = set()
        for depth in (2, 9):
            model = hugging_face("llama", num_hidden_layers=depth, **common)
            plan = mu.plan(
                model,
                base=hugging_face("llama", num_hidden_layers=1, **(common | {"hidden_size": 16})),
            )
            groups = plan.param_groups(model, lr=0.1, weight_decay=0.1)
            counts.add(len(groups))
            held = [id(p) for group in groups for p in group["params"]]
            assert sorted(held) == sorted(id(p) for p in model.parameters())
            assert len({group["name"] for group in groups}) == len(groups)
            values = [(group["lr"], group["weight_decay"], group["eps"]) for group in groups]
            assert len(set(values)) == len(values)
        assert len(counts) == 1
        assert counts.pop() <= 12

    def test_have_base_times_factor_and_the_start_of_a_schedule(self, llama):
        model, plan = planned(llama)
        for group in plan.param_groups(
            model, lr=0.01, weight_decay=0.2, eps=1e-6, betas=(0.8, 0.9)
        ):
            for name, tensor in zip(group["param_names"], group["params"], strict=True):
                p = plan.parameters[name]
                assert model.get_parameter(name) is tensor
                assert (group["lr"], group["weight_decay"], group["eps"]) == (
                    0.01 * p.lr,
                    0.2 * p.weight_decay,
                    1e-6 * p.eps,
                )
            assert group["initial_lr"] == group["lr"]
            assert group["betas"] == (0.8, 0.9)

    def test_epsilon_is_torchs_own_unless_said_and_absent_where_there_is_none(self, llama):
        model, plan = planned(llama)
        readout = next(g for g in plan.param_groups(model, lr=0.1) if g["name"] == "readout")
        assert readout["eps"] == torch.optim.AdamW(model.parameters()).defaults["eps"]
        for optimizer in ("sgd", "lion", "adafactor"):
            plan = mu.plan(model, base=llama[1], optimizer=optimizer)
            if plan.hooks:
                plan.attach_(model)
            assert all("eps" not in group for group in plan.param_groups(model, lr=0.1))
            with pytest.raises(OptionError, match="eps"):
                plan.param_groups(model, lr=0.1, eps=1e-8)

    def test_a_role_may_have_a_base_value_of_its_own(self, llama):
        model, plan = planned(llama)
        groups = plan.param_groups(
            model, lr={"default": 0.01, "embedding": 0.04}, weight_decay={"default": 0.1, "key": 0}
        )
        rate = {name: g["lr"] for g in groups for name in g["param_names"]}
        decay = {name: g["weight_decay"] for g in groups for name in g["param_names"]}
        assert rate["model.embed_tokens.weight"] == 0.04
        assert rate["lm_head.weight"] == 0.01 * plan.parameters["lm_head.weight"].lr
        assert decay["model.layers.0.self_attn.k_proj.weight"] == 0
        assert decay["model.layers.0.self_attn.v_proj.weight"] > 0

    @pytest.mark.parametrize(
        "number", [torch.tensor(0.25), torch.tensor([0.25]), numpy.float32(0.25)], ids=repr
    )
    def test_a_tensor_is_a_number(self, llama, number):
        """torch's own optimizers accept one too."""
        model, plan = planned(llama)
        expected = plan.param_groups(
            model, lr={"default": 0.25, "key": 0.25}, weight_decay=0.25, eps=0.25
        )
        groups = plan.param_groups(
            model, lr={"default": number, "key": number}, weight_decay=number, eps=number
        )
        for one, other in zip(groups, expected, strict=True):
            assert all(
                one[key] == other[key] and type(one[key]) is float
                for key in ("lr", "weight_decay", "eps")
            )
        plan.initialize_(model, std=number, seed=0)
        assert model.model.embed_tokens.weight.std().item() == pytest.approx(0.25, rel=0.1)
        plan.verify(torch.optim.AdamW(groups), lr=number, weight_decay=number, eps=number)

    @pytest.mark.parametrize(
        "bad",
        [
            torch.tensor([0.1, 0.1]),
            torch.tensor(1j),
            torch.tensor(True),
            torch.zeros((), device="meta"),
        ],
        ids=str,
    )
    def test_a_tensor_that_is_not_one_number(self, llama, bad):
        model, plan = planned(llama)
        with pytest.raises(
            OptionError, match=r"lr: tensor\(.*\) for default must be a finite number"
        ):
            plan.param_groups(model, lr=bad)

    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"lr": {"embedding": 4}}, OptionError, "has no value for .*default"),
            ({"lr": {"default": 1, "embeding": 4}}, UnknownNameError, "Did you mean 'embedding'"),
            ({"lr": {"default": 1, "router": 4}}, OptionError, "no parameter has the role router"),
            ({"lr": -1}, OptionError, "lr: -1"),
            ({"lr": float("nan")}, OptionError, "lr: nan"),
            ({"lr": "0.1"}, OptionError, "lr: '0.1'"),
            (
                {"lr": 0.1, "weight_decay": {"default": 0.1, "gain": 0.1}},
                OptionError,
                "do not decay",
            ),
            ({"lr": 0.1, "optimizer": "muon"}, UnknownNameError, "muon"),
        ],
    )
    def test_wrong_values_are_named(self, llama, values, error, message):
        model, plan = planned(llama)
        with pytest.raises(error, match=message):
            plan.param_groups(model, **values)

    def test_frozen_parameters_are_left_out(self, llama):
        model, plan = planned(llama)
        model.model.embed_tokens.weight.requires_grad_(False)
        groups = plan.param_groups(model, lr=0.1)
        assert "embedding" not in {group["name"] for group in groups}

    def test_of_another_model_are_refused(self, llama):
        model, plan = planned(llama)
        with pytest.raises(
            PlanMismatchError, match=r"another model: this one has no lm_head\.weight"
        ):
            plan.param_groups(nn.Linear(2, 2), lr=0.1)
        with pytest.raises(PlanMismatchError, match=r"\(61, 16\) here and \(61, 32\)"):
            plan.param_groups(self.shrunk(model), lr=0.1)

    def shrunk(self, model):
        other = copy.deepcopy(model)
        other.model.embed_tokens.weight = nn.Parameter(torch.zeros(61, 16))
        return other

    def test_independent_decay_does_not_pass_through_the_rate(self, llama):
        """As in Loshchilov & Hutter's algorithm: the schedule multiplies both, the rate only the
        step.
        """
        model, plan = planned(llama, decay="independent")
        plan.initialize_(model, std=0.02, seed=0)
        optimizer = torch.optim.AdamW(plan.param_groups(model, lr=0.01, weight_decay=0.003))
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        for name, p in model.named_parameters():
            shrink = 1.0 if plan.parameters[name].role == "gain" else 1 - 0.003
            torch.testing.assert_close(p, before[name] * shrink, rtol=1e-12, atol=0)
        with pytest.raises(OptionError, match="lr=0"):
            plan.param_groups(model, lr=0.0, weight_decay=0.1)


class TestMuon:
    def test_two_optimizers_share_the_parameters(self, llama):
        model, plan = planned(llama, optimizer="muon")
        with pytest.raises(OptionError, match="adamw and muon together"):
            plan.param_groups(model, lr=0.1)
        muon = torch.optim.Muon(
            plan.param_groups(model, lr=0.02, weight_decay=0.1, optimizer="muon")
        )
        adamw = torch.optim.AdamW(
            plan.param_groups(model, lr=0.01, weight_decay=0.1, optimizer="adamw")
        )
        held = [id(p) for o in (muon, adamw) for group in o.param_groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in model.parameters())
        plan.verify(muon, lr=0.02, weight_decay=0.1)
        plan.verify(adamw, lr=0.01, weight_decay=0.1)

    def test_torchs_own_is_refused_where_a_tensor_is_not_one_matrix(self):
        gpt2, base = model_and_base("gpt2 (tied, biases, transposed, fused)")
        with pytest.raises(NotExactError, match=r"transposed.*mupscale\.optim\.Muon"):
            mu.plan(gpt2, base=base, optimizer="muon").param_groups(gpt2, lr=0.1, optimizer="muon")
        fused = Fusable(64, 8, 2, fused=True)
        plan = mu.plan(fused, base=Fusable(32, 4, 4, fused=True), optimizer="muon")
        assert plan.hooks == ()
        with pytest.raises(NotExactError, match="different rates"):
            plan.param_groups(fused, lr=0.1, optimizer="muon")

    @pytest.mark.parametrize(
        ("kind", "adjustment"),
        [
            ("muon", "original"),
            ("muon-match-rms", "match_rms_adamw"),
            ("muon-spectral", "spectral"),
        ],
    )
    def test_the_groups_say_how_steps_are_lengthened(self, llama, kind, adjustment):
        model, plan = planned(llama, optimizer=kind)
        groups = plan.param_groups(model, lr=0.02, optimizer=kind, split_rows=True)
        assert {group["adjust_lr_fn"] for group in groups} == {adjustment}
        assert mu.optim.Muon(groups)
        if kind == "muon-spectral":
            with pytest.raises(NotExactError, match=r"torch\.optim\.Muon does not support"):
                plan.param_groups(model, lr=0.02, optimizer=kind)
        else:
            plain = plan.param_groups(model, lr=0.02, optimizer=kind)
            assert torch.optim.Muon(plain).param_groups[0]["adjust_lr_fn"] == adjustment

    def test_without_sharing_a_fused_matrix_may_be_one_or_three(self):
        fused = Fusable(64, 8, 8, fused=True)
        plan = mu.plan(fused, base=Fusable(32, 4, 4, fused=True), optimizer="muon")
        assert torch.optim.Muon(plan.param_groups(fused, lr=0.1, optimizer="muon"))
        groups = plan.param_groups(fused, lr=0.1, optimizer="muon", split_rows=True)
        blocks = next(g["blocks"] for g in groups if "fused_qkv" in g["name"])
        assert [(slices, rate, decay) for slices, rate, decay in blocks] == [
            (((0, 64),), 1, 1),
            (((64, 128),), 1, 1),
            (((128, 192),), 1, 1),
        ]

    def test_rows_of_a_fused_matrix_step_as_matrices_of_their_own(self):
        """Our Muon on the fused model against torch's on the separate one, from the same start."""
        losses = []
        start = Fusable(64, 8, 2, fused=False)
        for fused in (True, False):
            model = copy.deepcopy(start) if not fused else Fusable(64, 8, 2, fused=True)
            base = Fusable(32, 4, 4, fused=fused)
            plan = mu.plan(model, base=base, optimizer="muon")
            if fused:
                copy_fused(start, model)
            kind = mu.optim.Muon if fused else torch.optim.Muon
            options = {"split_rows": True} if fused else {}
            muon = kind(
                plan.param_groups(model, lr=0.02, weight_decay=0.5, optimizer="muon", **options)
            )
            adamw = torch.optim.AdamW(plan.param_groups(model, lr=0.01, optimizer="adamw"))
            losses.append([step_both(model, muon, adamw, step) for step in range(5)])
        torch.testing.assert_close(
            torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-5, atol=1e-5
        )


def copy_fused(source, target):
    state = {name: p for name, p in source.state_dict().items() if ".attn.q" not in name}
    for k in range(len(source.blocks)):
        parts = [state.pop(f"blocks.{k}.attn.{x}_proj.weight", None) for x in "kv"]
        query = source.blocks[k].attn.q_proj.weight
        state[f"blocks.{k}.attn.qkv_proj.weight"] = torch.cat([query, *parts])
    target.load_state_dict(state)


def step_both(model, muon, adamw, step):
    loss = loss_of(model, batch(step))
    loss.backward()
    for optimizer in (muon, adamw):
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


class TestVerification:
    def test_holds_through_a_schedule_and_a_reload(self, llama):
        model, plan = planned(llama)
        plan.initialize_(model, std=0.1, seed=0)
        values = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-6}
        optimizer = torch.optim.AdamW(plan.param_groups(model, **values))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        for _ in range(3):
            train(model, optimizer, steps=1)
            schedule.step()
        plan.verify(optimizer)
        plan.verify(optimizer, **values)
        again = torch.optim.AdamW(plan.param_groups(model, **values))
        again.load_state_dict(optimizer.state_dict())
        plan.verify(again, **values)

    @pytest.mark.parametrize("field", ["lr", "weight_decay", "eps"])
    def test_names_the_group_and_the_field(self, llama, field):
        model, plan = planned(llama)
        optimizer = torch.optim.AdamW(plan.param_groups(model, lr=0.01, weight_decay=0.1))
        group = next(g for g in optimizer.param_groups if g["name"] == "readout")
        group["initial_lr" if field == "lr" else field] *= 2
        with pytest.raises(PlanMismatchError, match=rf"\(readout\): {field} is") as caught:
            plan.verify(optimizer)
        assert "embedding" not in str(caught.value)

    def test_sees_a_group_that_left_the_schedule(self, llama):
        model, plan = planned(llama)
        optimizer = torch.optim.AdamW(plan.param_groups(model, lr=0.01))
        optimizer.param_groups[0]["lr"] *= 0.5
        with pytest.raises(
            PlanMismatchError,
            match=r"\(embedding\+gain\): lr is at 0\.5 of its start, the others are at 1",
        ):
            plan.verify(optimizer)

    def test_sees_what_another_run_has_left(self, llama):
        """The state of an optimizer with one value for all has as many groups, and none of the
        plan's values.
        """
        model, plan = planned(llama)
        groups = plan.param_groups(model, lr=0.01, weight_decay=0.1)
        flat = torch.optim.AdamW(
            [{**group, "lr": 0.01, "initial_lr": 0.01, "weight_decay": 0.1} for group in groups]
        )
        optimizer = torch.optim.AdamW(plan.param_groups(model, lr=0.01, weight_decay=0.1))
        optimizer.load_state_dict(flat.state_dict())
        with pytest.raises(PlanMismatchError, match=r"weight_decay is 0\.1, the plan has 0"):
            plan.verify(optimizer)

    def test_wrong_base_values_and_mixed_groups(self, llama):
        model, plan = planned(llama)
        optimizer = torch.optim.AdamW(plan.param_groups(model, lr=0.01))
        with pytest.raises(PlanMismatchError, match=r"lr is 0\.01, the plan has 0\.02"):
            plan.verify(optimizer, lr=0.02)
        with pytest.raises(PlanMismatchError, match="has no param_names"):
            plan.verify(torch.optim.AdamW(model.parameters()))
        names, tensors = zip(*model.named_parameters(), strict=True)
        mixed = torch.optim.AdamW([{"params": list(tensors), "param_names": list(names)}])
        with pytest.raises(
            PlanMismatchError,
            match=r"group 0 \(without a name\): lr is 0.001, the plan has 0.0005 for "
            r".*q_proj\.weight",
        ):
            plan.verify(mixed)
        stranger = torch.optim.AdamW(
            [{"params": [nn.Parameter(torch.zeros(1))], "param_names": ["other"]}]
        )
        with pytest.raises(PlanMismatchError, match="holds other, which is not in the plan"):
            plan.verify(stranger)

    def test_goes_by_the_tensors_where_names_may_lie(self, llama):
        """torch takes the names of a group from the state that is loaded, whatever the group
        holds.
        """
        model, plan = planned((llama[0], llama[0]))
        rates = [{"default": 0.01, role: 0.02} for role in ("key", "value")]
        saved, loaded = (
            torch.optim.AdamW(plan.param_groups(model, lr=lr, weight_decay=0.1)) for lr in rates
        )
        plan.verify(saved, model=model, lr=rates[0])
        loaded.load_state_dict(saved.state_dict())
        plan.verify(loaded, lr=rates[0])
        with pytest.raises(
            PlanMismatchError, match=r"lr is .* for model\.layers\.\*\.self_attn\.v_proj\.weight"
        ):
            plan.verify(loaded, model=model, lr=rates[0])
        stranger = torch.optim.AdamW([{"params": [nn.Parameter(torch.zeros(1))]}])
        with pytest.raises(PlanMismatchError, match="a tensor unknown to the model"):
            plan.verify(stranger, model=model)

    def test_holds_where_nothing_is_decayed(self, llama):
        model, plan = planned(llama)
        plan.verify(torch.optim.AdamW(plan.param_groups(model, lr=0.01)))

    def test_independent_decay(self, llama):
        model, plan = planned(llama, decay="independent")
        optimizer = torch.optim.AdamW(plan.param_groups(model, lr=0.01, weight_decay=0.1))
        plan.verify(optimizer, lr=0.01, weight_decay=0.1)


class TestClipping:
    def test_scales_down_to_the_norm_and_says_what_it_was(self, llama):
        model, plan = planned(llama, multipliers="hook")
        plan.initialize_(model, std=0.3, seed=0)
        loss_of(model, batch(0)).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        torch.testing.assert_close(plan.clip_grad_norm_(model, 0.1), norm)
        after = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        assert after.item() == pytest.approx(0.1, rel=1e-5)
        assert plan.clip_grad_norm_(model, 5.0).item() == pytest.approx(0.1, rel=1e-5)

    @pytest.mark.parametrize("max_norm", [0, -1, float("nan"), float("inf")])
    def test_a_norm_that_cannot_be(self, llama, max_norm):
        model, plan = planned(llama)
        with pytest.raises(OptionError, match="max_norm"):
            plan.clip_grad_norm_(model, max_norm)

    def test_gradients_that_are_not_finite(self, llama):
        model, plan = planned(llama)
        loss_of(model, batch(0)).backward()
        model.lm_head.weight.grad[0, 0] = float("nan")
        with pytest.raises(mu.MupscaleError, match="nan"):
            plan.clip_grad_norm_(model, 1.0, error_if_nonfinite=True)

    def test_without_gradients_there_is_nothing_to_clip(self, llama):
        model, plan = planned(llama)
        assert plan.clip_grad_norm_(model, 1.0).item() == 0

    def test_a_hook_can_be_removed_and_needs_names(self, llama):
        model, plan = planned(llama)
        optimizer = torch.optim.SGD(
            mu.plan(model, base=llama[1], optimizer="sgd").param_groups(model, lr=0.0)
        )
        handle = plan.clip_before_step(optimizer, 1e-3)
        loss_of(model, batch(0)).backward()
        big = model.lm_head.weight.grad.norm().item()
        handle.remove()
        optimizer.step()
        assert model.lm_head.weight.grad.norm().item() == big
        plan.clip_before_step(optimizer, 1e-3)
        optimizer.step()
        assert model.lm_head.weight.grad.norm().item() < big / 10
        with pytest.raises(PlanMismatchError, match="no param_names"):
            plan.clip_before_step(torch.optim.SGD(model.parameters(), lr=0.1), 1.0)
