"""Settings behind a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mupscale.errors import OptionError
from mupscale.targets.settings import parse_value, split_settings


@given(
    st.one_of(
        st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()
    )
)
def test_a_value_is_read_as_python_writes_it(value):
    read = parse_value(str(value))
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("text", ["silu", "nan", "inf", "1e999", "0x10", "bfloat16", ""])
def test_anything_else_is_a_string(text):
    assert parse_value(text) == text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:llama,hidden_size", "'hidden_size' is not a setting. Write key=value"),
        ("hf:llama,=4", "'=4' is not a setting"),
        ("hf:llama,", "'' is not a setting"),
        ("hf:llama,a b=4", "'a b=4' is not a setting"),
        ("hf:llama,n=1,n=2", "n is set twice"),
    ],
)
def test_what_is_no_setting_is_an_error(name, message):
    with pytest.raises(OptionError, match=message):
        split_settings(name)
