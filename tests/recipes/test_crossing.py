"""The jump from the study's batch and length to the target's: what a recipe shows and applies."""

import dataclasses
import json
import math
import re

import pytest
import torch

import mupscale as mu
from mupscale.cli import main
from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.recipes.crossing import Averages
from mupscale.recipes.exports import KINDS
from mupscale.recipes.values import BaseValue, carried
from mupscale.targets import resolve
from mupscale.theory import RUN_CHOICES, RunFactors
from mupscale.theory.laws import LAWS
from tests.recipes.studies import DENSE, TINY, dense
from tests.recipes.test_transferring import alone, own

NEAR = mu.TargetRun(sequence=32, batch=4096, tokens=1e7)
"""4 times the study's batch of 1,024 tokens, so that every average stays one."""


def near(**changes) -> mu.TargetRun:
    return dataclasses.replace(NEAR, **changes)


def made(analysis, run: mu.TargetRun, **options):
    return mu.transfer(DENSE, to=TINY, rule="gqa-mup", analysis=analysis, run=run, **options)


def section(recipe, columns=100) -> str:
    text = recipe.to_text(columns)
    return text[text.index("From the study's run") : text.index("Values for each parameter")]


class TestTheJump:
    def test_of_the_printed_recipe_by_hand(self, analysis):
        """1,080 times the batch and 33,311 times the tokens of the three models' mean."""
        recipe = mu.transfer(DENSE, to="llama-3-8b", analysis=analysis)
        crossing = recipe.crossing
        assert crossing.base.batch == 1024
        assert crossing.target.batch == 1_105_920
        assert crossing.batch_growth == pytest.approx(1080)
        assert crossing.token_growth == pytest.approx(33_318, rel=1e-3)
        octaves = {effect.choice: round(effect.octaves, 1) for effect in crossing.effects}
        assert octaves == {
            "none": 0.0,
            "sde": 5.0,
            "completed-p": -2.5,
            "delphi": 0.5,
            "hyperp": 0.2,
            "nanochat": 5.0,
            "bjorck": -4.8,
        }
        assert any("-4.8 (bjorck) to +5.0 (" in risk for risk in recipe.risks)

    def test_every_rule_has_a_row_with_its_source(self, recipe):
        table = section(recipe)
        for choice in RUN_CHOICES:
            assert re.search(rf"^ +(→ )?{choice} ", table, flags=re.MULTILINE), choice
        for source in ("Malladi", "2512.22382", "Delphi", "2603.28743", "nanochat's", "2409.19913"):
            assert source in " ".join(table.split())
        assert "→ none" in table
        assert "an octave is a factor of two" in " ".join(table.split())

    @pytest.mark.parametrize("columns", [60, 80, 100])
    def test_it_fits_the_terminal(self, analysis, columns):
        formulas = "lr=sqrt(B)/D**0.3, weight_decay=sqrt(B), eps=1/sqrt(B), beta2=D**0.1"
        for run in (NEAR, near(run="completed-p"), near(run=formulas)):
            lines = section(made(analysis, run), columns).splitlines()
            assert max(map(len, lines)) <= columns

    def test_runs_of_several_lengths_have_their_geometric_mean(self, tmp_path):
        """Two models trained on 2 × 10^5 and 8 × 10^5 tokens."""
        study = own(tmp_path)
        base = mu.TunedBase(eps=1e-8, clip=0, model=None)
        recipe = mu.transfer(study, to=TINY, run=mu.TargetRun(floor=0), base=base)
        assert recipe.crossing.base == mu.RunSize(2000, 400_000)
        assert "every run of the study" in " ".join(section(recipe).split())
        text = (tmp_path / "records.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in text]
        for row in rows[1:]:
            wide = row["result"]["cell"].endswith("64")
            row["result"]["tokens"] = 800_000 if wide else 200_000
        (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        changed = mu.transfer(tmp_path, to=TINY, run=mu.TargetRun(floor=0), base=base)
        assert changed.crossing.base.tokens == pytest.approx(400_000)
        assert changed.crossing.base.batch == pytest.approx(2000)
        assert "geometric mean over the runs of 2 models" in " ".join(section(changed).split())

    def test_a_study_that_does_not_report_its_length_says_so(self, tmp_path):
        study = own(tmp_path, tokens=None)
        recipe = mu.transfer(study, to=TINY, run=mu.TargetRun(tokens=1e8))
        assert "Not known: the study's trials do not report" in section(recipe)
        assert recipe.crossing.effects == ()
        json.loads(recipe.to_json())
        with pytest.raises(OptionError, match=r"run='sde' needs the batch and tokens"):
            mu.transfer(study, to=TINY, run=mu.TargetRun(tokens=1e8, run="sde"))

    def test_a_target_that_trains_like_the_study_has_no_risk(self, tmp_path):
        study = alone(tmp_path)
        run = mu.TargetRun(tokens=25_600, batch=256, sequence=64)
        recipe = mu.transfer(study, to=TINY, run=run)
        assert {effect.octaves for effect in recipe.crossing.effects} == {0.0}
        assert not any("jump in batch" in risk for risk in recipe.risks)

    def test_json_has_every_factor(self, recipe):
        content = json.loads(recipe.to_json())["run"]
        assert content["used"] == "none"
        rules = {row["run"]: row for row in content["rules"]}
        growth = content["target"]["batch"] / content["base"]["batch"]
        assert rules["sde"]["factors"]["lr"] == pytest.approx(math.sqrt(growth))
        tokens = content["target"]["tokens"] / content["base"]["tokens"]
        assert rules["bjorck"]["octaves"] == pytest.approx(-0.32 * math.log2(tokens))


class TestARuleForTheRun:
    @pytest.mark.parametrize(
        ("run", "lr", "decay", "eps", "betas"),
        [
            ("sde", 2.0, 2.0, 0.5, (0.6, 0.8)),
            ("lr=sqrt(B), beta2=B", 2.0, 1.0, 1.0, (0.9, 0.8)),
            ("nanochat", 2.0, None, 1.0, (0.9, 0.95)),
        ],
    )
    def test_multiplies_every_row(self, analysis, run, lr, decay, eps, betas):
        plain, changed = made(analysis, NEAR), made(analysis, near(run=run))
        growth = changed.crossing.token_growth
        decay = 2 / growth if decay is None else decay
        for one, other in zip(plain.rows, changed.rows, strict=True):
            assert other.lr == pytest.approx(one.lr * lr)
            assert other.weight_decay == pytest.approx(one.weight_decay * decay)
            assert other.eps == pytest.approx(one.eps * eps)
            assert other.std == one.std
        assert changed.betas == pytest.approx(betas)
        assert changed.training.betas == (0.9, 0.95)
        assert "→ " + (run if "=" not in run else "formulas") in section(changed)

    def test_gives_the_groups_what_the_rows_say(self, analysis):
        recipe = made(analysis, near(run="sde"))
        groups = recipe.plan.param_groups(resolve(TINY).model, **recipe.base_values)
        by_name = {name: group for group in groups for name in group["param_names"]}
        for name, parameter in recipe.plan.parameters.items():
            row = next(row for row in recipe.rows if row.pattern == parameter.template)
            assert by_name[name]["lr"] == row.lr
            assert by_name[name]["betas"] == recipe.betas == pytest.approx((0.6, 0.8))

    @pytest.mark.parametrize("kind", KINDS)
    def test_is_in_every_export(self, analysis, kind):
        """The betas change from 0.9, 0.95 to 0.6, 0.8, and every rate doubles."""
        plain, changed = (made(analysis, run).export(kind) for run in (NEAR, near(run="sde")))
        recipe = made(analysis, near(run="sde"))
        for row in recipe.rows:
            if kind != "megatron" or row.role not in ("key", "value"):  # which it cannot express
                assert repr(row.lr) in changed
        if kind == "json":
            content = json.loads(changed)
            assert content["run"]["betas"] == list(recipe.betas)
            assert content["base_values"]["betas"] == [0.9, 0.95]
            assert "run" in content["whole_plan"]
            return
        first, second = recipe.betas
        shown = {"megatron": f'"--adam-beta1={first}"'}.get(kind, f"BETAS = ({first}, {second})")
        assert shown in changed
        assert shown not in plain
        assert "Batch and length: sde, as requested." in changed

    def test_an_exported_file_trains_as_the_plan(self, analysis):
        recipe = made(analysis, near(run="sde"))
        module: dict = {}
        exec(recipe.export("pytorch"), module)
        model = resolve(TINY).model.to_empty(device="cpu")
        optimizer, _ = module["optimizer_and_schedule"](model)
        wanted = torch.optim.AdamW(recipe.plan.param_groups(model, **recipe.base_values))
        for found, group in zip(optimizer.param_groups, wanted.param_groups, strict=True):
            for key in ("weight_decay", "eps", "betas"):
                assert found[key] == group[key]

    def test_of_the_study_is_followed_unless_another_is_requested(self, tmp_path, analysis):
        study = dense(tmp_path, lambda trial: trial)
        values = study.config.to_dict()
        values["rules"] = [
            {"name": "gqa-mup", "run": "sde"} if rule == "gqa-mup" else rule
            for rule in values["rules"]
        ]
        values["base"] = {**values["base"], "batch": 16}
        changed = dataclasses.replace(study, config=type(study.config).from_dict(values))
        options = {"to": TINY, "rule": "gqa-mup", "analysis": analysis}
        followed = mu.transfer(changed, run=NEAR, **options)
        assert followed.crossing.used == "sde"
        assert "as the study's rule gqa-mup says" in " ".join(section(followed).split())
        assert followed.betas == pytest.approx((0.6, 0.8))
        left = mu.transfer(changed, run=near(run="none"), **options)
        assert (left.crossing.used, left.betas) == ("none", (0.9, 0.95))

    def test_that_leaves_no_moving_average_shows_why_and_is_refused(self, analysis):
        run = near(batch=1024 * 64, tokens=1e8)
        recipe = made(analysis, run)
        words = " ".join(section(recipe).split())
        assert "cannot be applied: β1 = 0.9 becomes -5.4, no moving average" in words
        assert "cannot be applied: β2 = 0.95 becomes -2.2, no moving average" in words
        with pytest.raises(OptionError, match="which is no moving average"):
            made(analysis, dataclasses.replace(run, run="sde"))

    def test_without_a_derivation_shows_why(self, tmp_path, analysis):
        """Muon has none; published formulas work for it all the same."""
        study = dense(tmp_path, lambda trial: trial)
        values = study.config.to_dict()
        values["optimizer"] = {**values.get("optimizer", {}), "name": "muon"}
        changed = dataclasses.replace(study, config=type(study.config).from_dict(values))
        options = {"to": TINY, "rule": "gqa-mup", "analysis": analysis}
        recipe = mu.transfer(changed, run=NEAR, **options)
        effects = {effect.choice: effect for effect in recipe.crossing.effects}
        assert effects["sde"].factors is None
        assert "no derivation for muon" in effects["sde"].problem
        assert effects["hyperp"].octaves is not None
        assert "no derivation for muon" in " ".join(section(recipe, 80).split())
        json.loads(recipe.to_json())

    def test_averages_that_are_unknown_forbid_nothing(self):
        factors = RunFactors(beta1=100, beta2=100)
        assert Averages(None, None).problem(factors) is None
        assert "momentum = 0.9 becomes -9" in Averages(None, 0.9).problem(factors)
        assert Averages((0.9, 0.95), 0.9).problem(RunFactors()) is None

    @pytest.mark.parametrize(
        ("wrong", "error", "message"),
        [
            ("nope", UnknownNameError, "unknown choice for batch and length 'nope'"),
            ("lr=B-1", OptionError, "not positive for all B and D"),
            ("rate=B", UnknownNameError, "'rate'"),
        ],
    )
    def test_a_wrong_name_is_one_line(self, analysis, wrong, error, message):
        with pytest.raises(error, match=message) as caught:
            made(analysis, near(run=wrong))
        assert "\n" not in str(caught.value)


class TestDecayByALaw:
    def test_gives_hidden_weights_the_time_scale_of_the_law(self, analysis):
        run = mu.TargetRun(sequence=32, tokens_per_parameter=20)
        recipe = made(analysis, run, decay="power-lines")
        assert recipe.weight_decay.source == "power-lines"
        by_hand = 1 / (0.22356 * recipe.lr.value * recipe.length.steps)
        assert recipe.weight_decay.value == pytest.approx(by_hand, rel=1e-3)
        assert recipe.decay.target_tau == pytest.approx(0.22356, rel=1e-3)
        assert recipe.effective_taus == pytest.approx((recipe.decay.target_tau,) * 2)

    def test_under_a_rule_that_does_not_scale_decay_counts_hidden_weights(self, analysis):
        """Under mup their lr × decay is smaller than the embedding's; the law is about them."""
        recipe = mu.transfer(
            DENSE, to=TINY, rule="mup", analysis=analysis, run=NEAR, decay="power-lines"
        )
        hidden = [
            1 / (row.lr * row.weight_decay * recipe.length.steps)
            for row in recipe.rows
            for _ in range(row.count)
            if row.role not in ("embedding", "readout", "gain")
        ]
        mean = math.exp(sum(map(math.log, hidden)) / len(hidden))
        assert mean == pytest.approx(LAWS["decay"].at(TPP=recipe.length.tokens_per_parameter))
        assert recipe.decay.target_tau < mean

    @pytest.mark.parametrize("run", ["sde", "completed-p", "nanochat"])
    @pytest.mark.parametrize("decay", ["tau", "power-lines"])
    def test_wins_over_the_decay_of_a_rule_for_the_run(self, analysis, run, decay):
        plain = made(analysis, NEAR, decay=decay)
        changed = made(analysis, near(run=run), decay=decay)
        assert changed.effective_taus == pytest.approx(plain.effective_taus)
        assert changed.effective_taus[0] == pytest.approx(changed.decay.target_tau)

    def test_completed_p_keeps_the_time_scale_by_itself(self, analysis):
        """lr × decay × steps is unchanged: (B/D) × (D/B)."""
        recipe = made(analysis, near(run="completed-p"), decay="wd")
        assert recipe.effective_taus[0] == pytest.approx(recipe.decay.target_tau)
        assert recipe.decay.target_tau == pytest.approx(recipe.decay.proxy_tau, rel=0.01)

    def test_stands_beside_the_others_with_its_range(self, recipe, analysis):
        text = recipe.to_text(80)
        table = text[text.index("Weight decay: ways") : text.index("Training run")]
        assert re.findall(r"^ {2}(?:→| ) (\S+) ", table, flags=re.MULTILINE) == [
            "wd",
            "tau",
            "power-lines",
        ]
        words = " ".join(table.split())
        assert "by Power Lines (arXiv 2505.13738) at 2 tokens per parameter" in words
        assert "Beyond the range of the law" in words
        assert not any("beyond its range" in risk for risk in recipe.risks)
        chosen = made(analysis, NEAR, decay="power-lines")
        assert any("decay by a law beyond its range" in risk for risk in chosen.risks)

    def test_independent_decay_does_not_count_the_rate(self, tmp_path, analysis):
        study = dense(tmp_path, lambda trial: trial)
        values = study.config.to_dict()
        values["optimizer"] = {**values.get("optimizer", {}), "decay": "independent"}
        changed = dataclasses.replace(study, config=type(study.config).from_dict(values))
        run = mu.TargetRun(sequence=32, tokens_per_parameter=20, batch=4096, run="lr=sqrt(B)")
        options = {"to": TINY, "rule": "gqa-mup", "analysis": analysis, "run": run}
        recipe = mu.transfer(changed, decay="power-lines", **options)
        by_hand = 1 / (0.22356 * recipe.length.steps)
        assert recipe.weight_decay.value == pytest.approx(by_hand, rel=1e-3)
        assert recipe.effective_taus == pytest.approx((0.22356, 0.22356), rel=1e-3)

    def test_of_weights_that_are_not_decayed_is_refused(self):
        decay = BaseValue.fixed(0.1, "not searched")
        with pytest.raises(OptionError, match="the plan decays no hidden weights"):
            carried("power-lines", 0.01, decay, None, proxy_steps=10, target_steps=10)

    def test_l2_decay_has_no_time_scale(self, tmp_path, analysis):
        study = dense(tmp_path, lambda trial: trial)
        values = study.config.to_dict()
        values["optimizer"] = {**values.get("optimizer", {}), "name": "adam"}
        changed = dataclasses.replace(study, config=type(study.config).from_dict(values))
        options = {"to": TINY, "rule": "gqa-mup", "analysis": analysis, "run": NEAR}
        with pytest.raises(OptionError, match="decay='power-lines': l2 decay has no time scale"):
            mu.transfer(changed, decay="power-lines", **options)
        assert mu.transfer(changed, **options).decay.by_law is None


class TestBatch:
    def test_by_the_law(self, analysis):
        run = mu.TargetRun(tokens=1e10, batch_rule="power-lines")
        recipe = mu.transfer(DENSE, to="gpt:kvr_12", rule="mup", analysis=analysis, run=run)
        assert recipe.length.batch_sequences == round(423_693 / 8192)
        assert "0.0306·D^0.383 sequences of 2,048 tokens, Power Lines" in recipe.to_text(120)
        assert any("batch by a law beyond its range" in risk for risk in recipe.risks)

    def test_by_hand(self, analysis):
        recipe = made(analysis, NEAR)
        assert (recipe.length.batch_tokens, recipe.length.batch_sequences) == (4096, 128)
        assert recipe.length.steps == round(1e7 / 4096)
        assert "batch rule  given" in recipe.to_text(120)

    def test_by_the_papers_rules_prints_them(self, recipe):
        assert "0.0011·√tokens sequences of 8,192 tokens, as in the paper's" in recipe.to_text(120)

    @pytest.mark.parametrize(
        ("run", "error", "message"),
        [
            (near(batch=0), DimensionError, r"batch=0 is less than one sequence \(32 tokens\)"),
            (near(batch=31), DimensionError, "batch=31 is less than one sequence"),
            (near(batch=math.nan), DimensionError, "batch=nan"),
            (near(batch=1e8), DimensionError, "is less than one batch of 100,000,000 tokens"),
            (near(batch_rule="table"), OptionError, "set the same thing"),
            (mu.TargetRun(batch_rule="half"), UnknownNameError, "unknown batch rule 'half'"),
        ],
    )
    def test_a_wrong_one_is_one_line(self, analysis, run, error, message):
        with pytest.raises(error, match=message) as caught:
            made(analysis, run)
        assert "\n" not in str(caught.value)


class TestNoiseScale:
    def test_below_the_targets_batch_is_a_risk(self, analysis):
        low, high = (
            made(analysis, NEAR, base=mu.TunedBase(noise_scale=size)) for size in (1000, 5000)
        )
        said = "4,096 tokens are 4.1 times the gradient noise scale of the study (1,000 tokens)"
        assert any(said in risk for risk in low.risks)
        assert not any("noise scale" in risk for risk in high.risks)

    def test_is_the_median_of_what_the_trials_recorded(self, tmp_path, analysis):
        sizes = {1: 500.0, 2: 900.0, 3: 2000.0}

        def measured(trial):
            size = sizes.get(trial["number"]) if trial["cell"] == "gqa-mup.n_kv_heads-12" else None
            return trial if size is None else {**trial, "noise_scale_tokens": size}

        study = dense(tmp_path, measured)
        recipe = mu.transfer(study, to=TINY, rule="gqa-mup", analysis=analysis, run=NEAR)
        assert recipe.noise_scale == 900
        assert json.loads(recipe.to_json())["noise_scale_tokens"] == 900

    @pytest.mark.parametrize("wrong", [0, -1, math.nan])
    def test_must_be_positive(self, analysis, wrong):
        with pytest.raises(OptionError, match="must be a positive number of tokens"):
            made(analysis, NEAR, base=mu.TunedBase(noise_scale=wrong))


def test_the_command_line_sets_all_of_it(capsys):
    flags = [
        *("--run", "completed-p", "--batch", "4096", "--tokens", "1e7", "--sequence", "32"),
        *("--decay", "power-lines", "--noise-scale", "1000", "--json"),
    ]
    assert main(["transfer", str(DENSE), "--to", TINY, *flags]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["run"]["used"], content["run"]["used_source"]) == (
        "completed-p",
        "as requested",
    )
    assert content["length"]["batch_tokens"] == 4096
    assert content["decay"]["chosen"] == "power-lines"
    assert content["noise_scale_tokens"] == 1000
    flags = ["--batch", "4096", "--batch-rule", "power-lines"]
    assert main(["transfer", str(DENSE), "--to", TINY, *flags]) == 2
    assert "set the same thing" in capsys.readouterr().err
