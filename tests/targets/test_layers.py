"""Lists with one entry a layer, at another depth."""

from hypothesis import given
from hypothesis import strategies as st

from mupscale.targets.layers import continued, with_depth, with_every_kind

KINDS = st.sampled_from(["full", "sliding", "sparse"])


@given(
    first=st.lists(KINDS, max_size=4),
    period=st.lists(KINDS, min_size=1, max_size=4),
    length=st.integers(1, 40),
)
def test_first_entries_and_a_period_are_found_and_continued(first, period, length):
    whole = first + period * 40
    seen = whole[: len(first) + 4 * len(period)]
    assert continued(seen, length) == whole[:length]


@given(items=st.lists(KINDS, min_size=1, max_size=12), length=st.integers(1, 12))
def test_a_list_cut_short_begins_like_the_original(items, length):
    assert continued(items, length)[: len(items)] == items[:length]
    assert len(continued(items, length)) == length


@given(original=st.lists(KINDS, min_size=1, max_size=12), length=st.integers(1, 12))
def test_every_kind_is_there_if_there_is_room(original, length):
    entries = continued(original, length)
    result = with_every_kind(entries, original)
    assert len(result) == length
    assert len(set(result)) == min(len(set(original)), length)
    assert result == entries or set(entries) != set(original)


def ends_in_full_attention(values):
    """A config that derives its layers from their number, the last one apart."""
    derived = ["sliding"] * (values["num_hidden_layers"] - 1) + ["full"]
    return {**values, "layer_types": values.get("layer_types", derived)}


def test_what_the_config_derives_itself_is_left_to_it():
    values = ends_in_full_attention({"num_hidden_layers": 8})
    for depth in (3, 12):
        assert with_depth(ends_in_full_attention, values, depth)["layer_types"] == ["sliding"] * (
            depth - 1
        ) + ["full"]


def test_what_it_would_not_derive_like_that_is_cut_or_continued():
    values = ends_in_full_attention(
        {"num_hidden_layers": 4, "layer_types": ["full", "sliding"] * 2}
    )
    assert with_depth(ends_in_full_attention, values, 3)["layer_types"] == [
        "full",
        "sliding",
        "full",
    ]
    assert with_depth(ends_in_full_attention, values, 6)["layer_types"] == ["full", "sliding"] * 3
