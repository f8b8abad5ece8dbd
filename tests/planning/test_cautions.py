"""What a plan warns of names the place that the plan uses."""

import pytest

import mupscale as mu
from tests.planning.models import model_and_base


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("tied llama", "the final norm"),
        ("olmo (norms without gains, tied)", "a hook"),
    ],
)
def test_the_factor_of_a_tied_readout_is_in_the_final_norm_if_that_has_a_gain(name, place):
    model, base = model_and_base(name)
    warnings = mu.plan(model, base=base).warnings
    assert [text for text in warnings if f"the readout's factor is in {place}." in text]
