"""Every row of the paper's tables comes out to the printed digit."""

import math

import pytest

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.models import (
    CONFIGURATIONS,
    batch_sequences,
    budget,
    configuration,
    parameter_counts,
    table_row,
    warmup_iterations,
)
from mupscale.models.budgets import printed_tokens

# name: params and non-embedding params in millions, width, depth, heads, head size, KV heads, r,
# TPP, tokens, sequences, batch in tokens and in sequences, iterations (the paper, appendix "Model
# Configurations").
ROWS = {
    "kvr_1": (125.55, 80.62, 768, 7, 12, 64, 1, 12, 10, 806200000, 98413, 262144, 32, 3075),
    "kvr_2": (126.23, 81.31, 768, 7, 12, 64, 2, 6, 10, 813100000, 99255, 262144, 32, 3102),
    "kvr_3": (126.92, 82.00, 768, 7, 12, 64, 3, 4, 10, 820000000, 100098, 262144, 32, 3128),
    "kvr_4": (127.61, 82.69, 768, 7, 12, 64, 4, 3, 10, 826900000, 100940, 262144, 32, 3154),
    "kvr_6": (128.99, 84.06, 768, 7, 12, 64, 6, 2, 10, 840600000, 102612, 262144, 32, 3207),
    "kvr_12": (133.12, 88.19, 768, 7, 12, 64, 12, 1, 10, 881900000, 107654, 270336, 33, 3262),
    "jwd-small": (48.82, 26.38, 384, 4, 6, 64, 6, 1, 3, 79140000, 9661, 81920, 10, 966),
    "jwd-medium": (125.96, 81.07, 768, 6, 12, 64, 12, 1, 3, 243210000, 29689, 147456, 18, 1649),
    "jwd-large": (237.17, 177.31, 1024, 10, 16, 64, 16, 1, 3, 531930000, 64933, 212992, 26, 2497),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_paper(name):
    row, printed = table_row(name), ROWS[name]
    assert row.total_parameters / 1e6 == pytest.approx(printed[0], abs=0.005)
    assert row.non_embedding_parameters / 1e6 == pytest.approx(printed[1], abs=0.005)
    shape = (
        row.width,
        row.depth,
        row.n_heads,
        row.head_dim,
        row.n_kv_heads,
        row.repetitions,
        row.tokens_per_parameter,
    )
    assert shape == printed[2:9]
    run = row.budget
    assert (
        run.tokens,
        run.sequences,
        run.batch_tokens,
        run.batch_sequences,
        run.iterations,
    ) == printed[9:]


@pytest.mark.parametrize("name", ROWS)
def test_the_constant_in_the_text_gives_no_row_of_the_table(name):
    assert table_row(name, "printed").budget.batch_sequences == math.ceil(
        0.000733 * math.sqrt(ROWS[name][9])
    )
    assert table_row(name, "printed").budget.batch_sequences < ROWS[name][12]


def test_the_rows_of_the_paper_are_the_ones_said_to_be():
    of_paper = [
        one.name
        for one in CONFIGURATIONS.values()
        if "2605.15290" in one.source and one.tokens_per_parameter
    ]
    assert of_paper == list(ROWS)


def test_the_coordinate_check_has_heads_that_do_not_add_up_to_the_width():
    for n_kv_heads in (1, 2, 3, 4, 6, 12):
        model = configuration(f"coordinate_{n_kv_heads}").model
        assert (model.width, model.depth, model.kv_heads) == (576, 8, n_kv_heads)
        assert (model.n_heads, model.head_size) == (12, 64)


def test_our_own_shapes_say_so_and_are_near_the_size_they_are_named_after():
    for name, one in CONFIGURATIONS.items():
        assert one.name == name
        assert one.source.startswith(("GQA-μP", "ours"))
    for r in (1, 2, 4, 8):
        one = configuration(f"136m_r{r}")
        assert one.source.startswith("ours")
        assert one.model.repetitions == r
        assert parameter_counts(one.model).non_embedding == pytest.approx(136e6, rel=0.07)
    target = configuration("1.2b_r4")
    assert target.source.startswith("ours")
    assert target.model.repetitions == 4
    assert parameter_counts(target.model).non_embedding == pytest.approx(1.2e9, rel=0.05)
    assert target.model.head_size == configuration("136m_r4").model.head_size


def test_the_family_for_one_core():
    family = [one.model for name, one in CONFIGURATIONS.items() if name.startswith("cpu_")]
    assert {model.width for model in family} == {32, 64, 96, 128, 192}
    assert {
        (model.head_size, model.vocabulary, model.n_heads * 16 == model.width) for model in family
    } == {(16, 256, True)}


def test_names_that_are_not_known():
    with pytest.raises(
        UnknownNameError, match=r"unknown configuration 'kvr_5'\. Did you mean 'kvr_\d+'\?"
    ):
        configuration("kvr_5")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'printed'\?"):
        batch_sequences(10**9, "print")
    with pytest.raises(OptionError, match=r"cpu_64_r2 has no row.* Choose one of kvr_1"):
        table_row("cpu_64_r2")


def test_budgets_that_cannot_be():
    with pytest.raises(DimensionError, match=r"tokens=100 is less than one sequence of 8192"):
        budget(100)
    with pytest.raises(DimensionError, match=r"10 tokens per parameter for 4999 parameters"):
        printed_tokens(4999, 10)


def test_warmup_is_a_share_until_it_would_be_too_many_tokens():
    assert warmup_iterations(1000, 32) == 20
    assert warmup_iterations(10**6, 32) == int(375e6 / (32 * 8192))
    assert warmup_iterations(10**6, 8, sequence_tokens=128) == 20_000
    assert budget(806_200_000).warmup_iterations == 61
