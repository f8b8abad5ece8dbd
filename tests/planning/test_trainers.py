"""Real trainers: transformers' Trainer, torch.compile and torch's schedulers train what a plain
loop trains.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

import mupscale
from mupscale.errors import OptionError, PlanMismatchError

STEPS, BATCH, CONTEXT, VOCABULARY = 6, 4, 12, 64
TUNED = {"lr": 2**-6, "weight_decay": 0.1, "eps": 1e-8}
SURPRISE = 2  # the step whose batch repeats one token, which makes a gradient several times as long
MAX_NORM = (
    0.8  # binds at that step; where factors are folded, torch's own norm is beyond it at every step
)
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 32, "tie_word_embeddings": False,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def llama(width: int) -> PreTrainedModel:
    """Grouped queries with r = 2 at every width."""
    heads = width // 16
    return LlamaForCausalLM(
        LlamaConfig(hidden_size=width, intermediate_size=3 * width, num_attention_heads=heads,
                    num_key_value_heads=heads // 2, num_hidden_layers=width // 32, **COMMON)
    )  # fmt: skip


def phi3(width: int) -> PreTrainedModel:
    """Queries, keys and values in one matrix, with r = 1 in the base and r = 4 in the target: its
    rows are hooked.
    """
    heads = width // 16
    return Phi3ForCausalLM(
        Phi3Config(hidden_size=width, intermediate_size=2 * width, num_attention_heads=heads,
                   num_key_value_heads=1 if width > 32 else heads, num_hidden_layers=width // 32,
                   original_max_position_embeddings=32, **COMMON)
    )  # fmt: skip


Build = Callable[[int], PreTrainedModel]


def planned(build: Build, **choices: Any) -> tuple[mupscale.Plan, PreTrainedModel]:
    """A plan, and a model drawn by it."""
    with torch.device("meta"):
        base = build(32)
    model = build(64)
    plan = mupscale.plan(model, base=base, **choices)
    plan.initialize_(model, std={"default": 0.06, "embedding": 1.0}, seed=0)
    return plan, model


@pytest.fixture(params=[llama, phi3], ids=["llama", "phi3"])
def build(request: pytest.FixtureRequest) -> Build:
    return request.param


def sequences() -> list[Tensor]:
    tokens = torch.randint(
        VOCABULARY, (STEPS, BATCH, CONTEXT), generator=torch.Generator().manual_seed(0)
    )
    tokens[SURPRISE] = 1
    return list(tokens.flatten(0, 1))


def batches() -> Iterator[Tensor]:
    yield from torch.stack(sequences()).split(BATCH)


def warmup(optimizer: Optimizer) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))


def plain_loop(plan: mupscale.Plan, model: nn.Module) -> list[float]:
    """What every trainer is compared with: its losses, step by step."""
    optimizer = AdamW(plan.param_groups(model, **TUNED))
    scheduler, losses = warmup(optimizer), []
    for tokens in batches():
        loss = loss_of(model, tokens)
        loss.backward()
        plan.clip_grad_norm_(model, MAX_NORM)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    options = {"use_cache": False} if hasattr(model, "config") else {}
    output = model(tokens, **options)
    logits = getattr(output, "logits", output)
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


# transformers.Trainer


def trainer_for(model: nn.Module, optimizer: Optimizer, folder: Path, **settings: Any) -> Trainer:
    """A Trainer that reads the sequences in order and does not clip (default)."""
    defaults: dict[str, Any] = {
        "max_steps": STEPS, "per_device_train_batch_size": BATCH, "max_grad_norm": 0,
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
        "use_cpu": True,
        "train_sampling_strategy": "sequential", "dataloader_pin_memory": False,
    }  # fmt: skip
    data = [{"input_ids": tokens, "labels": tokens} for tokens in sequences()]
    arguments = TrainingArguments(str(folder), **defaults | settings)
    return Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, warmup(optimizer)))


def losses_of(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(("build", "accumulated"), [(llama, 1), (phi3, 2)], ids=["llama", "phi3"])
def test_transformers_trainer_gives_the_losses_of_a_plain_loop(build, accumulated, tmp_path):
    plan, model = planned(build)
    optimizer = AdamW(plan.param_groups(model, **TUNED))
    plan.clip_before_step(optimizer, MAX_NORM)
    pieces = {
        "per_device_train_batch_size": BATCH // accumulated,
        "gradient_accumulation_steps": accumulated,
    }
    trainer = trainer_for(model, optimizer, tmp_path, **pieces)
    trainer.train()
    plan.verify(optimizer, **TUNED)
    assert losses_of(trainer) == pytest.approx(plain_loop(*planned(build)), rel=0, abs=1e-5)


def test_a_run_resumed_by_transformers_follows_the_plan_and_the_losses_of_a_plain_loop(
    build, tmp_path
):
    plan, model = planned(build)
    optimizer = AdamW(plan.param_groups(model, **TUNED))
    plan.clip_before_step(optimizer, MAX_NORM)
    trainer_for(model, optimizer, tmp_path, save_strategy="steps", save_steps=STEPS // 2).train()

    fresh = build(
        64
    )  # as after a restart: the weights are the checkpoint's, the hooks are put back
    plan.attach_(fresh)
    optimizer = AdamW(plan.param_groups(fresh, **TUNED | {"lr": 1.0}))
    plan.clip_before_step(optimizer, MAX_NORM)
    trainer = trainer_for(fresh, optimizer, tmp_path)
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS // 2}"))
    plan.verify(optimizer, **TUNED)
    assert losses_of(trainer) == pytest.approx(plain_loop(*planned(build)), rel=0, abs=1e-5)


def test_a_checkpoint_with_other_rates_is_refused_and_the_group_named(tmp_path):
    plan, model = planned(llama)
    tampered = AdamW(plan.param_groups(model, **TUNED))
    readout = next(group for group in tampered.param_groups if group["name"] == "readout")
    readout["lr"] = readout["initial_lr"] = TUNED[
        "lr"
    ]  # what every group would have without a plan
    trainer_for(model, tampered, tmp_path, save_strategy="steps", save_steps=STEPS // 2).train()

    optimizer = AdamW(plan.param_groups(model, **TUNED))
    plan.verify(optimizer, **TUNED)
    trainer_for(model, optimizer, tmp_path).train(
        resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS // 2}")
    )
    with pytest.raises(
        PlanMismatchError, match=r"readout.*: lr is 0\.015625, the plan has 0\.0078125"
    ):
        plan.verify(optimizer)


def trained_with_own_clipping(multipliers: str, folder: Path) -> list[float]:
    plan, model = planned(llama, multipliers=multipliers)
    trainer = trainer_for(
        model, AdamW(plan.param_groups(model, **TUNED)), folder, max_grad_norm=MAX_NORM
    )
    trainer.train()
    return losses_of(trainer)


def test_a_trainers_own_clipping_sees_what_was_folded_and_the_plans_does_not(tmp_path):
    """torch's norm is right for the model with its factors in the forward pass, and wrong once they
    are folded.
    """
    by_plan = plain_loop(*planned(llama))
    hooked, folded = (
        trained_with_own_clipping(multipliers, tmp_path) for multipliers in ("hook", "fold")
    )
    assert hooked == pytest.approx(by_plan, rel=0, abs=1e-5)
    assert folded[0] == pytest.approx(by_plan[0], rel=0, abs=1e-5)
    assert max(abs(a - b) for a, b in zip(folded, by_plan, strict=True)) > 1e-4


def test_a_trainer_that_clips_before_the_plan_is_noticed_while_it_trains(tmp_path):
    plan, model = planned(llama)
    optimizer = AdamW(plan.param_groups(model, **TUNED))
    plan.clip_before_step(optimizer, MAX_NORM)
    trainer = trainer_for(model, optimizer, tmp_path, max_grad_norm=0.05)
    with pytest.warns(UserWarning, match="their norm was 0.05 before clip_before_step"):
        trainer.train()
    with pytest.warns(UserWarning, match=r"the trainer clips gradients \(max_grad_norm=0\.05\)"):
        plan.verify(trainer.optimizer, trainer=trainer)  # wrapped by accelerate by now


# torch.compile


class SmallAttention(nn.Module):
    """So few kernels that inductor's C++ compiler finishes soon."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in "qo")
        self.k_proj, self.v_proj = (nn.Linear(width, width // 2, bias=False) for _ in "kv")

    def forward(self, x_BTC: Tensor) -> Tensor:
        q, k, v = (
            f(x_BTC).unflatten(-1, (-1, 16)).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class SmallModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(VOCABULARY, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList([SmallAttention(width) for _ in range(width // 32)])
        self.readout = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTC = self.tokens(ids_BT)
        for block in self.blocks:
            x_BTC = x_BTC + block(x_BTC)
        return self.readout(self.norm(x_BTC))


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize(
    ("build", "choices", "hooks", "backend"),
    [
        (llama, {}, 0, "aot_eager"),
        (phi3, {}, 2, "aot_eager"),  # on the rows of each block's fused matrix
        (
            SmallModel,
            {"multipliers": "hook"},
            3,
            "inductor",
        ),  # on the outputs of two branches and of the readout
    ],
    ids=["folded", "hooked rows", "hooked outputs"],
)
def test_a_compiled_model_is_one_graph_with_the_losses_of_the_eager_one(
    build, choices, hooks, backend
):
    eager = plain_loop(*planned(build, **choices))
    plan, model = planned(build, **choices)
    assert len(plan.hooks) == hooks
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert plain_loop(plan, compiled) == pytest.approx(eager, rel=0, abs=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    "compiled", [torch.compile, lambda model: model.compile() or model], ids=["wrapped", "method"]
)
def test_hooks_are_refused_after_compiling(compiled):
    plan, _ = planned(phi3)
    model = compiled(phi3(64))
    with pytest.raises(OptionError, match=r"already compiled.*before torch\.compile"):
        plan.attach_(model)
    with pytest.raises(OptionError, match="already compiled"):
        plan.initialize_(model, std=0.02, seed=0)


def test_a_plan_without_hooks_takes_a_compiled_model_as_well():
    plan, drawn = planned(llama)
    compiled = torch.compile(llama(64))
    plan.initialize_(compiled, std={"default": 0.06, "embedding": 1.0}, seed=0)
    assert all(
        torch.equal(a, b) for a, b in zip(compiled.parameters(), drawn.parameters(), strict=True)
    )


# Schedules


def warmup_then_cosine(optimizer: Optimizer) -> LRScheduler:
    def share(step: int) -> float:
        return step / 5 if step < 5 else (1 + math.cos(math.pi * (step - 5) / 15)) / 2

    return LambdaLR(optimizer, share)


def torchs_own(optimizer: Optimizer) -> LRScheduler:
    stages = [LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, 15)]
    return SequentialLR(optimizer, stages, milestones=[5])


@pytest.fixture(scope="module")
def plan_and_model() -> tuple[mupscale.Plan, PreTrainedModel]:
    return planned(llama)


@pytest.mark.parametrize("schedule", [warmup_then_cosine, torchs_own])
def test_a_schedule_that_multiplies_all_rates_keeps_to_the_plan_at_every_step(
    plan_and_model, schedule
):
    plan, model = plan_and_model
    optimizer = AdamW(plan.param_groups(model, **TUNED))
    scheduler = schedule(optimizer)
    for _ in range(20):
        plan.verify(optimizer)
        plan.verify(optimizer, **TUNED)
        optimizer.step()
        scheduler.step()
    plan.verify(optimizer, **TUNED)


def test_in_the_middle_of_a_schedule_a_group_changed_by_hand_is_named(plan_and_model):
    plan, model = plan_and_model
    optimizer = AdamW(plan.param_groups(model, **TUNED))
    scheduler = warmup_then_cosine(optimizer)
    for _ in range(10):
        optimizer.step()
        scheduler.step()
    number, group = next(
        (k, g) for k, g in enumerate(optimizer.param_groups) if g["name"] == "readout"
    )
    group["lr"] *= 2
    with pytest.raises(
        PlanMismatchError, match=rf"^[^\n]*\n  group {number} \(readout\): lr is at [^\n]*$"
    ):
        plan.verify(optimizer)


def test_a_schedule_with_one_floor_for_all_groups_leaves_the_plan(plan_and_model):
    """eta_min is a rate, not a share: every group ends at the same one."""
    plan, model = plan_and_model
    optimizer = AdamW(plan.param_groups(model, **TUNED))
    scheduler = CosineAnnealingLR(optimizer, 20, eta_min=TUNED["lr"] / 10)
    for _ in range(10):
        optimizer.step()
        scheduler.step()
    with pytest.raises(PlanMismatchError, match="lr is at"):
        plan.verify(optimizer)
