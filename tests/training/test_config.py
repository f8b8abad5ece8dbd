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
from mupscale.training.schedule import Cosine

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

    def test_a_batch_needs_a_number_or_a_rule_for_it(self):
        with pytest.raises(MupscaleError, match=r"length\.batch is missing"):
            lengths(config(length={"steps": 7}))


@given(steps=st.integers(1, 500), warmup=st.integers(0, 600), floor=st.floats(0, 1))
def test_the_schedule_rises_to_one_and_falls_to_its_floor(steps, warmup, floor):
    schedule = Cosine(steps, warmup, floor)
    values = [schedule.at(step) for step in range(steps)]
    assert all(0 <= value <= 1 for value in values)
    rising = values[:warmup]
    assert rising == sorted(rising)
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
    if warmup < steps:
        assert values[warmup] == 1
    if warmup < steps - 1:
        assert values[-1] == pytest.approx(floor)


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
