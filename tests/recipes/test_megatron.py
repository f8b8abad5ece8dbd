"""The export is read by megatron-core itself: its own GPT, parameter groups and scheduler, on the
CPU.
"""

import math
import runpy
import subprocess
import sys

import pytest
import torch

from mupscale.recipes.exports.names import LLAMA_LIKE
from mupscale.training.schedule import Schedule
from tests.recipes.studies import TINY
from tests.recipes.test_exports import ALL_SCHEDULES, run, scheduled

pytestmark = pytest.mark.filterwarnings("ignore")

_GPT = """
import json, runpy, sys, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import _get_param_groups
from megatron.core.optimizer.optimizer_config import OptimizerConfig
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import TransformerConfig
parallel_state.initialize_model_parallel()
made = runpy.run_path(sys.argv[1], run_name="recipe")
flags = dict(flag.removeprefix("--").split("=") for flag in made["ARGUMENTS"] if "=" in flag)
torch.manual_seed(0)
config = TransformerConfig(
    num_layers=3, hidden_size=64, num_attention_heads=8,
    num_query_groups=2, kv_channels=8, ffn_hidden_size=96,
    use_cpu_initialization=True, gated_linear_unit=True,
    normalization="RMSNorm", add_bias_linear=False,
    activation_func=torch.nn.functional.silu,
    bias_activation_fusion=False, persist_layer_norm=False,
    gradient_accumulation_fusion=False, init_method_std=float(flags["init-method-std"]),
    embedding_init_method_std=float(flags["embedding-init-method-std"]),
)
model = GPTModel(
    config=config,
    transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=4096,
    max_sequence_length=64,
    position_embedding_type="rope",
    share_embeddings_and_output_weights=False,
)
made["rescale_"](model)
names = {id(parameter): name for name, parameter in model.named_parameters()}
settings = OptimizerConfig(
    lr=float(flags["lr"]), min_lr=float(flags["min-lr"]), weight_decay=float(flags["weight-decay"]),
    adam_eps=float(flags["adam-eps"]),
)
groups = _get_param_groups([model], settings, made["config_overrides"](settings))
identities = [(group["wd_mult"], group["lr_mult"]) for group in groups]
assert len(set(identities)) == len(identities)
assert sum(group["default_config"] for group in groups) == 1  # whose rate Megatron logs
optimizer = torch.optim.AdamW(
    groups, lr=settings.lr, weight_decay=settings.weight_decay, eps=settings.adam_eps
)
scheduler = OptimizerParamScheduler(
    optimizer, init_lr=0.0, max_lr=settings.lr, min_lr=settings.min_lr,
    lr_warmup_steps=10, lr_decay_steps=1000,
    lr_decay_style=flags["lr-decay-style"],
    start_wd=settings.weight_decay, end_wd=settings.weight_decay,
    wd_incr_steps=1000, wd_incr_style="constant",
)
scheduler.step(10)  # the end of warmup, where the rate is whole
found = {
    names[id(p)]: (group["lr"], group["weight_decay"], group["eps"],
                  p.std().item(), p.mean().item(), p.numel())
    for group in optimizer.param_groups for p in group["params"]
}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(recipe, tmp_path_factory):
    """What each parameter of Megatron's GPT gets."""
    pytest.importorskip("megatron.core")
    path = tmp_path_factory.mktemp("megatron") / "recipe.py"
    path.write_text(recipe.export("megatron"))
    done = subprocess.run(
        [sys.executable, "-c", _GPT, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    import json

    return json.loads(done.stdout.splitlines()[-1])


def rows_by_name(recipe):
    """The row of each of Megatron's tensors: of a fused one, its first part's."""
    rows = {}
    for row in recipe.rows:
        for name in LLAMA_LIKE[row.pattern].megatron:
            rows.setdefault(name, row)
    return rows


def test_groups_have_the_plans_values(recipe, found):
    import re

    rows = rows_by_name(recipe)
    for name, (lr, decay, eps, *_) in found.items():
        row = rows[re.sub(r"\.\d+\.", ".*.", name)]
        assert (lr, decay, eps) == (row.lr, row.weight_decay, row.eps), name


def test_weights_start_as_the_plan_has_them(recipe, found):
    import re

    rows = rows_by_name(recipe)
    for name, (*_, std, mean, count) in found.items():
        row = rows[re.sub(r"\.\d+\.", ".*.", name)]
        if row.std is None:
            assert (std, mean) == (0.0, row.start)
        else:
            assert std == pytest.approx(row.std, abs=6 * row.std / math.sqrt(2 * count)), name


@pytest.mark.parametrize(("name", "share"), ALL_SCHEDULES)
def test_its_schedule_is_ours_but_for_the_ends(recipe, name, share, tmp_path):
    """Megatron warms up from zero, and reaches the floor one step after the last: after warmup it
    is ours for one step more, with a decay of as many steps.
    """
    pytest.importorskip("megatron.core")
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    changed, ours = scheduled(recipe, name, share, steps=301)
    made = run(changed, "megatron", tmp_path)
    flags = dict(word.removeprefix("--").split("=") for word in made["ARGUMENTS"] if "=" in word)
    optimizer = torch.optim.AdamW([torch.zeros(1)], lr=1.0)
    decay = flags.get("lr-wsd-decay-iters")
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=float(flags["lr"]),
        min_lr=float(flags["min-lr"]),
        lr_warmup_steps=int(flags["lr-warmup-iters"]),
        lr_decay_steps=int(flags["lr-decay-iters"]),
        lr_decay_style=flags["lr-decay-style"],
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=301,
        wd_incr_style="constant",
        wsd_decay_steps=None if decay is None else int(decay),
        lr_wsd_decay_style=flags.get("lr-wsd-decay-style"),
    )
    found = []
    for _ in range(301):
        found.append(optimizer.param_groups[0]["lr"] / float(flags["lr"]))
        scheduler.step(1)
    assert (decay is None) == (ours.decay_steps is None)
    longer = Schedule(name, 302, 20, 0.1, None if decay is None else int(decay) / 302)
    assert longer.decay_steps == ours.decay_steps
    expected = [k / 20 for k in range(20)] + [longer.at(k) for k in range(20, 301)]
    assert found == pytest.approx(expected)


def test_what_it_cannot_express_is_said(recipe, analysis, tmp_path):
    import mupscale as mu
    from tests.recipes.studies import DENSE

    words = " ".join(recipe.export("megatron").split())
    assert "NOT EXPRESSED: keys and values should train at" in words
    assert "1.5 times the rate of queries" in words
    plain = mu.transfer(DENSE, to=TINY, rule="complete-p", analysis=analysis)
    assert "NOT EXPRESSED" not in plain.export("megatron")


def test_the_flags_are_printed_for_a_shell(recipe, tmp_path, capsys):
    pytest.importorskip("megatron.core")
    made = run(recipe, "megatron", tmp_path)
    runpy.run_path(str(tmp_path / "recipe.py"), run_name="__main__")
    printed = capsys.readouterr().out.split()
    assert printed == made["ARGUMENTS"]
    flags = dict(word.split("=") for word in printed if "=" in word)
    query = next(row for row in recipe.rows if row.role == "query")
    assert (float(flags["--lr"]), float(flags["--weight-decay"])) == (query.lr, query.weight_decay)
    assert float(flags["--clip-grad"]) == 0
    assert torch.tensor(float(flags["--init-method-std"])) == torch.tensor(query.std)
