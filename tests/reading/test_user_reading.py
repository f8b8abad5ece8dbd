"""`Reading`: it comes back from every file as it was, and a slip is an error that names it."""

import json
import tomllib

import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st

from mupscale.errors import OptionError, UnknownNameError
from mupscale.reading import ROLES, Reading, TensorSpec

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
SPECS = st.one_of(
    st.builds(
        TensorSpec,
        st.sampled_from(["float64", "float32", "bfloat16", "float16", "bool"]),
        st.lists(st.integers(1, 9), max_size=4).map(tuple),
    ),
    st.builds(
        TensorSpec,
        st.sampled_from(["int64", "int32"]),
        st.lists(st.integers(1, 9), max_size=4).map(tuple),
        st.none() | st.integers(1, 999),
    ),
)
PLAIN = st.one_of(
    SPECS,
    st.booleans(),
    st.integers(-99, 99),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(alphabet="abc äé😀\"'\\", max_size=8),
)
READINGS = st.builds(
    Reading,
    st.dictionaries(st.text(max_size=12), st.sampled_from(ROLES), max_size=4),
    st.lists(NAMES, max_size=3, unique=True).map(tuple),
    st.none() | st.dictionaries(NAMES, PLAIN, max_size=3) | st.lists(PLAIN, max_size=3).map(tuple),
)


@given(READINGS)
def test_it_comes_back_from_json_and_toml(reading):
    values = reading.to_dict()
    assert Reading.from_dict(values) == reading
    assert Reading.from_dict(json.loads(json.dumps(values))) == reading
    again = tomllib.loads(tomli_w.dumps({"reading": values}))
    assert Reading.from_dict(again.get("reading", {})) == reading


@given(SPECS)
def test_a_tensor_is_written_and_read_alike(spec):
    assert TensorSpec.parse(str(spec)) == spec


@given(READINGS, READINGS)
def test_of_two_the_second_counts_where_they_differ(first, second):
    both = first | second
    assert both.roles == {**first.roles, **second.roles}
    assert set(both.ignore) == {*first.ignore, *second.ignore}
    assert both.inputs == (first.inputs if second.inputs is None else second.inputs)
    assert first | Reading() == Reading() | first == first
    assert bool(both) == bool(first or second)


@given(READINGS, READINGS)
def test_equal_readings_have_equal_hashes(first, second):
    same = Reading(dict(reversed(first.roles.items())), first.ignore, first.inputs)
    assert same == first
    assert hash(same) == hash(first)
    assert first != second or hash(first) == hash(second)


def test_a_role_that_one_insists_on_comes_back_too():
    said = Reading({"*.a": "hidden!"})
    assert Reading.from_dict(said.to_dict()) == said
    with pytest.raises(UnknownNameError, match="Did you mean 'hidden'"):
        Reading.from_dict({"roles": {"*.a": "hiden!"}})


def test_what_is_empty_is_left_out():
    assert Reading().to_dict() == {}
    assert not Reading()
    assert Reading(inputs=()).to_dict() == {"inputs": []}


class TestInputs:
    SAID = Reading(
        inputs={
            "tokens": "int64[2, 16] < 7",
            "x": "bfloat16[3]",
            "mask": "bool[1,2]",
            "mode": "fast",
        }
    )

    def test_they_are_made_as_they_are_written_and_the_same_each_time(self):
        _, one = self.SAID.call("cpu", seed=3)
        _, again = self.SAID.call("cpu", seed=3)
        assert (one["tokens"].shape, one["tokens"].dtype) == ((2, 16), torch.int64)
        assert set(one["tokens"].flatten().tolist()) == set(range(7))
        assert (one["x"].shape, one["x"].dtype, one["mode"]) == ((3,), torch.bfloat16, "fast")
        assert one["mask"].all()
        assert all(torch.equal(one[name], again[name]) for name in ("tokens", "x", "mask"))

    def test_on_meta_they_have_shapes_alone(self):
        positional, _ = Reading(inputs=("float32[4,5]", 3)).call("meta")
        assert positional[0].is_meta
        assert (positional[0].shape, positional[1]) == ((4, 5), 3)

    def test_without_them_nothing_is_made(self):
        assert Reading().call("cpu") is None

    def test_a_tensor_is_kept_as_its_type_shape_and_largest_token(self):
        tokens = torch.tensor([[5, 0, 41]])
        made = Reading(inputs=(tokens, torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)))
        assert made == Reading(inputs=("int64[1,3]<42", "float32[2,3]", "bool[2]"))

    @pytest.mark.parametrize(
        ("inputs", "error", "told"),
        [
            (("float23[1]",), UnknownNameError, "'float23'. Did you mean 'float32'"),
            (("complex64[1]",), UnknownNameError, "complex64"),
            (("float32[1 3]",), OptionError, r"'float32\[1 3\]' is not the type and shape"),
            (("float32[1,-3]",), OptionError, "Write it like"),
            (("float32[1,,3]",), OptionError, "Write it like"),
            (("float32[1,3",), OptionError, "Write it like"),
            (("float32[two]",), OptionError, "Write it like"),
            (("float32[1] < many",), OptionError, "Write it like"),
            (("float32[1,0]",), OptionError, "empty"),
            (("float32[1]<5",), OptionError, "only integers take a limit"),
            (("int64[1]<0",), OptionError, "at least 1"),
            ((torch.zeros(1, dtype=torch.complex64),), OptionError, "complex64 is not supported"),
            (torch.zeros(1), OptionError, r"inputs=\(x,\)"),
            ("int64[1,16]", OptionError, "tuple or a mapping"),
            ({"x": [1, 2]}, OptionError, "x is of type list"),
            ({"x": float("nan")}, OptionError, "x is of type float"),
        ],
    )
    def test_a_slip_is_named(self, inputs, error, told):
        with pytest.raises(error, match=told):
            Reading(inputs=inputs)


@pytest.mark.parametrize(
    ("values", "error", "told"),
    [
        ({"rolls": {}}, UnknownNameError, "unknown setting of here 'rolls'. Did you mean 'roles'"),
        (
            {"roles": {"*.a": "hiden"}},
            UnknownNameError,
            r"role for \*\.a in here 'hiden'. Did you mean 'hidden'",
        ),
        (
            {"roles": {"*.a": "ROLE"}},
            UnknownNameError,
            r"role for \*\.a in here 'ROLE'.*Known: embedding",
        ),
        ({"roles": ["*.a"]}, OptionError, "here.roles must be a table of patterns and roles"),
        ({"roles": {"blocks": {"a": "hidden"}}}, OptionError, "Put each pattern in quotes"),
        (
            {"ignore": "scale"},
            OptionError,
            r"here.ignore must be a list of keys.*\[\"logit_scale\"\]",
        ),
        ({"ignore": [1]}, OptionError, "here.ignore must be a list of keys"),
        ({"inputs": "int64[1,16]"}, OptionError, "here.inputs must be a list or a table"),
    ],
)
def test_a_table_that_is_wrong_says_where_and_how(values, error, told):
    with pytest.raises(error, match=told):
        Reading.from_dict(values, "here")


def test_a_role_that_is_wrong_is_refused_in_python_too():
    with pytest.raises(UnknownNameError, match="Did you mean 'query'"):
        Reading({"*.alpha.weight": "qery"})


class TestFiles:
    def test_the_table_of_a_file(self, tmp_path):
        path = tmp_path / "any.toml"
        path.write_text(
            '[other]\nx = 1\n[reading]\nignore = ["scale"]\ninputs = { input_ids = "int64[1,16] < '
            '256" }\n'
            '[reading.roles]\n"blocks.*.a.weight" = "query"\n'
        )
        assert Reading.load(path) == Reading(
            {"blocks.*.a.weight": "query"},
            ("scale",),
            {"input_ids": TensorSpec("int64", (1, 16), 256)},
        )

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("[reading\nroles", "line 1"),
            ('[reading.roles]\nblocks.*.a = "query"', "line 2"),
            ("", r"has no \[reading\] table"),
            ('roles = { "*.a" = "query" }', r"has no \[reading\] table"),
            ("reading = 3", r"has no \[reading\] table"),
            ('[reading.roles]\nblocks.a = "query"', "in quotes"),
        ],
    )
    def test_one_that_is_wrong_is_named(self, text, told, tmp_path):
        path = tmp_path / "odd.toml"
        path.write_text(text)
        with pytest.raises(OptionError, match=told) as caught:
            Reading.load(path)
        assert "odd.toml" in str(caught.value)

    def test_one_that_is_not_there_or_no_text(self, tmp_path):
        with pytest.raises(OptionError, match=r"none.toml: No such file"):
            Reading.load(tmp_path / "none.toml")
        (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(OptionError, match=r"bytes.toml: .*decode"):
            Reading.load(tmp_path / "bytes.toml")


def test_patterns_that_a_base_has_no_parameters_for_are_left_out():
    said = Reading({"layers.*.a": "query", "layers.7.b": "hidden", "LAYERS.*": "gain"}, ("scale",))
    kept = said.fitting(["layers.0.a", "layers.1.a", "layers.1.b"])
    assert kept == Reading({"layers.*.a": "query"}, ("scale",))
