"""What a run may be asked for, and how a mistake is met before anything is allocated."""

import dataclasses
import math
import tomllib

import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st

from mupscale.errors import MupscaleError
from mupscale.models import GPTConfig
from mupscale.theory import RULES
from mupscale.training import RunConfig, lengths
from mupscale.training.config import SECTIONS, changed_settings
from mupscale.training.schedule import Schedule

SHORT = {"model": {"name": "cpu_64_r2"}, "length": {"steps": 5, "batch": 2}}


def config(**changes) -> RunConfig:
    return RunConfig.from_dict({**SHORT, **changes})


class TestReading:
    def test_what_is_written_reads_back_the_same(self):
        made = config(
            base={"width": 32, "r": 1},
            rule={"name": "mine", "kv_factor": "sqrt(r)"},
            seed=3,
            optimizer={"betas": [0.8, 0.9], "clip": 1, "name": "muon"},
            data={"tokenizer": "bpe:300"},
        )
        again = RunConfig.from_dict(tomllib.loads(made.to_toml()))
        assert again == made
        assert changed_settings(made, again) == []

    def test_every_optional_setting_is_off_by_default_so_that_a_file_can_say_so(self):
        """TOML has no null: what is None is left out, and must come back as None."""
        for kind in [*SECTIONS.values(), GPTConfig]:
            for field in dataclasses.fields(kind):
                if "None" in str(field.type):
                    assert field.default is None, field.name

    def test_flags_lie_over_the_file(self, tmp_path):
        path = tmp_path / "run.toml"
        path.write_text(config().to_toml())
        changed = RunConfig.load(path, {"model.n_kv_heads": 1, "rule": "mup", "optimizer.lr": 1})
        assert changed.model.n_kv_heads == 1
        assert changed.rule == RULES["mup"]
        assert changed.optimizer.lr == 1.0
        assert changed_settings(config(), changed)[0].startswith("model.n_kv_heads: 2 → 1")

    def test_a_named_model_may_be_changed_and_one_may_be_spelt_out(self):
        assert config(model={"name": "cpu_64_r2", "depth": 2}).model.depth == 2
        assert (
            config(
                model={"width": 64, "depth": 2, "n_heads": 4, "vocabulary": 256, "context": 128}
            ).model.width
            == 64
        )

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"modle": {}}, "Did you mean 'model'"),
            ({"model": {}}, "width, depth, n_heads missing"),
            ({"model": {"name": "cpu_64_r3"}}, "Did you mean 'cpu_"),
            ({"model": {"name": "cpu_64_r2", "widht": 3}}, "Did you mean 'width'"),
            ({"model": {"name": "cpu_64_r2", "n_kv_heads": 3}}, "Choose a divisor of 4: 1, 2 or 4"),
            (
                {"model": {"name": "cpu_64_r2", "width": "wide"}},
                "model.width = 'wide' has type str; expected int",
            ),
            ({"model": 3}, "not a table"),
            ({"base": {"widht": 3}}, "Did you mean 'width'"),
            ({"base": {"width": 0}}, "width=0"),
            ({"base": {"width": 2.5}}, "base.width = 2.5"),
            ({"rule": "mupp"}, "Did you mean 'mup'"),
            ({"rule": {"depht": "1/L"}}, "Did you mean 'depth'"),
            ({"rule": {"depth": "1/n"}}, "unknown symbol 'n'"),
            ({"seed": -1}, "seed = -1"),
            ({"seed": 1.5}, "seed = 1.5 has type float; expected int"),
            ({"optimizer": {"lr": -0.1}}, "optimizer.lr = -0.1"),
            ({"optimizer": {"lr": math.nan}}, "optimizer.lr = nan"),
            ({"optimizer": {"lr": True}}, "optimizer.lr = True"),
            ({"optimizer": {"clip": 0}}, "optimizer.clip = 0.0 must be a finite number above 0"),
            ({"optimizer": {"name": "adamm"}}, "Did you mean 'adam"),
            ({"optimizer": {"decay": "coupled"}}, "Did you mean 'lr_coupled'"),
            ({"optimizer": {"multipliers": "folded"}}, "Did you mean 'fold'"),
            ({"length": {"batch": 2}}, "give steps, tokens, or tokens_per_parameter"),
            ({"length": {"steps": 0}}, "length.steps = 0"),
            ({"length": {"steps": 1, "warmup": -1}}, "length.warmup = -1"),
            ({"length": {"steps": 1, "floor": 2}}, "length.floor = 2"),
            (
                {"length": {"steps": 9, "schedule": "cosin"}},
                "unknown length.schedule 'cosin'. Did you mean 'cosine'? Known: cosine, linear, "
                "wsd.",
            ),
            (
                {"length": {"steps": 9, "decay_share": 0.2}},
                "length.decay_share = 0.2 is a setting of the schedule wsd, and cosine decays from "
                "the end of warmup. Leave it out, or choose wsd.",
            ),
            ({"length": {"steps": 9, "schedule": "linear", "decay_share": 1}}, "and linear decays"),
            (
                {"length": {"steps": 9, "schedule": "wsd", "decay_share": 0}},
                "length.decay_share = 0.0 must be above 0 and at most 1",
            ),
            (
                {"length": {"steps": 9, "schedule": "wsd", "decay_share": 1.5}},
                "length.decay_share = 1.5 must be above 0 and at most 1",
            ),
            ({"data": {"sequence": 0}}, "data.sequence = 0"),
            ({"data": {"sequence": 129}}, "data.sequence = 129 is longer than model.context = 128"),
            ({"machine": {"precision": "fp8"}}, "machine.precision 'fp8'"),
            ({"record": {"checkpoint_every": 0}}, "record.checkpoint_every = 0"),
        ],
    )
    def test_a_mistake_is_named(self, changes, message):
        with pytest.raises(MupscaleError) as caught:
            config(**changes)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "message"), [("seed = ", "is not TOML"), (None, "No such file")]
    )
    def test_a_file_that_cannot_be_read(self, tmp_path, content, message):
        path = tmp_path / "run.toml"
        if content is not None:
            path.write_text(content)
        with pytest.raises(MupscaleError, match=message):
            RunConfig.load(path, {})
        path.write_text('data = "x"')
        with pytest.raises(MupscaleError, match="not a table"):
            RunConfig.load(path, {"data.corpus": "y"})


class TestOlderRuns:
    """A config without newer settings is what it was before there were any."""

    def test_a_config_without_a_schedule_has_the_table_it_always_had(self):
        assert config().to_dict()["length"] == {
            "steps": 5,
            "batch": 2,
            "batch_rule": "table",
            "floor": 0.0,
            "accumulate": 1,
        }
        assert config(length={**SHORT["length"], "schedule": "cosine"}) == config()
        assert "factors" not in config().to_dict()["optimizer"]

    @pytest.mark.parametrize(
        "length",
        [{"schedule": "linear"}, {"schedule": "wsd"}, {"schedule": "wsd", "decay_share": 1}],
    )
    def test_a_schedule_that_is_set_is_written_and_read_back(self, length):
        made = config(length={**SHORT["length"], "warmup": 0, **length})
        assert made.to_dict()["length"].items() >= length.items()
        assert RunConfig.from_dict(tomllib.loads(made.to_toml())) == made

    def test_another_schedule_is_another_run(self):
        wsd = config(length={**SHORT["length"], "schedule": "wsd", "decay_share": 0.4})
        assert changed_settings(config(), wsd) == [
            'length.schedule: "cosine" → "wsd"',
            "length.decay_share: absent → 0.4",
        ]


class TestTheBase:
    def test_keeps_head_dim_and_r_at_another_width(self):
        base = config(model={"name": "cpu_192_r4"}, base={"width": 64, "depth": 2}).base_model()
        assert (base.width, base.depth, base.n_heads, base.kv_heads, base.head_size) == (
            64,
            2,
            4,
            1,
            16,
        )

    def test_may_have_another_r(self):
        assert config(model={"name": "cpu_192_r4"}, base={"r": 1}).base_model().repetitions == 1
        base = config(model={"name": "cpu_192_r4"}, base={"width": 64, "r": 1}).base_model()
        assert (base.n_heads, base.kv_heads, base.head_size) == (4, 4, 16)

    def test_is_the_model_itself_unless_said(self):
        assert config().base_model() == config().model


class TestLengths:
    def test_of_the_paper_come_from_its_rules(self):
        """jwd-medium at 3 tokens per parameter. The paper rounds the parameters that it prints,
        which changes 1 in 1649.
        """
        made = config(
            model={"name": "jwd-medium"},
            data={"sequence": 8192},
            length={"tokens_per_parameter": 3},
        )
        found = lengths(made)
        assert (found.batch, found.steps, found.warmup) == (18, 1649, 32)
        assert (
            lengths(
                dataclasses.replace(
                    made, length=dataclasses.replace(made.length, batch_rule="printed")
                )
            ).batch
            == 12
        )

    def test_that_are_given_are_kept(self):
        found = lengths(config(length={"steps": 7, "batch": 3, "warmup": 2}))
        assert (found.steps, found.batch, found.warmup, found.tokens) == (7, 3, 2, 7 * 3 * 128)

    def test_the_schedule_is_that_of_the_config(self):
        length = {"steps": 40, "batch": 3, "warmup": 4, "floor": 0.1}
        assert lengths(config(length=length)).schedule == Schedule("cosine", 40, 4, 0.1)
        wsd = {**length, "schedule": "wsd", "decay_share": 0.5}
        assert lengths(config(length=wsd)).schedule == Schedule("wsd", 40, 4, 0.1, 0.5)

    def test_a_warmup_and_a_decay_must_fit(self):
        wsd = {"steps": 40, "batch": 3, "warmup": 21, "schedule": "wsd", "decay_share": 0.5}
        assert lengths(config(length={**wsd, "warmup": 20})).schedule.decay_steps == 20
        with pytest.raises(MupscaleError, match=r"a warmup of 21 steps and a decay of 20"):
            lengths(config(length=wsd))

    def test_a_batch_needs_a_number_or_a_rule_for_it(self):
        with pytest.raises(MupscaleError, match=r"length\.batch is missing"):
            lengths(config(length={"steps": 7}))


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.one_of(
            st.integers(-(2**63), 2**63 - 1),
            st.booleans(),
            st.text(max_size=20),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        max_size=5,
    )
)
def test_toml_is_read_by_python_as_it_was(values):
    assert tomllib.loads(tomli_w.dumps({"table": values})) == {"table": values}


@given(
    st.recursive(
        st.one_of(st.integers(-9, 9), st.text(max_size=9), st.lists(st.booleans(), max_size=2)),
        lambda values: st.dictionaries(st.text(max_size=9), values, max_size=3),
        max_leaves=8,
    )
)
@example({"roles": {"*.alpha.weight": "query", "\x7f": "", "😀": {}}, "[a]": 1})
def test_tables_in_tables_and_keys_of_any_text_come_back(values):
    assert tomllib.loads(tomli_w.dumps({"table": values})) == {"table": values}
