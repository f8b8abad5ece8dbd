"""Two ranks plan, draw and train as one process does, whether parameters are copied (DDP) or
sharded (FSDP2).

pytest starts this file itself as each of the two ranks: python test_distributed.py RANK FOLDER
"""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

import mupscale

RANKS = 2
TUNED = {"lr": 2**-6, "weight_decay": 0.1, "eps": 1e-8}
STD = {"default": 0.06, "embedding": 1.0}
MAX_NORM = 0.25  # binds at every step
STEPS_BEFORE_RESUMING, STEPS_AFTER = 3, 2
ODD_ROWS = 65  # of the vocabulary: one rank holds 33, the other 32


def llama(width: int, *, layers: int) -> PreTrainedConfig:
    """Grouped queries with r = 2 at every width; the gate has an odd number of rows."""
    heads = width // 16
    return LlamaConfig(
        hidden_size=width, intermediate_size=3 * width + 1, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, **COMMON,
    )  # fmt: skip


def phi3(width: int, *, kv_heads: int) -> PreTrainedConfig:
    """Queries, keys and values in one matrix."""
    return Phi3Config(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=width // 16, num_key_value_heads=kv_heads,
        original_max_position_embeddings=32, **COMMON,
    )  # fmt: skip


COMMON: dict[str, Any] = {
    "vocab_size": ODD_ROWS, "max_position_embeddings": 32, "tie_word_embeddings": False,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip

# name: the model's class, its config, and that of its base
MODELS: dict[str, tuple[type[PreTrainedModel], PreTrainedConfig, PreTrainedConfig]] = {
    "llama": (LlamaForCausalLM, llama(64, layers=3), llama(32, layers=2)),
    "phi3": (
        Phi3ForCausalLM,
        phi3(64, kv_heads=1),
        phi3(32, kv_heads=2),
    ),  # r = 4 from r = 1: rows are hooked
}


# How two ranks share a model: each way returns it with its weights drawn.


def copied(kind: type[PreTrainedModel], config: PreTrainedConfig, plan: mupscale.Plan) -> nn.Module:
    model = DistributedDataParallel(kind(config))
    plan.initialize_(model, std=STD, seed=1)
    return model


def drawn_then_sharded(
    kind: type[PreTrainedModel], config: PreTrainedConfig, plan: mupscale.Plan
) -> nn.Module:
    model = kind(config)
    plan.initialize_(model, std=STD, seed=1)
    return sharded(model)


def sharded_then_drawn(
    kind: type[PreTrainedModel], config: PreTrainedConfig, plan: mupscale.Plan
) -> nn.Module:
    return _drawn_in_place(sharded(_on_meta(kind, config)), plan)


def sharded_by_columns(
    kind: type[PreTrainedModel], config: PreTrainedConfig, plan: mupscale.Plan
) -> nn.Module:
    model = _on_meta(kind, config)
    return _drawn_in_place(sharded(model, shard_placement_fn=_last_axis_if_even), plan)


WAYS = {
    way.__name__: way
    for way in (copied, drawn_then_sharded, sharded_then_drawn, sharded_by_columns)
}


def sharded(model: PreTrainedModel, **options: Any) -> PreTrainedModel:
    for block in model.model.layers:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def _last_axis_if_even(parameter: nn.Parameter) -> Shard:
    """FSDP2 cuts other axes than the first only into equal parts."""
    return Shard(0 if parameter.shape[-1] % RANKS else parameter.ndim - 1)


def _on_meta(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        return kind(config)


def _drawn_in_place(model: PreTrainedModel, plan: mupscale.Plan) -> PreTrainedModel:
    model.to_empty(device="cpu")
    model._init_weights(model.model.rotary_emb)  # buffers are not the plan's
    plan.initialize_(model, std=STD, seed=1)
    return model


# What each process does and reports, be it alone or one of two.


def report(model: nn.Module, plan: mupscale.Plan, *, resumes: bool) -> dict[str, Any]:
    """Groups, first weights, losses and gradient norms of a short run, with the optimizer restored
    on the way.
    """
    start = {name.removeprefix("module."): whole(p) for name, p in model.named_parameters()}
    local_rows = {
        name: p.to_local().shape[0]
        for name, p in model.named_parameters()
        if isinstance(p, DTensor)
    }
    batches = [batch(step) for step in range(STEPS_BEFORE_RESUMING + STEPS_AFTER)]
    optimizer = torch.optim.AdamW(plan.param_groups(model, **TUNED))
    assert "weights" in plan.verify(optimizer, model=model, std=STD, **TUNED).checked
    steps = [
        train_step(model, optimizer, plan, tokens) for tokens in batches[:STEPS_BEFORE_RESUMING]
    ]
    plan.verify(optimizer, **TUNED)
    if resumes:
        optimizer = restored(optimizer, model, plan)
        plan.verify(optimizer, **TUNED)
    steps += [
        train_step(model, optimizer, plan, tokens) for tokens in batches[STEPS_BEFORE_RESUMING:]
    ]
    losses, norms = zip(*steps, strict=True)
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    return {
        "groups": groups,
        "start": start,
        "losses": losses,
        "norms": norms,
        "local_rows": local_rows,
    }


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def batch(step: int) -> Tensor:
    """The tokens of one step: all of them, or this rank's share."""
    tokens = torch.randint(ODD_ROWS, (4, 12), generator=torch.Generator().manual_seed(step))
    return tokens[dist.get_rank() :: RANKS] if dist.is_initialized() else tokens


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, plan: mupscale.Plan, tokens: Tensor
) -> tuple[float, float]:
    logits = model(input_ids=tokens, use_cache=False).logits
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    norm = plan.clip_grad_norm_(model, MAX_NORM)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach()
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= RANKS
    return mean.item(), norm.item()


def restored(
    optimizer: torch.optim.Optimizer, model: nn.Module, plan: mupscale.Plan
) -> torch.optim.Optimizer:
    fresh = torch.optim.AdamW(plan.param_groups(model, **TUNED | {"lr": 1.0}))
    fresh.load_state_dict(optimizer.state_dict())
    return fresh


def planned(name: str) -> mupscale.Plan:
    kind, config, base = MODELS[name]
    return mupscale.plan(_on_meta(kind, config), base=base)


def planned_while_sharded(name: str) -> tuple[str, bool]:
    """What differs in a plan that is made of a sharded model, and whether that model runs
    afterwards.
    """
    kind, config, base = MODELS[name]
    model = sharded(kind(config))
    difference = str(mupscale.plan(model, base=base).diff(planned(name)))
    return difference, bool(model(input_ids=batch(0), use_cache=False).logits.isfinite().all())


def main(rank: int, folder: Path) -> None:
    store, patience = dist.FileStore(str(folder / "store"), RANKS), timedelta(seconds=60)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store, timeout=patience)
    found: dict[str, Any] = {}
    for name, (kind, config, _) in MODELS.items():
        plan = planned(name)
        for way in WAYS.values():
            found[f"{name} {way.__name__}"] = report(way(kind, config, plan), plan, resumes=True)
        found[f"{name} planned while sharded"] = planned_while_sharded(name)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The reports of two ranks, which train every model in every way."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(folder)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        pytest.fail("\n".join(outputs))
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(name: str) -> dict[str, Any]:
    """The report of one process that does not use torch.distributed."""
    kind, config, _ = MODELS[name]
    plan, model = planned(name), kind(config)
    plan.initialize_(model, std=STD, seed=1)
    return report(model, plan, resumes=False)


@pytest.mark.parametrize("way", WAYS)
def test_groups_are_those_of_one_process(name, alone, ranks, way):
    for rank in ranks:
        assert rank[f"{name} {way}"]["groups"] == alone["groups"]


@pytest.mark.parametrize("way", WAYS)
def test_weights_are_drawn_as_by_one_process_to_the_last_bit(name, alone, ranks, way):
    for rank in ranks:
        start = rank[f"{name} {way}"]["start"]
        assert list(start) == list(alone["start"])
        assert [
            key for key, weight in start.items() if not torch.equal(weight, alone["start"][key])
        ] == []


@pytest.mark.parametrize("way", WAYS)
def test_losses_and_norms_are_those_of_one_process_also_after_resuming(name, alone, ranks, way):
    assert min(alone["norms"]) > MAX_NORM
    for rank in ranks:
        run = rank[f"{name} {way}"]
        assert run["losses"] == pytest.approx(alone["losses"], rel=0, abs=1e-5)
        assert run["norms"] == pytest.approx(alone["norms"], rel=1e-4)


def test_these_runs_have_hooked_rows_and_shards_of_unequal_size(ranks):
    """Otherwise the laws above would hold trivially."""
    assert not planned("llama").hooks
    assert {hook.where for hook in planned("phi3").hooks} == {"rows"}
    for name in MODELS:
        rows = [
            rank[f"{name} sharded_then_drawn"]["local_rows"]["lm_head.weight"] for rank in ranks
        ]
        assert rows == [33, 32]


def test_a_sharded_model_has_the_plan_of_the_whole_one_and_still_runs(name, ranks):
    for rank in ranks:
        assert rank[f"{name} planned while sharded"] == ("no difference", True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
