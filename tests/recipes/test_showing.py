"""A recipe reads at any width: nothing is cut, and a wide terminal gets one line per parameter."""

import dataclasses
import re

import pytest


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(recipe, columns):
    """Names are never broken, so that they can be copied; the target here has a short one."""
    long_names = {f"{row.pattern} × {row.count}" for row in recipe.rows}
    text = dataclasses.replace(recipe, target="tiny").to_text(columns=columns)
    lines = text.splitlines()
    assert [line for line in lines if len(line) > columns and line.strip() not in long_names] == []


@pytest.mark.parametrize("columns", [80, 160])
def test_every_value_stands_whole_in_the_text(recipe, columns):
    words = recipe.to_text(columns=columns).split()
    for row in recipe.rows:
        assert row.pattern in words
        assert {f"{row.lr:.4g}", f"{row.weight_decay:.4g}", f"{row.eps:.4g}"} <= set(words)


def test_a_wide_terminal_has_one_line_per_parameter_and_a_narrow_one_two(recipe):
    def lines(columns):
        text = recipe.to_text(columns=columns)
        section = re.search(r"Values for each parameter\n(.*?)\n\n", text, flags=re.DOTALL)
        assert section is not None
        return [line for line in section[1].splitlines() if "Multipliers" not in line]

    count = len(recipe.rows)
    assert len([line for line in lines(160) if "×" in line]) >= count - 1
    assert len(lines(80)) >= 2 * count


def test_markdown_and_text_have_the_same_sections(recipe):
    headings = re.findall(r"^## (.*)$", recipe.to_markdown(), flags=re.MULTILINE)
    lines = recipe.to_text().splitlines()
    assert headings
    assert all(heading in lines for heading in headings)
