"""Experiments with a design of their own: the committed studies are their parts, and the analysis
finds what made runs hold.
"""

import dataclasses
import math
from pathlib import Path

import pytest

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.fits import FITS
from mupscale.paper import experiment_named
from mupscale.paper.catalogue import middle_run
from mupscale.paper.rate_study import RateStudy
from mupscale.paper.rate_tables import MEASURED, FitAnswer
from mupscale.paper.sharing import difference
from mupscale.paper.vocabulary import table_or_sqrt
from mupscale.studies import Study, StudyConfig
from mupscale.studies.config import Cell
from mupscale.training.preparation import plan_for
from tests.paper.made_widths import CellLoss, write_cells

RESULTS = Path(__file__).parents[2] / "results"
RUNS = {
    "sharing": 294, "sharing-batch": 45, "sizes": 567, "depth-from-one": 384, "vocabulary": 252,
}  # fmt: skip


def study(name: str) -> RateStudy:
    found = experiment_named(name)
    assert isinstance(found, RateStudy)
    return found


@pytest.mark.parametrize("name", RUNS)
class TestDesigns:
    def test_the_committed_studies_are_its_parts(self, name: str):
        parts = study(name).parts("cpu")
        committed = {path.parent for path in (RESULTS / name).rglob("study.toml")}
        assert {RESULTS / name / part for part in parts} == committed
        for part, config in parts.items():
            saved = StudyConfig.load(RESULTS / name / part / "study.toml")
            assert config.identity() == saved.identity(), part

    def test_the_runs_are_as_many_as_its_page_says(self, name: str, tmp_path: Path):
        assert study(name).runs("cpu", tmp_path).expected == RUNS[name]
        page = (RESULTS / name / "README.md").read_text(encoding="utf-8")
        counts = {"sizes": "81 small, 486 larger"}
        assert counts.get(name, f"| runs | {RUNS[name]};") in page

    def test_the_same_parts_exist_at_the_papers_scale(self, name: str):
        here, there = study(name).parts("cpu"), study(name).parts("paper")
        assert here.keys() == there.keys()
        for part, config in there.items():
            cells = [(cell.rule_name, cell.label) for cell in config.cells()]
            assert cells == [(cell.rule_name, cell.label) for cell in here[part].cells()]
            assert config.tables["data"]["corpus"] == "hf:openwebtext"

    @pytest.mark.parametrize("scale", ["cpu", "paper"])
    def test_only_what_is_asked_about_differs_between_cells(self, name: str, scale):
        runs = [
            middle_run(config, cell)
            for config in study(name).parts(scale).values()
            for cell in config.cells()
        ]
        seen = {
            repr(
                (
                    run.length,
                    dataclasses.replace(run.data, tokenizer=None),
                    dataclasses.replace(run.base_model(), vocabulary=256),
                    run.record,
                )
            )
            for run in runs
        }
        assert len(seen) == 1
        vocabularies = {(run.data.tokenizer, run.model.vocabulary) for run in runs}
        assert len(vocabularies) == (3 if name == "vocabulary" else 1)

    def test_nothing_is_claimed_before_all_runs_have_ended(self, name: str, tmp_path: Path):
        assert study(name).claims_in("cpu", tmp_path) == ()


@pytest.mark.parametrize("name", ["sharing", "sharing-batch", "sizes"])
@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_where_one_rule_runs_for_all_they_give_the_same_values(name: str, scale):
    first, second, *_ = study(name).parts(scale).values()
    for cell in first.cells():
        plans = [
            plan_for(middle_run(first, Cell(rule, *_rest(cell)))).parameters.values()
            for rule in (*first.rules, *second.rules)
        ]
        values = [[planned.values for planned in plan] for plan in plans]
        assert all(one == values[0] for one in values)


def _rest(cell: Cell) -> tuple:
    return cell.label, cell.dimensions, cell.tables, cell.space


def answers(
    name: str, folder: Path, loss: CellLoss, other: CellLoss | None = None
) -> dict[tuple[str, str], FitAnswer]:
    """By question and rule, from made runs; `other` makes those of `sharing` beside them."""
    for part, config in study(name).parts("cpu").items():
        write_cells(config, folder / name / part, loss, parameter=study(name).searched)
    for part, config in study("sharing").parts("cpu").items() if other else ():
        write_cells(config, folder / "sharing" / part, other)
    found = study(name).runs("cpu", folder / name)
    assert found.complete
    every = study(name).answers("cpu", found, folder / name)
    return {(one.question.name, one.rule): one for one in every}


def values(answer: FitAnswer, fit: str = "cubic") -> tuple[float, ...]:
    found = answer.by_fit[fit]
    assert found is not None
    return found


def sharing_loss(best: float, added: dict[tuple[str, int], float], moved: float = 0.0) -> CellLoss:
    """`added` to the loss by rule and r; the optimum of gqa-mup at r = 12 lies `moved` higher."""

    def loss(cell: Cell, seed: int, rate: float) -> float:
        r = 12 // cell.dimensions["n_kv_heads"]
        own = best + (moved if (cell.rule_name, r) == ("gqa-mup", 12) else 0.0)
        level = 2 + 0.01 * (seed - 42) + added.get((cell.rule_name, r), 0.0)
        return level + 0.05 * (rate - own) ** 2

    return loss


class TestSharing:
    def test_losses_at_the_rate_of_r_1_are_compared_without_a_fit(self, tmp_path: Path):
        added = {("gqa-mup", 12): 0.01, ("gqa-mup", 4): -0.02, ("keys", 12): 0.03}
        found = answers("sharing", tmp_path, sharing_loss(-8.0, added, moved=0.5))
        first = found["loss at r = 12", "gqa-mup"]
        assert next(iter(found)) == ("loss at r = 12", "gqa-mup")  # the primary question
        assert values(first, MEASURED) == pytest.approx([0.01 + 0.05 * 0.25] * 6)
        assert (first.agreement.verdict, len(first.seeds)) == ("higher", 6)
        assert values(found["loss at r = 4", "gqa-mup"], MEASURED) == pytest.approx([-0.02] * 6)
        assert found["loss at r = 4", "gqa-mup"].agreement.verdict == "lower"
        assert values(found["loss at r = 12", "keys"], MEASURED) == pytest.approx([0.03] * 6)
        assert values(found["loss at r = 12", "values"], MEASURED) == pytest.approx([0.0] * 6)
        for fit in FITS:
            lowest = values(found["lowest loss at r = 12", "gqa-mup"], fit)
            assert lowest == pytest.approx([0.01] * 6, abs=2e-3)
            move = values(found["move", "gqa-mup"], fit)
            assert move == pytest.approx([0.5] * 6, abs=0.01)
            assert values(found["move", "complete-p"], fit) == pytest.approx([0] * 6, abs=0.01)
        assert found["move", "complete-p"].agreement.verdict == "still"

    def test_a_diverged_run_at_that_rate_is_reported_as_such(self, tmp_path: Path):
        def loss(cell: Cell, seed: int, rate: float) -> float | None:
            if cell.rule_name == "gqa-mup" and seed == 44 and rate >= -8:
                return None
            return sharing_loss(-8.0, {})(cell, seed, rate)

        for part, config in study("sharing").parts("cpu").items():
            write_cells(config, tmp_path / part, loss)
        found = study("sharing").runs("cpu", tmp_path)
        assert difference(found, "gqa-mup", 12).missing == "diverged"


class TestSharingBatch:
    def test_the_gain_is_compared_with_that_at_the_small_batch(self, tmp_path: Path):
        here, there = {("gqa-mup", 12): -0.02}, {("gqa-mup", 12): 0.01}
        found = answers(
            "sharing-batch", tmp_path, sharing_loss(-7.5, here), sharing_loss(-8.5, there)
        )
        assert values(found["loss at r = 12", "gqa-mup"], MEASURED) == pytest.approx([-0.02] * 3)
        change = found["change with the batch", "gqa-mup"]
        assert values(change, MEASURED) == pytest.approx([-0.03] * 3)
        assert (change.seeds, change.agreement.verdict) == ((42, 43, 44), "lower")

    def test_the_findings_print_and_every_question_becomes_a_claim(self, tmp_path: Path):
        same = sharing_loss(-7.5, {})
        answers("sharing-batch", tmp_path, same, same)
        shown = study("sharing-batch").findings("cpu", tmp_path / "sharing-batch")
        assert shown.lines[0] == "45 of 45 runs have ended, 0 diverged."
        assert [claim.runs for claim in shown.claims] == [45, 45 + 126, 30]
        assert {claim.verdict for claim in shown.claims} == {"ours"}
        assert "3 seeds, indistinguishable" in shown.claims[0].seen
        assert all(path.exists() for path in shown.paths)

    def test_without_the_other_study_that_question_waits(self, tmp_path: Path):
        name = "sharing-batch"
        for part, config in study(name).parts("cpu").items():
            write_cells(config, tmp_path / name / part, sharing_loss(-7.5, {}))
        found = study(name).runs("cpu", tmp_path / name)
        _, change, _ = study(name).answers("cpu", found, tmp_path / name)
        assert change.missing == "not run yet (45 of 171 runs)"  # 3 cells of 42 there


def test_sizes_are_compared_by_their_parameters_at_each_decay(tmp_path: Path):
    parameters = study("sizes").parameters("cpu")  # pyright: ignore[reportAttributeAccessIssue]

    def loss(cell: Cell, seed: int, rate: float) -> float:
        size, _, decay = str(cell.label).partition("-")
        moves = {"sp": -0.4, "mup": 0.1}.get(cell.rule_name, 0.0) * (decay != "strong")
        best = -6.5 + moves * math.log2(parameters[size] / parameters["small"])
        return 2 + 0.01 * (seed - 42) + 0.05 * (rate - best) ** 2

    found = answers("sizes", tmp_path, loss)
    doublings = math.log2(parameters["large"] / parameters["small"])
    for rule, drift in (("sp", -0.4), ("mup", 0.1), ("complete-p", 0.0)):
        for decay in ("weak", "middle", "strong"):
            expected = 0.0 if decay == "strong" else drift
            moved = values(found[f"drift, {decay} decay", rule])
            assert moved == pytest.approx([expected] * 3, abs=0.02)
            lost = values(found[f"regret, {decay} decay", rule])
            assert lost == pytest.approx([0.05 * (expected * doublings) ** 2] * 3, abs=5e-3)
    assert found["drift, weak decay", "sp"].agreement.verdict == "moves"
    assert found["drift, weak decay", "complete-p"].agreement.verdict == "still"
    joined = Study.open(tmp_path / "sizes").snapshot()
    assert len(joined.cells) == 27
    assert {name.partition(".")[0] for name in joined.copies} == {"sp", "mup"}


def test_depth_is_compared_from_4_blocks_on(tmp_path: Path):
    def loss(cell: Cell, seed: int, rate: float) -> float:
        doublings = math.log2(cell.dimensions["depth"] / 4)
        drift = {"beta-1": -0.5, "beta-1-over-sqrt-L": -0.25}.get(cell.rule_name, 0.0)
        level = 2 + (0.1 if cell.rule_name == "beta-1" else 0.0) + 0.01 * (seed - 42)
        start = {"beta-1": -6.5, "beta-1-over-sqrt-L": -6.5}.get(cell.rule_name, -6.0)
        return level + 0.05 * (rate - start - drift * doublings) ** 2

    found = answers("depth-from-one", tmp_path, loss)
    for rule, drift in (("beta-1", -0.5), ("beta-1-over-sqrt-L", -0.25), ("complete-p", 0.0)):
        for fit in FITS:
            assert values(found["drift", rule], fit) == pytest.approx([drift] * 3, abs=0.03)
        lost = values(found["regret", rule])
        assert lost == pytest.approx([0.05 * (3 * drift) ** 2] * 3, abs=5e-3)
    assert found["drift", "complete-p"].agreement.verdict == "still"
    assert found["regret", "beta-1"].agreement.verdict == "above 0"
    for depth in (4, 8, 16, 32):
        lowest = values(found[f"lowest loss at depth {depth}", "beta-1"])
        assert lowest == pytest.approx([0.1] * 3, abs=2e-3)


class TestVocabulary:
    """The best factor falls by half an octave per doubling with 4,096 tokens, and by a tenth with
    the others; a little more or less with each seed.
    """

    @staticmethod
    def loss(cell: Cell, seed: int, factor: float) -> float:
        tokens = cell.tables["model"]["vocabulary"]
        drift = {256: -0.1, 4096: -0.5, 32768: -0.1}[tokens] + 0.03 * (seed - 43.5)
        doublings = math.log2(cell.dimensions["width"] / 32)
        best = (6.2 if tokens == 32768 else 4.5) + drift * doublings
        return 4 - 0.1 * doublings + 0.01 * seed + 0.01 * (factor - best) ** 2

    def test_it_finds_how_the_best_factor_moves_over_the_width(self, tmp_path: Path):
        found = answers("vocabulary", tmp_path, self.loss)
        for tokens, drift in (("256", -0.1), ("4,096", -0.5), ("32,768", -0.1)):
            answer = found[f"drift over width, {tokens} tokens", "gqa-mup"]
            for fit in FITS:
                expected = [drift + 0.03 * (seed - 43.5) for seed in (42, 43, 44, 45)]
                assert values(answer, fit) == pytest.approx(expected, abs=0.02)
        # The intervals are ± 0.06: a tenth of an octave is neither.
        verdicts = {name: one.agreement.verdict for (name, _), one in found.items()}
        assert verdicts["drift over width, 4,096 tokens"] == "agrees with sqrt"
        assert verdicts["drift over width, 256 tokens"] == "agrees with neither"

    def test_what_each_rule_carries_is_compared_without_a_fit(self, tmp_path: Path):
        found = answers("vocabulary", tmp_path, self.loss)
        for tokens, best, drift in (
            ("256", 4.5, -0.1),
            ("4,096", 4.5, -0.5),
            ("32,768", 6.0, -0.1),
        ):
            top = (6.2 if tokens == "32,768" else 4.5) + 3 * drift
            expected = 0.01 * ((best - top) ** 2 - (best - 1.5 - top) ** 2)
            answer = found[f"carried, {tokens} tokens", "gqa-mup"]
            mean = answer.estimate(MEASURED)
            assert mean is not None
            assert mean.value == pytest.approx(expected, abs=1e-9)  # linear in the drift
            assert answer.agreement.verdict == ("higher" if tokens == "4,096" else "lower")

    def test_the_figure_and_the_tables_name_the_factor(self, tmp_path: Path):
        answers("vocabulary", tmp_path, self.loss)
        shown = study("vocabulary").findings("cpu", tmp_path / "vocabulary")
        assert "log2 of the best lr.embedding: " in "\n".join(shown.lines)
        assert {path.name for path in shown.paths} >= {"vocabularies.png", "answers.csv"}
        assert len(shown.claims) == 9
        lowest = (tmp_path / "vocabulary" / "lowest-points.csv").read_text(encoding="utf-8")
        assert "log2_lr.embedding" in lowest.splitlines()[0]

    def test_a_range_that_is_open_says_which_line_to_change(self, tmp_path: Path):
        def rising(cell: Cell, seed: int, factor: float) -> float:
            return 4 + 0.01 * seed + 0.01 * factor

        for part, config in study("vocabulary").parts("cpu").items():
            write_cells(config, tmp_path / part, rising, parameter="lr.embedding")
        text = "\n".join(study("vocabulary").findings("cpu", tmp_path).lines)
        assert 'write "lr.embedding" = ["2^0.5", "2^6"] below' in " ".join(text.split())


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((-0.2, 0.1), "agrees with table"),
        ((-0.6, -0.3), "agrees with sqrt"),
        ((-0.6, 0.1), "undecided"),
        ((-0.4, -0.1), "agrees with neither"),
    ],
)
def test_an_interval_agrees_with_the_rule_that_it_contains(ends: tuple[float, float], verdict: str):
    assert table_or_sqrt(Estimate(sum(ends) / 2, *ends)) == verdict
