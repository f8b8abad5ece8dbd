"""The registry of roles: every role has one complete row, and nothing falls back to a default."""

import dataclasses
from fractions import Fraction

import pytest

from mupscale.checks.statistics import THIN
from mupscale.errors import UnknownNameError
from mupscale.planning.base import _resized
from mupscale.planning.units import dimensions, unit_for
from mupscale.reading import BRANCH_OUTPUTS, EXPERTS, NOT_DRAWN, ROLES, ParameterFact, role_row
from mupscale.reading.roles import ANY_MATRIX, ROLE_ROWS
from mupscale.reading.verdicts import _contradicts
from mupscale.theory import Unit

FACT = ParameterFact("w", (8, 8), "hidden", fan_in=8, fan_out=8, out_axis=0, width=8)
RATIOS = dict.fromkeys(("width", "inner", "d_ff"), Fraction(1, 2))


def test_sets_of_roles_follow_from_the_rows():
    assert {"attention_output", "mlp_out", "expert_out", "branch_output"} == BRANCH_OUTPUTS
    assert {"gain", "bias", "frozen"} == NOT_DRAWN
    assert {"expert_in", "expert_out"} == EXPERTS
    # Reports read statistics without torch, so the set is written out there.
    fixed_outputs = [role for role, row in ROLE_ROWS.items() if row.grows == (None, "width")]
    assert set(THIN) == set(fixed_outputs)


def test_every_role_has_a_row_in_the_same_order():
    assert tuple(ROLE_ROWS) == ROLES
    assert len(set(ROLES)) == len(ROLES)


@pytest.mark.parametrize("role", ROLES)
class TestEachRow:
    def test_the_unit_can_be_evaluated_with_the_numbers_of_a_fact(self, role):
        unit = unit_for(role, in_block=False)
        assert isinstance(unit, Unit)
        symbols = {str(one) for size in unit.shape() for one in getattr(size, "free_symbols", ())}
        assert symbols <= set(dimensions(dataclasses.replace(FACT, role=role)))

    def test_fans_grow_as_the_row_says(self, role):
        small = _resized(dataclasses.replace(FACT, role=role), RATIOS, 4, None, None)
        grows_out, grows_in = role_row(role).grows
        assert (small.fan_out, small.fan_in) == (4 if grows_out else 8, 4 if grows_in else 8)

    def test_only_matrices_take_the_width_or_end_a_branch(self, role):
        row = role_row(role)
        assert row.start in ("drawn", "set", "kept")
        assert row.kind == "matrix" or not (row.takes_width or row.ends_branch or row.shared)
        assert (row.start == "drawn") == (row.kind != "vector")
        assert not (row.takes_width and row.ends_branch)

    def test_a_forward_pass_that_shows_the_role_itself_never_contradicts_it(self, role):
        measured = {one for row in ROLE_ROWS.values() for one in row.seen_as} | ANY_MATRIX
        assert role not in measured or not _contradicts(role, role)
        for other in role_row(role).seen_as:
            assert not _contradicts(other, role)


@pytest.mark.parametrize(
    "use",
    [
        role_row,
        lambda role: unit_for(role, in_block=True),
        lambda role: dimensions(dataclasses.replace(FACT, role=role)),
        lambda role: _resized(dataclasses.replace(FACT, role=role), RATIOS, 4, None, None),
        lambda role: _contradicts("key", role),
    ],
)
def test_an_unknown_role_raises_an_error_that_names_it(use):
    with pytest.raises(UnknownNameError, match=r"unknown role 'kee'\. Did you mean 'key'"):
        use("kee")
