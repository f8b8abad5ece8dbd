"""A recipe invents nothing: what neither study nor caller sets is "not known" and listed once."""

import dataclasses
import json

import pytest
import torch
from transformers import GPT2Config

import mupscale as mu
from mupscale.cli import main
from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.models import budget
from mupscale.recipes.exports import KINDS
from mupscale.recipes.lengths import length_for
from mupscale.recipes.shapes import shape_of
from mupscale.reports.page.recipes import recipe_view
from mupscale.targets import build, resolve
from tests.planning.models import Fusable
from tests.recipes.studies import DENSE, TINY, dense, written

KNOWN = mu.TunedBase(weight_decay=0.1, std=0.02)
ALL = {
    "base": dataclasses.replace(KNOWN, betas=(0.9, 0.95), eps=1e-8, clip=1.0),
    "run": mu.TargetRun(floor=0.0),
}
NO_POSITIONS = "tests.recipes.test_options:without_positions"


def without_positions() -> Fusable:
    """A model whose config does not say how long a sequence may be."""
    return Fusable(64, 8, 8, fused=False)


def silent(folder, **tables):
    """A study of a trainer of one's own that says its target, its losses and its tokens."""
    target = TINY.replace("hidden_size=64", "hidden_size=32").replace(
        "intermediate_size=96", "intermediate_size=48"
    )
    config = {
        "name": "silent",
        "rules": ["complete-p"],
        "seeds": [1, 2],
        "space": {"lr": [2**-9, 2**-3]},
        "search": {"method": "grid"},
        "base": {"width": 16},
        "trainer": {"command": ["train", "{lr}", "{plan}"], "target": target},
        **tables,
    }
    trials = [
        {
            "cell": "complete-p",
            "rule": "complete-p",
            "seed": seed,
            "params": {"lr": 2.0**x},
            "steps": 200,
            "loss": 3 + 0.04 * (x + 6) ** 2 + 0.001 * (-1) ** (x + seed),
            "tokens": 400_000,
        }
        for x in range(-9, -2)
        for seed in (1, 2)
    ]
    return written(folder, config, trials)


class TestOwnTrainer:
    """It printed betas 0.9, 0.999, eps 1e-08, "clipping off, as in the study" and "a cosine to
    zero".
    """

    def test_what_it_never_said_is_not_known_and_asked_for_once(self, tmp_path):
        recipe = mu.transfer(silent(tmp_path), to=TINY, base=KNOWN)
        assert recipe.unknown == ("betas", "eps", "clip", "floor")
        text = recipe.to_text()
        for wrong in ("0.999", "1e-08", "off, as in the study", "to zero"):
            assert wrong not in text
        words = " ".join(text.split())
        for line in (
            "betas not known",
            "eps not known",
            "clipping not known",
            "then a cosine (assumed); its floor is not known",
        ):
            assert line in words
        request = (
            "betas, eps, clipping, floor of the schedule. Pass base=TunedBase(betas=…, eps=…, "
            "clip=…), run=TargetRun(floor=…), or --betas … --eps … --clip … --floor … on the "
            "command line."
        )
        assert words.count(request) == 1
        assert request in recipe.to_markdown()
        assert all(row.eps is None for row in recipe.rows)

    def test_json_has_null(self, tmp_path):
        recipe = mu.transfer(silent(tmp_path), to=TINY, base=KNOWN)
        content = json.loads(recipe.to_json())
        assert content["not_known"] == ["betas", "eps", "clip", "floor"]
        assert (content["base_values"]["betas"], content["base_values"]["eps"]) == (None, None)
        assert (content["clip"], content["floor"]) == (None, None)
        assert ["eps", "not known"] in [row[:2] for row in recipe_view(recipe).rows]

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "json"])
    def test_a_file_for_a_trainer_is_refused_until_all_is_said(self, tmp_path, kind):
        study = silent(tmp_path)
        recipe = mu.transfer(study, to=TINY, base=KNOWN)
        with pytest.raises(
            OptionError,
            match=r"needs values that are not known: betas.*base=TunedBase\(betas=….*--betas …",
        ):
            recipe.export(kind)
        json.loads(recipe.export("json"))
        whole = mu.transfer(study, to=TINY, **ALL)
        assert whole.unknown == ()
        assert "(0.9, 0.95)" in whole.export(kind) or "0.95" in whole.export(kind)

    def test_all_that_a_recipe_cannot_do_without_is_asked_for_together(self, tmp_path):
        """One error at a time it was, and the rest made up."""
        with pytest.raises(OptionError) as caught:
            mu.transfer(silent(tmp_path), to=TINY)
        assert str(caught.value) == (
            "the study does not give weight decay, init std, which a recipe needs, nor betas, eps, "
            "clipping, floor of the schedule, which it would leave open. Pass "
            "base=TunedBase(weight_decay=…, std=…, betas=…, eps=…, clip=…), "
            "run=TargetRun(floor=…), or --weight-decay … --std … --betas … --eps … --clip … "
            "--floor … on the command line."
        )

    def test_what_its_study_says_is_taken(self, tmp_path):
        tables = {
            "optimizer": {
                "weight_decay": 0.2,
                "std": 0.03,
                "betas": [0.8, 0.9],
                "eps": 1e-9,
                "clip": 0.5,
            },
            "length": {"floor": 0.1, "batch_rule": "printed", "schedule": "linear"},
            "data": {"sequence": 16},
        }
        recipe = mu.transfer(silent(tmp_path, **tables), to=TINY)
        assert recipe.unknown == ()
        assert (recipe.training.betas, recipe.training.clip, recipe.training.floor) == (
            (0.8, 0.9),
            0.5,
            0.1,
        )
        assert set(recipe.training.origin.values()) == {"the study"}
        assert recipe.length.batch_rule == "printed"
        assert "then a linear decay to 0.1 of the peak rate" in recipe.to_text()
        assert "gradient norm at most 0.5" in recipe.to_text()
        assert any(
            "sequences of 64 tokens: 4 times the largest swept (16)" in risk
            for risk in recipe.risks
        )

    def test_what_the_caller_says_counts_more(self, tmp_path):
        study = silent(tmp_path, optimizer={"betas": [0.8, 0.9], "clip": 0.5})
        base = dataclasses.replace(ALL["base"], clip=0)
        recipe = mu.transfer(study, to=TINY, base=base, run=ALL["run"])
        assert (recipe.betas, recipe.training.clip) == ((0.9, 0.95), 0.0)
        lines = [" ".join(line.split()) for line in recipe.to_text().splitlines()]
        assert "betas 0.9, 0.95 given" in lines
        assert "clipping off" in lines

    def test_the_command_line_says_it_all(self, tmp_path, capsys):
        study = silent(tmp_path)
        flags = [
            "--weight-decay",
            "0.1",
            "--std",
            "0.02",
            "--betas",
            "0.9,0.95",
            "--eps",
            "1e-8",
            "--clip",
            "1",
            "--floor",
            "0.1",
            "--sequence",
            "32",
        ]
        assert main(["transfer", str(study.folder), "--to", TINY, *flags, "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert content["not_known"] == []
        assert content["base_values"]["betas"] == [0.9, 0.95]
        assert (content["clip"], content["floor"], content["length"]["sequence"]) == (1.0, 0.1, 32)
        assert main(["transfer", str(study.folder), "--to", TINY, "--betas", "0.9"]) == 2
        assert (
            "--betas '0.9' is not two numbers. Write it like 0.9,0.95." in capsys.readouterr().err
        )

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"betas": (0.9, 1.0)}, r"betas=\(0\.9, 1\.0\) must be two numbers"),
            ({"betas": 0.9}, "betas=0.9 must be two numbers"),
            ({"clip": -1}, "clip=-1 must be"),
            ({"clip": float("inf")}, "clip=inf must be"),
            ({"floor": 2}, "floor=2 must be a fraction"),
            ({"schedule": "cosin"}, r"unknown schedule 'cosin'. Did you mean 'cosine'\?"),
            ({"schedule": 3}, "unknown schedule '3'. Known: cosine, linear, wsd"),
            (
                {"decay_share": 0.2},
                "decay_share = 0.2 is a setting of the schedule wsd, and cosine",
            ),
            ({"schedule": "linear", "decay_share": 0.2}, "of the schedule wsd, and linear decays"),
            ({"schedule": "wsd", "decay_share": 0}, "decay_share=0 must be a share of the steps"),
            ({"schedule": "wsd", "decay_share": 1.5}, "decay_share=1.5 must be a share of the"),
            ({"schedule": "wsd", "decay_share": "0.2"}, "decay_share='0.2' must be a share of"),
        ],
    )
    def test_wrong_values_are_named(self, tmp_path, wrong, message):
        of_run = bool({"floor", "schedule", "decay_share"} & set(wrong))
        options = {"run": mu.TargetRun(**wrong)} if of_run else {"base": mu.TunedBase(**wrong)}
        with pytest.raises(mu.MupscaleError, match=message):
            mu.transfer(silent(tmp_path), to=TINY, **options)


class TestSchedule:
    ASSUMED = "the study does not name its schedule; a cosine is assumed. Name it in [length]"

    def test_is_assumed_to_be_a_cosine_where_a_study_does_not_name_it(self, tmp_path):
        recipe = mu.transfer(silent(tmp_path), to=TINY, **ALL)
        assert recipe.to_dict()["schedule"] == {
            "name": "cosine",
            "decay_share": None,
            "source": "assumed",
        }
        words = " ".join(recipe.to_text().split())
        assert "of linear warmup, then a cosine to zero (assumed)" in words
        assert self.ASSUMED in words
        exported = " ".join(recipe.export("pytorch").split())
        assert self.ASSUMED in exported
        assert "linear warmup, then a cosine." in exported

    @pytest.mark.parametrize(
        ("length", "share"),
        [
            ({"schedule": "cosine"}, None),
            ({"schedule": "linear"}, None),
            ({"schedule": "wsd"}, 0.2),
            ({"schedule": "wsd", "decay_share": 0.1}, 0.1),
        ],
    )
    def test_is_the_studys(self, tmp_path, length, share):
        recipe = mu.transfer(silent(tmp_path, length=length), to=TINY, **ALL)
        assert recipe.to_dict()["schedule"] == {
            "name": length["schedule"],
            "decay_share": share,
            "source": "the study",
        }
        assert not any("schedule" in risk for risk in recipe.risks)
        assert "(assumed)" not in recipe.to_text()

    def test_of_a_study_is_checked(self, tmp_path):
        study = silent(tmp_path, length={"schedule": "wds"})
        with pytest.raises(UnknownNameError, match=r"unknown schedule 'wds'\. Did you mean 'wsd'"):
            mu.transfer(study, to=TINY, **ALL)

    def test_of_the_caller_counts_more_and_a_difference_is_a_risk(self, tmp_path):
        study = silent(tmp_path, length={"schedule": "wsd", "decay_share": 0.1})
        for given, words in (
            ({"schedule": "cosine"}, "this recipe has cosine"),
            ({"schedule": "linear"}, "this recipe has linear"),
            ({"decay_share": 0.3}, "this recipe has wsd (decay share 0.3)"),
        ):
            recipe = mu.transfer(
                study, to=TINY, base=ALL["base"], run=mu.TargetRun(floor=0, **given)
            )
            assert recipe.training.schedule == given.get("schedule", "wsd")
            assert recipe.training.decay_share == given.get("decay_share")
            risk = f"the study trained with the schedule wsd (decay share 0.1); {words}"
            assert recipe.risks.count(risk) == 1
        same = mu.TargetRun(floor=0, schedule="wsd")
        recipe = mu.transfer(study, to=TINY, base=ALL["base"], run=same)
        assert recipe.training.decay_share == 0.1
        assert not any("schedule" in risk for risk in recipe.risks)

    def test_of_the_caller_is_no_risk_where_the_studys_is_not_known(self, tmp_path):
        run = mu.TargetRun(floor=0, schedule="linear")
        recipe = mu.transfer(silent(tmp_path), to=TINY, base=ALL["base"], run=run)
        assert recipe.to_dict()["schedule"]["source"] == "given"
        assert not any("schedule" in risk for risk in recipe.risks)

    def test_variants_with_another_schedule_are_a_risk(self, tmp_path):
        """The recipe takes that of the first variant."""
        variants = [{"name": n, "length": {"schedule": n}} for n in ("linear", "wsd")]
        study = silent(tmp_path, variants=variants)
        rows = [json.loads(row) for row in (tmp_path / "records.jsonl").read_text().splitlines()]
        for row in rows[1:]:
            row["job"] = row["job"].replace("complete-p/", "complete-p.linear/")
            row["result"] |= {"cell": "complete-p.linear", "variant": {"variant": "linear"}}
        (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = mu.transfer(type(study).open(tmp_path), to=TINY, **ALL)
        assert recipe.training.schedule == "linear"
        risk = "the study trained with the schedule wsd (decay share 0.2); this recipe has linear"
        assert risk in recipe.risks

    @pytest.mark.parametrize(
        ("schedule", "words"),
        [
            ("cosine", "20 of linear warmup, then a cosine to 0.1 of the peak rate"),
            ("linear", "20 of linear warmup, then a linear decay to 0.1 of the peak rate"),
            (
                "wsd",
                "20 of linear warmup, then the peak rate, then a linear decay to 0.1 of the peak "
                "rate over the last 200",
            ),
        ],
    )
    def test_is_in_words(self, recipe, schedule, words):
        length = dataclasses.replace(recipe.length, steps=1000, warmup=20)
        share = 0.2 if schedule == "wsd" else None
        training = dataclasses.replace(
            recipe.training, floor=0.1, schedule=schedule, decay_share=share
        )
        changed = dataclasses.replace(recipe, length=length, training=training)
        for text in (changed.to_text(), changed.to_markdown()):
            assert words in " ".join(text.split())

    def test_must_fit_into_the_targets_run(self, tmp_path):
        """The target has a warmup by rule, which a decay over the whole run does not leave."""
        run = mu.TargetRun(floor=0, schedule="wsd", decay_share=1, tokens=1e9)
        with pytest.raises(DimensionError, match=r"a warmup of \d+ steps and a decay of .* linear"):
            mu.transfer(silent(tmp_path), to=TINY, base=ALL["base"], run=run)


class TestReferenceModel:
    """Its studies say everything, and the recipe repeats it."""

    def test_nothing_is_asked_for(self, recipe):
        assert recipe.unknown == ()
        assert recipe.request is None
        assert "Not known" not in recipe.to_text()
        assert (recipe.betas, recipe.training.clip, recipe.training.floor) == (
            (0.9, 0.95),
            0.0,
            0.0,
        )
        assert "off, as in the study" in recipe.to_text()
        assert recipe.to_dict()["schedule"]["source"] == "the study"
        assert "then a cosine to zero\n" in recipe.to_text()

    def test_its_schedule_is_carried_over(self, tmp_path, analysis):
        study = dense(tmp_path, lambda trial: trial)
        swept = study.config.to_dict()
        swept["length"] = {**swept["length"], "schedule": "wsd", "decay_share": 0.1}
        changed = dataclasses.replace(study, config=type(study.config).from_dict(swept))
        recipe = mu.transfer(changed, to=TINY, analysis=analysis, run=mu.TargetRun(sequence=32))
        assert recipe.to_dict()["schedule"] == {
            "name": "wsd",
            "decay_share": 0.1,
            "source": "the study",
        }
        assert recipe.decay_steps == round(0.1 * recipe.length.steps)

    def test_an_optimizer_without_betas_or_eps_has_none_and_lacks_none(self, tmp_path):
        study = silent(tmp_path, optimizer={"name": "sgd", "multipliers": "hook"})
        recipe = mu.transfer(
            study,
            to=TINY,
            run=mu.TargetRun(floor=0),
            base=mu.TunedBase(weight_decay=0.0, std=0.02, clip=0),
        )
        assert recipe.unknown == ()
        assert recipe.eps is None
        assert "eps  " not in recipe.to_text().split("Weight decay")[0]


class TestSequence:
    def test_is_the_targets_own_positions(self, analysis):
        """8,192 were given to a model with 1,024 positions."""
        gpt2 = build(GPT2Config(n_layer=2, n_embd=64, n_head=8))
        recipe = mu.transfer(DENSE, to=gpt2, analysis=analysis)
        assert (recipe.length.sequence, recipe.length.sequence_source) == (
            1024,
            "all positions of the target",
        )
        assert (
            f"{recipe.length.batch_sequences} sequences of 1,024 tokens (all positions of the "
            "target)" in recipe.to_text()
        )

    def test_is_the_papers_where_there_are_more(self, analysis):
        recipe = mu.transfer(
            DENSE,
            to=TINY.replace("max_position_embeddings=64", "max_position_embeddings=40960"),
            analysis=analysis,
        )
        assert recipe.length.sequence == 8192
        assert "the paper's; the target has 40,960 positions" in recipe.to_text()

    def test_is_not_known_where_the_target_does_not_say(self, analysis):
        assert shape_of(resolve(NO_POSITIONS).model).positions is None
        recipe = mu.transfer(
            DENSE, to=NO_POSITIONS, analysis=analysis, run=mu.TargetRun(tokens=1e9)
        )
        assert recipe.unknown == ("sequence",)
        assert (recipe.length.sequence, recipe.length.batch_sequences) == (None, None)
        rule = budget(10**9)
        assert (recipe.length.batch_tokens, recipe.length.steps) == (
            rule.batch_tokens,
            rule.iterations,
        )
        assert f"{rule.batch_tokens:,} tokens; the sequence length is not known" in recipe.to_text()
        request = "sequence. Pass run=TargetRun(sequence=…), or --sequence … on the command line."
        assert request in recipe.to_text()
        recipe_view(recipe)
        with pytest.raises(OptionError, match=r"not known: sequence\. Pass run=TargetRun\("):
            recipe.export("pytorch")
        assert (
            mu.transfer(
                DENSE, to=NO_POSITIONS, analysis=analysis, run=mu.TargetRun(sequence=32)
            ).unknown
            == ()
        )

    def test_learned_positions_are_all_there_are(self, analysis):
        gpt2 = build(GPT2Config(n_layer=2, n_embd=64, n_head=8))
        with pytest.raises(
            DimensionError, match="sequence=2048 is longer than the 1024 positions that GPT2LMHead"
        ):
            mu.transfer(DENSE, to=gpt2, analysis=analysis, run=mu.TargetRun(sequence=2048))
        opt = "hf:opt,num_hidden_layers=1,hidden_size=64,num_attention_heads=8,ffn_dim=96"
        opt += ",word_embed_proj_dim=64"
        shape = shape_of(resolve(f"{opt},max_position_embeddings=512").model)
        assert shape.learned_positions == 512  # its table has two rows more

    def test_rotary_positions_beyond_the_config_are_a_risk(self, analysis):
        recipe = mu.transfer(DENSE, to=TINY, analysis=analysis, run=mu.TargetRun(sequence=128))
        assert "sequences of 128 tokens are longer than the target's 64 positions" in recipe.risks

    def test_a_sequence_of_nothing(self, analysis):
        with pytest.raises(DimensionError, match="sequence=0 must be at least 1 token"):
            mu.transfer(DENSE, to=TINY, analysis=analysis, run=mu.TargetRun(sequence=0))


class TestBatchRule:
    def test_is_the_studys(self, tmp_path, analysis):
        """A study by the printed rule got a batch half as large again, by the rule of the
        tables.
        """
        study, run = dense(tmp_path, lambda trial: trial), mu.TargetRun(tokens=881_900_000)
        toml = (tmp_path / "study.toml").read_text()
        assert "batch_rule" not in toml
        swept = study.config.to_dict()
        swept["length"] = {**swept["length"], "batch_rule": "printed"}
        changed = dataclasses.replace(study, config=type(study.config).from_dict(swept))
        by_table, by_print = (
            mu.transfer(one, to="gpt:kvr_12", rule="mup", analysis=analysis, run=run)
            for one in (study, changed)
        )
        assert (by_table.length.batch_sequences, by_print.length.batch_sequences) == (33, 22)
        assert by_print.length.steps == budget(881_900_000, "printed").iterations
        assert "printed: 0.000733·√tokens" in by_print.to_text(columns=200)

    def test_steps_do_not_depend_on_whether_a_sequence_is_known(self):
        known, unknown = (length_for(10**8, 10**9, (size, "")) for size in (8192, None))
        assert (known.steps, known.warmup, known.batch_tokens) == (
            unknown.steps,
            unknown.warmup,
            unknown.batch_tokens,
        )


def test_a_reading_goes_to_the_target(analysis):
    """A role by hand is what the plan has; a model that nobody understands needs one."""

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = resolve(TINY).model
            self.config = self.inner.config
            self.odd = torch.nn.Parameter(torch.empty(64, 64, device="meta"))

        def forward(self, input_ids):
            return self.inner(input_ids)

    with pytest.raises(mu.MupscaleError, match="odd"):
        mu.transfer(DENSE, to=Odd(), analysis=analysis, run=mu.TargetRun(sequence=32))
    reading = mu.Reading(roles={"odd": "hidden"})
    recipe = mu.transfer(
        DENSE, to=Odd(), analysis=analysis, reading=reading, run=mu.TargetRun(sequence=32)
    )
    assert recipe.plan.parameters["odd"].role == "hidden"
    assert recipe.plan.reading == reading


def test_an_option_outside_of_its_group_is_refused_with_the_call_that_sets_it():
    with pytest.raises(OptionError) as said:
        mu.transfer(DENSE, to=TINY, weight_decay=0.1, tokens_per_parameter=20)
    assert str(said.value) == (
        "transfer takes weight_decay, tokens_per_parameter as fields of a group. Pass "
        "base=TunedBase(weight_decay=…), run=TargetRun(tokens_per_parameter=…), or "
        "--weight-decay … --tokens-per-parameter … on the command line."
    )
    with pytest.raises(UnknownNameError, match="argument of transfer 'token'"):
        mu.transfer(DENSE, to=TINY, token=20)
