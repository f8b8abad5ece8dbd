import dataclasses
import json
import math
import re

import pytest
import torch

import mupscale as mu
from mupscale.errors import OptionError, StudyFailedError, UnknownNameError, UnreadableModelError
from mupscale.models import GPT, GPTConfig, budget, parameter_counts
from mupscale.recipes.shapes import shape_of
from mupscale.recipes.values import BaseValue, carried
from mupscale.studies import Study
from mupscale.targets import resolve
from tests.recipes.studies import DENSE, TINY, dense, written

BASE = GPTConfig(width=32, depth=1, n_heads=4, head_dim=8, vocabulary=256, context=64)
"""What the dense table's rates are relative to."""


def diverged(trial):
    return {**trial, "status": "diverged", "loss": None}


def on_meta(config):
    with torch.device("meta"):
        return GPT(config)


def test_a_recipe_for_the_base_itself_is_the_base_values(analysis):
    recipe = mu.transfer(DENSE, to=on_meta(BASE), rule="gqa-mup", analysis=analysis)
    assert {row.lr for row in recipe.rows} == {recipe.lr.value}
    assert {row.weight_decay for row in recipe.rows} == {0.1, 0.0}  # gains are not decayed
    assert {row.eps for row in recipe.rows} == {recipe.eps.value} == {3.125e-11}
    assert {row.std for row in recipe.rows} == {0.1, None}


def test_rows_hold_what_the_plan_gives_the_optimizer(recipe):
    model = resolve(TINY).model
    groups = recipe.plan.param_groups(model, **recipe.base_values)
    by_name = {name: group for group in groups for name in group["param_names"]}
    for name, parameter in recipe.plan.parameters.items():
        row = next(row for row in recipe.rows if row.pattern == parameter.template)
        assert (row.lr, row.weight_decay, row.eps) == tuple(
            by_name[name][k] for k in ("lr", "weight_decay", "eps")
        )
    assert sum(row.count for row in recipe.rows) == len(recipe.plan.parameters)


def test_keys_and_values_have_the_factor_of_the_rule(analysis):
    def rates(rule):
        rows = mu.transfer(DENSE, to=TINY, rule=rule, analysis=analysis).rows
        return {row.role: row.lr for row in rows}

    shared, plain = rates("gqa-mup"), rates("complete-p")
    assert shared["key"] / shared["query"] == pytest.approx(
        (1 + math.sqrt(4)) / 2
    )  # r = 4 from a base with r = 1
    assert plain["key"] == plain["query"]


def test_decay_is_carried_over_by_value_and_by_time_scale(analysis):
    by_value, by_tau = (
        mu.transfer(
            DENSE, to=TINY, rule="mup", analysis=analysis, decay=kept, run=mu.TargetRun(tokens=1e9)
        )
        for kept in ("wd", "tau")
    )
    steps = by_value.length.steps
    assert by_value.weight_decay.value == by_value.decay.by_wd.value == 0.1
    assert by_tau.decay.by_wd == by_value.decay.by_wd
    tau = 1 / (by_tau.lr.value * 0.1 * by_tau.decay.proxy_steps)
    assert by_tau.weight_decay.value == pytest.approx(1 / (by_tau.lr.value * tau * steps))
    assert by_tau.decay.target_tau == pytest.approx(tau) == by_tau.decay.proxy_tau
    assert by_value.decay.target_tau == pytest.approx(tau * by_tau.decay.proxy_steps / steps)


def test_effective_time_scales_are_those_of_the_groups(analysis):
    """Under mup decay is not scaled, so hidden matrices remember longer than the embedding, by the
    width ratio.
    """
    wide = on_meta(dataclasses.replace(BASE, width=128, n_heads=16))
    recipe = mu.transfer(DENSE, to=wide, rule="mup", analysis=analysis)
    low, high = recipe.effective_taus
    assert low == pytest.approx(recipe.decay.target_tau)
    assert high / low == pytest.approx(4)
    scaled = mu.transfer(DENSE, to=wide, rule="complete-p", analysis=analysis)
    assert scaled.effective_taus == pytest.approx((scaled.decay.target_tau,) * 2)


def test_the_length_follows_the_papers_rules(analysis):
    recipe = mu.transfer(
        DENSE, to="gpt:kvr_12", rule="mup", analysis=analysis, run=mu.TargetRun(tokens=881_900_000)
    )
    rule = budget(881_900_000)
    assert (
        recipe.shape.parameters
        == parameter_counts(resolve("gpt:kvr_12").model.config).non_embedding
    )
    assert (recipe.length.batch_sequences, recipe.length.steps, recipe.length.warmup) == (
        33,
        3262,
        65,
    )
    assert (recipe.length.batch_tokens, recipe.length.steps) == (rule.batch_tokens, rule.iterations)
    short = mu.transfer(
        DENSE,
        to="gpt:kvr_12",
        rule="mup",
        analysis=analysis,
        run=mu.TargetRun(tokens=881_900_000, sequence=1024),
    )
    assert short.length.batch_tokens == recipe.length.batch_tokens


def test_tokens_per_parameter_default_to_the_studys(analysis):
    recipe = mu.transfer(DENSE, to=TINY, rule="mup", analysis=analysis)
    assert recipe.length.tokens_per_parameter == pytest.approx(2.0, rel=0.01)
    with pytest.raises(OptionError, match="Give one"):
        mu.transfer(
            DENSE,
            to=TINY,
            analysis=analysis,
            run=mu.TargetRun(tokens=1e9, tokens_per_parameter=20),
        )
    with pytest.raises(OptionError, match="too few to train"):
        mu.transfer(DENSE, to=TINY, analysis=analysis, run=mu.TargetRun(tokens=10))


def test_the_cost_is_six_flops_a_parameter_and_token(recipe):
    study, total = Study.open(DENSE), 0
    cells = {cell.name: cell for cell in study.config.cells()}
    for trial in study.trials:
        model = study.config.run_config(cells[trial.cell], trial.params, trial.seed).model
        total += 6 * parameter_counts(model).non_embedding * trial.tokens
    assert recipe.evidence.study_flops == total
    assert recipe.evidence.target_flops == 6 * recipe.shape.parameters * recipe.length.tokens
    assert recipe.evidence.share == total / recipe.evidence.target_flops


def test_experts_cost_what_a_token_passes():
    shape = shape_of(
        resolve("hf:mixtral,num_hidden_layers=1,hidden_size=64,intermediate_size=96").model
    )
    experts = 8 * 3 * 64 * 96
    assert shape.parameters - shape.active_parameters == experts * 6 // 8  # two of eight


def test_risks_name_every_distance_with_its_number(analysis):
    recipe = mu.transfer(
        DENSE, to="qwen3-32b", analysis=analysis, run=mu.TargetRun(tokens_per_parameter=20)
    )
    said = "\n".join(recipe.risks)
    for words in (
        "width 5120 is 53.3 times the largest swept (96)",
        "depth 64 is 32 times the largest swept (2)",
        "r = 8 is not among the swept values of r (1, 4, 12)",
        "GPT → Qwen3ForCausalLM; feed-forward not gated → gated",
        "256 tokens (python-stdlib) → 151,936",
        "20 tokens per parameter: 10 times the largest swept (2)",
        "Published rules change the rate by",
        "head_dim differs (8 → 128)",
    ):
        assert words in said
    near = mu.transfer(DENSE, to=on_meta(BASE), rule="mup", analysis=analysis)
    assert not any(
        "width" in risk or "depth" in risk or "architecture" in risk for risk in near.risks
    )


def test_the_recipe_says_what_the_records_do_not_tell_apart(analysis):
    recipe = mu.transfer(DENSE, to=TINY, analysis=analysis)
    assert recipe.rule == "complete-p"
    assert "indistinguishable from gqa-mup" in recipe.why
    assert "better than mup" in recipe.why
    assert recipe.exit_status == 0
    assert "differ only in r" in " ".join(recipe.to_text().split())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t if t["params"]["lr"] < 2**-6.9 else None, "edge of the range"),
        (lambda t: t if t["number"] < 2 else None, "too few trials"),
        (
            lambda t: t if t["cell"] != "gqa-mup.n_kv_heads-1" else diverged(t),
            "runs finished",
        ),
    ],
    ids=["edge", "few", "one model diverged"],
)
def test_a_study_that_does_not_tell_is_inconclusive(tmp_path, change, reason):
    recipe = mu.transfer(dense(tmp_path, change), to=TINY, rule="gqa-mup")
    assert recipe.exit_status == 3
    assert reason in "; ".join(recipe.doubts)
    assert "INCONCLUSIVE" in recipe.to_text()
    assert "INCONCLUSIVE" in recipe.export("pytorch")
    json.loads(recipe.to_json())


def alone(folder, seeds=(1,)):
    """A study of one model."""
    config = {
        "name": "alone",
        "rules": ["mup"],
        "seeds": list(seeds),
        "space": {"lr": [2**-8, 2**-4]},
        "model": dataclasses.asdict(BASE) | {"n_kv_heads": 4, "d_ff": 128},
        "data": {"sequence": 64},
        "search": {"method": "grid"},
        "length": {"steps": 100, "batch": 4},
    }
    points = [(-8 + k / 2, 2 + 0.05 * (k / 2 - 2.2) ** 2 + 0.001 * (-1) ** k) for k in range(9)]
    trials = [
        {
            "cell": "mup",
            "rule": "mup",
            "seed": seed,
            "params": {"lr": 2**x},
            "loss": y + 0.01 * seed,
            "steps": 100,
            "tokens": 25600,
        }
        for seed in seeds
        for x, y in points
    ]
    return written(folder, config, trials)


def test_one_model_alone_says_that_transfer_was_not_measured(tmp_path):
    recipe = mu.transfer(alone(tmp_path), to=TINY)
    assert recipe.log2_lr.value == pytest.approx(-5.8, abs=0.1)
    assert "Transfer itself was not measured" in recipe.to_text()
    assert any("rests on the rule alone" in risk for risk in recipe.risks)


@pytest.mark.parametrize(("seeds", "few"), [((1,), True), ((1, 2), True), ((1, 2, 3), False)])
def test_fewer_than_three_seeds_are_a_risk(tmp_path, seeds, few):
    recipe = mu.transfer(alone(tmp_path, seeds), to=TINY)
    warned = [risk for risk in recipe.risks if re.match(rf"only {len(seeds)} seeds?:", risk)]
    assert bool(warned) == few


def own(folder, **changes):
    """A study of a trainer of one's own: a Llama over two widths, with the decay's time scale
    searched too.
    """
    target = TINY.replace("hidden_size=64", "hidden_size=32").replace(
        "intermediate_size=96", "intermediate_size=48"
    )
    config = {
        "name": "own",
        "rules": ["complete-p"],
        "seeds": [1, 2],
        "vary": {"width": [32, 64]},
        "space": {"lr": [2**-9, 2**-3], "tau_epoch": [0.1, 10]},
        "search": {"method": "random", "trials": 40},
        "trainer": {"command": ["train", "{lr}", "{tau_epoch}", "{plan}"], "target": target},
        "optimizer": {"std": 0.02, "betas": [0.9, 0.95]},
    }
    trials = []
    for cell, width in (("complete-p.width-32", 32), ("complete-p.width-64", 64)):
        for k in range(40):
            x, y = -8.5 + (k * 0.7549) % 1 * 5, -3 + (k * 0.5698) % 1 * 6
            loss = 3 + 0.04 * (x + 6) ** 2 + 0.03 * (y - 0.5) ** 2 + 0.0005 * math.sin(9 * k)
            trials.append(
                {
                    "cell": cell,
                    "rule": "complete-p",
                    "variant": {"width": width},
                    "seed": 1 + k % 2,
                    "params": {"lr": 2**x, "tau_epoch": 2**y},
                    "loss": loss,
                    "steps": 200,
                    "tokens": 400_000,
                }
                | changes
            )
    return written(folder, config, trials)


def test_a_trainer_of_ones_own_hands_over_its_time_scale(tmp_path):
    recipe = mu.transfer(own(tmp_path), to=TINY, decay="tau")
    assert recipe.log2_lr.value == pytest.approx(-6, abs=0.1)
    assert recipe.plan.base["width"] == 32
    assert recipe.decay.target_tau == pytest.approx(2**0.5, rel=0.05)
    by_hand = 1 / (recipe.lr.value * recipe.decay.target_tau * recipe.length.steps)
    assert recipe.weight_decay.value == pytest.approx(by_hand)
    assert recipe.weight_decay.low < recipe.weight_decay.value < recipe.weight_decay.high


def test_what_a_trainer_did_not_say_is_asked_for(tmp_path):
    with pytest.raises(
        OptionError,
        match=r"not give tokens per run, .*TunedBase\(eps=…, clip=…\), run=TargetRun\(tokens=",
    ):
        mu.transfer(own(tmp_path / "a", tokens=None), to=TINY)
    recipe = mu.transfer(own(tmp_path / "b", tokens=None), to=TINY, run=mu.TargetRun(tokens=1e8))
    assert recipe.evidence.study_flops is None
    assert "an unknown number" in recipe.to_text()
    with pytest.raises(OptionError, match="report their steps"):
        mu.transfer(own(tmp_path / "c", steps=None), to=TINY, run=mu.TargetRun(tokens=1e8))


def test_wrong_use_is_said_in_one_line(tmp_path, analysis):
    with pytest.raises(UnknownNameError, match="rule of this study 'sp'"):
        mu.transfer(DENSE, to=TINY, rule="sp", analysis=analysis)
    with pytest.raises(UnknownNameError, match="carry decay over 'lambda'"):
        mu.transfer(DENSE, to=TINY, decay="lambda", analysis=analysis)
    with pytest.raises(OptionError, match="std=-1"):
        mu.transfer(DENSE, to=TINY, analysis=analysis, base=mu.TunedBase(std=-1))
    with pytest.raises(OptionError, match="not a target"):
        mu.transfer(DENSE, to=3, analysis=analysis)
    with pytest.raises(OptionError, match="the study searched it"):
        mu.transfer(own(tmp_path / "own"), to=TINY, base=mu.TunedBase(weight_decay=0.1))
    with pytest.raises(OptionError, match=r"no finished trial yet. Run it: mupscale sweep"):
        mu.transfer(dense(tmp_path / "empty", lambda _: None), to=TINY)
    with pytest.raises(StudyFailedError, match="no trial finished"):
        mu.transfer(dense(tmp_path / "bad", lambda t: diverged(t)), to=TINY)


def test_decay_inside_of_the_gradient_has_no_time_scale(recipe):
    decay = BaseValue.fixed(0.1, "not searched")
    found = carried("wd", 0.01, decay, None, proxy_steps=100, target_steps=1000, kind="l2")
    assert (found.by_wd.value, found.by_tau, found.proxy_tau) == (0.1, None, None)
    with pytest.raises(OptionError, match="l2 decay has no time scale"):
        carried("tau", 0.01, decay, None, proxy_steps=100, target_steps=1000, kind="l2")
    assert (
        dataclasses.replace(
            recipe, plan=dataclasses.replace(recipe.plan, decay="l2")
        ).effective_taus
        is None
    )


def test_independent_decay_has_the_time_scale_of_its_own_steps():
    decay = BaseValue.fixed(0.1, "not searched")
    found = carried(
        "tau", 0.01, decay, None, proxy_steps=100, target_steps=1000, kind="independent"
    )
    assert found.proxy_tau == pytest.approx(1 / (0.1 * 100)) == found.target_tau
    assert found.value.value == pytest.approx(1 / (found.proxy_tau * 1000))


def test_a_model_with_constants_needs_a_base_of_its_own_kind(analysis):
    name = "hf:gemma2,num_hidden_layers=2,hidden_size=256,vocab_size=128,head_dim=32"
    with pytest.raises(
        UnreadableModelError, match=r"cannot be planned from the study's base .*base=model"
    ):
        mu.transfer(DENSE, to=name, analysis=analysis)
    base = mu.proxy(resolve(name).config, width=64, depth=1)
    recipe = mu.transfer(DENSE, to=name, base=base, analysis=analysis)
    assert recipe.plan.base["width"] == 64


def test_experts_are_planned_from_a_plain_base(analysis):
    name = "hf:mixtral,num_hidden_layers=1,hidden_size=64,intermediate_size=256"
    name += ",num_attention_heads=8,vocab_size=128"
    recipe = mu.transfer(DENSE, to=name, rule="complete-p", analysis=analysis)
    down = next(p for p in recipe.plan.parameters.values() if p.role == "expert_out")
    assert down.base["n_in"] == 128


def test_given_values_take_the_place_of_what_was_not_searched(analysis):
    recipe = mu.transfer(
        DENSE,
        to=TINY,
        rule="mup",
        analysis=analysis,
        base=mu.TunedBase(weight_decay=0.2, std=0.02, eps=1e-10),
    )
    assert [v.value for v in (recipe.weight_decay, recipe.std, recipe.eps)] == [0.2, 0.02, 1e-10]
    assert {v.source for v in (recipe.weight_decay, recipe.std, recipe.eps)} == {"given"}
