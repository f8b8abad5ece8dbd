"""The paper's tables of models, against rows copied from its source."""

import csv

import pytest

from mupscale.paper import configurations
from mupscale.paper.configurations import COLUMNS, EXPERIMENT, PRINTED, cells_of

# From the paper's source, with blanks taken out.
SOURCE = r"""
kvr\_t\_1&125.55&80.62&768&7&12&64&1&12&10&806200000&98413&262144&32&3075
kvr\_t\_2&126.23&81.31&768&7&12&64&2&6&10&813100000&99255&262144&32&3102
kvr\_t\_3&126.92&82&768&7&12&64&3&4&10&820000000&100098&262144&32&3128
kvr\_t\_4&127.61&82.69&768&7&12&64&4&3&10&826900000&100940&262144&32&3154
kvr\_t\_6&128.99&84.06&768&7&12&64&6&2&10&840600000&102612&262144&32&3207
kvr\_t\_12&133.12&88.19&768&7&12&64&12&1&10&881900000&107654&270336&33&3262
jwd-small&48.82&26.38&384&4&6&64&6&1&3&79140000&9661&81920&10&966
jwd-medium&125.96&81.07&768&6&12&64&12&1&3&243210000&29689&147456&18&1649
jwd-large&237.17&177.31&1024&10&16&64&16&1&3&531930000&64933&212992&26&2497
"""


def source_rows() -> dict[str, tuple[float, ...]]:
    rows: dict[str, tuple[float, ...]] = {}
    for line in SOURCE.strip().splitlines():
        name, *numbers = (part.strip() for part in line.split("&"))
        rows[name.replace(r"\_t\_", "_")] = tuple(float(number) for number in numbers)
    return rows


def test_the_printed_rows_are_those_of_the_source():
    assert source_rows() == PRINTED


@pytest.mark.parametrize("name", PRINTED)
def test_every_column_is_computed_to_the_printed_digit(name):
    cells = cells_of(name)
    assert [cell.column for cell in cells] == list(COLUMNS)
    for cell, printed in zip(cells, source_rows()[name], strict=True):
        assert float(cell.ours) == printed


def test_the_constant_of_the_text_gives_other_batches_and_so_other_iterations_and_nothing_else():
    for name in PRINTED:
        wrong = {cell.column for cell in cells_of(name, "printed") if not cell.equal}
        assert wrong == {"batch (tokens)", "batch (sequences)", "iterations"}


def test_the_tables_agree_and_the_text_does_not(tmp_path):
    tables, text = EXPERIMENT.claims()
    assert (tables.verdict, text.verdict) == ("agrees", "disagrees")
    assert "9 of 9 rows, 126 of 126 cells" in tables.seen
    assert "0 of the 9 batches" in text.seen
    assert EXPERIMENT.findings("cpu", tmp_path).claims == (tables, text)


def test_a_number_that_is_not_as_printed_is_found_and_named(monkeypatch):
    other = (126.24, *PRINTED["kvr_2"][1:])
    monkeypatch.setattr(configurations, "PRINTED", {**PRINTED, "kvr_2": other})
    tables, _ = EXPERIMENT.claims()
    assert tables.verdict == "disagrees"
    assert "8 of 9 rows, 125 of 126 cells" in tables.seen
    assert sum(line.endswith("equal") for line in EXPERIMENT.lines()) == 8
    (differs,) = (line for line in EXPERIMENT.lines() if line.endswith("differs"))
    assert differs.startswith("kvr_2 ")
    assert list(EXPERIMENT.lines())[-1] == "kvr_2: params (M) is 126.23, printed 126.24"


def test_the_table_is_written(tmp_path):
    EXPERIMENT.run("paper", tmp_path)
    found = EXPERIMENT.findings("paper", tmp_path)
    rows = list(csv.DictReader(found.paths[0].read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 9 * 14
    assert {row["equal"] for row in rows} == {"True"}
    assert list(EXPERIMENT.dry_run("paper")) == list(found.lines)
    assert EXPERIMENT.cost("paper", 2) is None
