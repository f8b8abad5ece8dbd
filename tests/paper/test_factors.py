"""Values found at the base and carried to larger widths: the parts follow from the records, and the
analysis finds what made runs hold.
"""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from mupscale.analysis.estimates import Estimate
from mupscale.cli import main
from mupscale.errors import OptionError
from mupscale.paper.carried import NO_WORSE_NATS, FactorsRuns, no_worse, panels
from mupscale.paper.costs import training_operations
from mupscale.paper.factors import EXPERIMENT
from mupscale.paper.rate_tables import MEASURED, FitAnswer, RateTable, with_more_seeds
from mupscale.paper.width import EXPERIMENT as WIDTH
from mupscale.studies import Snapshot, Study, StudyConfig
from mupscale.studies.config import Cell
from tests.paper.made_widths import CellLoss, write_cells, write_part
from tests.recipes.studies import written
from tests.studies.test_paired import carried_out, noise

RESULTS = Path(__file__).parents[2] / "results"
PARTS = ["64", "256", "512", "512-sides", "512-plain", "512-one-rate"]
BASE_RATE, RATE = -6.5, -6.0
"""The best rates at width 64: of one for all weights, and with factors."""

SEED = {42: 0.0, 43: 0.004, 44: 0.001, 45: -0.003}
"""Differs between seeds at the carried point alone, so that pairing does not remove it."""


def search_loss(place: Mapping[str, float], seed: int) -> float:
    """The rate is best at 2^-6, the embedding's at × 4; nothing else matters."""
    squares = 0.05 * (place["lr"] - RATE) ** 2 + 0.05 * (place["lr.embedding"] - 2) ** 2
    return 2 + 0.02 * seed + squares + 0.2 * noise(place, seed)


def width_loss(base_rate: float, rule: str, width: int, seed: int, rate: float) -> float:
    """Plain AdamW's best rate falls by 1.2 octaves per doubling; with seeds 44 and 45 it is
    another one at 512, and clearer.
    """
    doublings = math.log2(width / 64)
    best, bend = base_rate - (0.0 if rule == "gqa-mup" else 1.2 * doublings), 0.05
    if rule == "sp-fan-in" and width == 512 and seed > 43:
        best, bend = -9.5, 0.2
    return 2 - 0.1 * doublings + 0.01 * (seed - 42) + bend * (rate - best) ** 2


def carried_loss(seed: int, rate: float, best: float = RATE) -> float:
    return 1.66 + 0.01 * (seed - 42) + SEED[seed] + 0.03 * (rate - best) ** 2


def made_loss(best: float = RATE) -> CellLoss:
    """Of every part but the search: with factors, the carried point."""

    def loss(cell: Cell, seed: int, rate: float) -> float:
        if cell.tables["optimizer"].get("factors"):
            assert cell.tables["optimizer"]["factors"] == {"lr.embedding": 4.0}
            return carried_loss(seed, rate, best)
        return width_loss(BASE_RATE, cell.rule_name, cell.dimensions["width"], seed, rate)

    return loss


def write_width(folder: Path, base_rate: float = BASE_RATE) -> None:
    def loss(rule: str, width: int, seed: int, rate: float) -> float:
        return width_loss(base_rate, rule, width, seed, rate)

    for name, config in WIDTH.parts_at("cpu", base_rate).items():
        write_part(config, folder / name, loss)


def write_search(folder: Path, most: int | None = None) -> None:
    config = EXPERIMENT.parts("cpu")["64"]
    trials = [one.to_dict() for one in carried_out(config, search_loss)]
    written(folder, config.to_dict(), trials[:most])


def write_others(folder: Path, loss: CellLoss, without: tuple[str, ...] = ()) -> None:
    carried = EXPERIMENT.runs("cpu", folder).carried
    for name, config in EXPERIMENT.parts_at("cpu", carried).items():
        if name not in ("64", *without):
            write_cells(config, folder / name, loss)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The width study and the search, before the point is carried."""
    folder = tmp_path_factory.mktemp("before")
    write_width(folder / "width")
    write_search(folder / "factors" / "64")
    return folder


@pytest.fixture(scope="module")
def made(before: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(before, folder, dirs_exist_ok=True)
    write_others(folder / "factors", made_loss())
    return folder / "factors"


@pytest.fixture
def copied(before: Path, tmp_path: Path) -> Path:
    shutil.copytree(before, tmp_path, dirs_exist_ok=True)
    return tmp_path / "factors"


@pytest.fixture(scope="module")
def found(made: Path) -> FactorsRuns:
    return EXPERIMENT.runs("cpu", made)


def values(answer: FitAnswer) -> tuple[float, ...]:
    assert answer.missing == ""
    measured = answer.by_fit[MEASURED]
    assert measured is not None
    return measured


class TestParts:
    def test_the_committed_studies_follow_from_the_committed_records(self):
        carried = EXPERIMENT.runs("cpu", RESULTS / "factors").carried
        parts = EXPERIMENT.parts_at("cpu", carried)
        assert list(parts) == PARTS
        assert {path.parent.name for path in (RESULTS / "factors").glob("*/study.toml")} == {*PARTS}
        for name, config in parts.items():
            # Equal, not only the same study: an equal file is not written again.
            assert config == StudyConfig.load(RESULTS / "factors" / name / "study.toml"), name

    def test_point_and_rates_come_from_the_records(self, copied: Path):
        carried = EXPERIMENT.runs("cpu", copied).carried
        assert (carried.rate, carried.factors) == (RATE, {"lr.embedding": 4.0})
        assert (carried.plain_rate, carried.base_rate) == (-10.0, BASE_RATE)
        write_others(copied, made_loss())
        tables = EXPERIMENT.runs("cpu", copied).parts
        assert {name: (one.rule, one.seeds, one.log2_rates) for name, one in tables.items()} == {
            "256": ("gqa-mup", (42, 43, 44), (-6.5, -6.0, -5.5)),
            "512": ("gqa-mup", (42, 43, 44, 45), (-6.0,)),
            "512-sides": ("gqa-mup", (42, 43), (-6.5, -5.5)),
            "512-plain": ("sp-fan-in", (44, 45), (-10.5, -10.0, -9.5)),
            "512-one-rate": ("gqa-mup", (44, 45), (-6.5,)),
        }

    def test_the_part_of_another_point_is_an_error(self, copied: Path):
        carried = EXPERIMENT.runs("cpu", copied).carried
        config = EXPERIMENT.parts_at("cpu", carried)["512"]
        write_cells(config, copied / "512", made_loss())
        file = copied / "512" / "study.toml"
        file.write_text(file.read_text(encoding="utf-8").replace("= 4.0", "= 8.0"))
        with pytest.raises(OptionError, match=r"512 trains other values than the records give"):
            EXPERIMENT.runs("cpu", copied)

    def test_it_runs_the_search_first_and_the_parts_at_what_it_found(
        self, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        shutil.copytree(before / "width", tmp_path / "width")
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "gcide.txt").write_text("A text.")
        monkeypatch.chdir(tmp_path)
        begun: list[str] = []

        def train(self: Study, **_: object) -> Snapshot:
            begun.append(self.folder.name)
            if self.folder.name == "64":
                write_search(self.folder)
            else:
                write_cells(self.config, self.folder, made_loss())
            return self.snapshot()

        monkeypatch.setattr(Study, "run", train)
        EXPERIMENT.run("cpu", tmp_path / "factors")
        assert begun == PARTS
        assert EXPERIMENT.runs("cpu", tmp_path / "factors").complete

    @pytest.mark.parametrize("scale", ["cpu", "paper"])
    def test_every_part_would_run(self, scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "gcide.txt").touch()
        monkeypatch.chdir(tmp_path)
        lines = list(EXPERIMENT.dry_run(scale))
        assert next(line for line in lines if line.startswith("part ")).endswith(": 66 runs")
        assert sum(line.startswith("part ") for line in lines) == 6

    def test_the_runs_of_the_width_study_lie_beside_it(self):
        assert EXPERIMENT.width_folder("cpu", Path("a/factors")) == Path("a/width")
        default = EXPERIMENT.width_folder("cpu", EXPERIMENT.folder("cpu"))
        assert default == WIDTH.folder("cpu")


class TestComparisons:
    def test_primary_is_tuned_adamw_at_the_best_of_three_rates_over_four_seeds(
        self, found: FactorsRuns, made: Path
    ):
        first, *_ = EXPERIMENT.answers("cpu", found, made)
        assert (first.question.name, first.rule) == ("carried to 512", "plain AdamW tuned there")
        assert first.seeds == (42, 43, 44, 45)
        # Two seeds of `width` prefer 2^-10, all four 2^-9.5.
        assert found.width.at("sp-fan-in", 512).best == -10
        plain = [width_loss(BASE_RATE, "sp-fan-in", 512, seed, -9.5) for seed in first.seeds]
        expected = [
            carried_loss(seed, RATE) - loss for seed, loss in zip(first.seeds, plain, strict=True)
        ]
        assert values(first) == pytest.approx(expected)
        estimate = first.agreement.widest
        assert estimate is not None
        half = 3.182446 * np.std(expected, ddof=1) / 2  # Student's t with three degrees
        assert estimate.value == pytest.approx(np.mean(expected))
        assert estimate.high == pytest.approx(np.mean(expected) + half)
        assert first.runs == 4 + 14 + 6

    @pytest.mark.parametrize(
        ("low", "high", "verdict"),
        [
            (-0.02, 0.0099, "no worse"),
            (0.001, 0.0099, "no worse"),
            (-0.02, 0.01, "undecided"),
            (0.005, 0.02, "undecided"),
            (0.01, 0.02, "worse"),
        ],
    )
    def test_no_worse_needs_the_whole_interval_below_a_hundredth(self, low, high, verdict):
        assert NO_WORSE_NATS == 0.01
        assert no_worse(Estimate((low + high) / 2, low, high)) == verdict

    @pytest.mark.parametrize(("added", "verdict"), [(-0.1, "no worse"), (0.2, "worse")])
    def test_the_verdict_follows_the_losses(self, copied: Path, added: float, verdict: str):
        def loss(cell: Cell, seed: int, rate: float) -> float | None:
            found = made_loss()(cell, seed, rate)
            factors = cell.tables["optimizer"].get("factors")
            return found + added if found is not None and factors else found

        write_others(copied, loss)
        first, *_ = EXPERIMENT.runs("cpu", copied).compared(512)
        assert first.agreement.verdict == verdict

    def test_one_rate_for_all_weights_has_four_seeds(self, found: FactorsRuns):
        answer = found.compared(512)[1]
        assert (answer.rule, answer.seeds) == ("one rate for all weights", (42, 43, 44, 45))
        assert values(answer) == pytest.approx(
            [
                carried_loss(seed, RATE) - width_loss(BASE_RATE, "gqa-mup", 512, seed, BASE_RATE)
                for seed in answer.seeds
            ]
        )
        assert answer.runs == 4 + 14 + 2 + 27

    def test_plain_adamw_with_the_bases_rate_has_two(self, found: FactorsRuns):
        answer = found.compared(512)[2]
        assert (answer.rule, answer.seeds) == ("plain AdamW at width 64's rate", (42, 43))
        assert values(answer) == pytest.approx(
            [
                carried_loss(seed, RATE) - width_loss(BASE_RATE, "sp-fan-in", 512, seed, BASE_RATE)
                for seed in (42, 43)
            ]
        )

    def test_the_same_at_256_with_three_seeds(self, found: FactorsRuns):
        tuned, one_rate, given = found.compared(256)
        assert tuned.rule == "plain AdamW tuned there"
        for answer, rule, rate in ((tuned, "sp-fan-in", -9.0), (one_rate, "gqa-mup", BASE_RATE)):
            assert answer.seeds == (42, 43, 44)
            assert values(answer) == pytest.approx(
                [
                    carried_loss(seed, RATE) - width_loss(BASE_RATE, rule, 256, seed, rate)
                    for seed in answer.seeds
                ]
            )
        assert given.missing == "not run: sp-fan-in at width 256 with the rate 2^-6.5"

    def test_the_bases_rate_is_compared_at_256_where_it_was_run(self, tmp_path: Path):
        write_width(tmp_path / "width", base_rate=-7.0)  # the upper end of the range at 256
        folder = tmp_path / "factors"
        write_search(folder / "64")
        write_others(folder, made_loss())
        given = EXPERIMENT.runs("cpu", folder).compared(256)[2]
        assert values(given) == pytest.approx(
            [
                carried_loss(seed, RATE) - width_loss(-7.0, "sp-fan-in", 256, seed, -7.0)
                for seed in (42, 43, 44)
            ]
        )

    def test_a_diverged_run_is_reported_as_such(self, copied: Path):
        def loss(cell: Cell, seed: int, rate: float) -> float | None:
            return None if cell.dimensions["width"] == 512 else made_loss()(cell, seed, rate)

        write_others(copied, loss)
        found = EXPERIMENT.runs("cpu", copied)
        assert {one.missing for one in found.compared(512)} == {"diverged"}
        assert (found.diverged, found.complete) == (4 + 4 + 6 + 2, True)


class TestRate:
    def test_losses_to_either_side_are_paired_with_those_at_the_carried_rate(
        self, found: FactorsRuns
    ):
        for width, seeds in ((256, 3), (512, 2)):
            below, above = found.sides(width)
            assert (below.rule, above.rule) == ("half an octave below", "half an octave above")
            for side in (below, above):
                assert values(side) == pytest.approx([0.03 * 0.25] * seeds)
                assert side.agreement.verdict == "higher"
            assert "the carried rate has the lowest mean" in found.best_of_three(width)

    @pytest.mark.parametrize(("best", "side"), [(-5.6, "above"), (-6.4, "below")])
    def test_a_better_side_is_named(self, copied: Path, best: float, side: str):
        write_others(copied, made_loss(best))
        found = EXPERIMENT.runs("cpu", copied)
        gained = 0.03 * (0.1**2 - 0.4**2)
        for width in (256, 512):
            better = next(one for one in found.sides(width) if one.rule.endswith(side))
            assert values(better) == pytest.approx([gained] * len(better.seeds))
            assert better.agreement.verdict == "lower"
            assert f"half an octave {side} the carried one" in found.best_of_three(width)


def test_the_cost_is_that_of_the_operations():
    found = EXPERIMENT.runs("cpu", RESULTS / "factors")
    (search,) = EXPERIMENT.parts("cpu")["64"].cells()
    small = EXPERIMENT.parts("cpu")["64"].run_config(search, {"lr": 1.0}, 42).model
    large = small.resized(width=512)
    one, other = (training_operations(model, 128, 1) for model in (small, large))
    words = EXPERIMENT.cost_words("cpu", found)
    assert f"{66 * one / (14 * other):.1%} of the operations of the 14 runs" in words
    assert f"{66 * one / other:.0%} of those of one run" in words
    page = " ".join((RESULTS / "factors" / "README.md").read_text(encoding="utf-8").split())
    assert f"66 runs are {100 * 66 * one / (14 * other):.1f} % of that" in page


class TestPartialRecords:
    @pytest.mark.parametrize("part", PARTS[1:])
    def test_nothing_is_claimed_before_all_runs_have_ended(self, copied: Path, part: str):
        write_others(copied, made_loss(), without=(part,))
        found = EXPERIMENT.runs("cpu", copied)
        assert (found.complete, found.best_of_three(512) == "") == (
            False,
            part in ("512", "512-sides"),
        )
        assert EXPERIMENT.claims_in("cpu", copied) == ()
        waiting = {one.missing[:12] for one in EXPERIMENT.answers("cpu", found, copied)}
        assert "not run yet " in waiting

    def test_a_search_that_has_begun_is_counted_and_carries_nothing(
        self, before: Path, tmp_path: Path
    ):
        shutil.copytree(before / "width", tmp_path / "width")
        folder = tmp_path / "factors"
        write_search(folder / "64", most=9)
        found = EXPERIMENT.runs("cpu", folder)
        assert (found.ended, found.expected, found.complete) == (9, 66 + 25, False)
        shown = EXPERIMENT.findings("cpu", folder)
        assert shown.lines[0] == "9 of 91 runs have ended, 0 diverged."
        assert "and carried" not in "\n".join(shown.lines)
        assert EXPERIMENT.claims_in("cpu", folder) == ()

    @pytest.mark.parametrize("part", ["64", "256", "512", "512-at-64"])
    def test_missing_records_of_the_width_study_are_an_error_with_its_command(
        self, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
    ):
        shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
        (tmp_path / "width" / part / "records.jsonl").unlink()
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "gcide.txt").touch()
        monkeypatch.chdir(tmp_path)
        command = f"mupscale paper width --scale cpu --output {tmp_path / 'width'}"
        for attempt in (EXPERIMENT.run, EXPERIMENT.findings):
            with pytest.raises(OptionError, match="not run yet") as error:
                attempt("cpu", tmp_path / "factors")
            assert str(error.value).endswith(command)
        assert EXPERIMENT.claims_in("cpu", tmp_path / "factors") == ()

    def test_other_rules_of_the_width_study_do_not_matter(self, copied: Path):
        """The range of `sp` may be open, or have to grow."""
        shutil.rmtree(copied.parent / "width" / "128")
        write_others(copied, made_loss())
        assert EXPERIMENT.runs("cpu", copied).complete


class TestFindings:
    def test_every_question_of_the_design_has_a_claim(self, made: Path, found: FactorsRuns):
        claims = EXPERIMENT.claims_in("cpu", made)
        assert {claim.verdict for claim in claims} == {"ours"}
        count = len(found.search.trials)
        compared = [24, 47, 33, 36, 63, -count, 9, 9, 8, 8]
        assert [claim.runs for claim in claims] == [
            *(count + runs for runs in compared), count, count,
        ]  # fmt: skip
        assert [claim.kind for claim in claims] == ["best rates"] * 11 + ["arithmetic"]
        assert claims[0].says.endswith("no worse than with plain AdamW tuned there?")
        assert "4 seeds, " in claims[0].seen
        assert claims[5].seen == "not run: sp-fan-in at width 256 with the rate 2^-6.5"
        assert claims[-1].seen == EXPERIMENT.cost_words("cpu", found)

    def test_what_matters_at_the_base_is_listed_with_intervals(self, made: Path):
        *_, matters, _ = EXPERIMENT.claims_in("cpu", made)
        by_name = {text.partition(" ")[0]: text for text in matters.seen.split("); ")}
        # A quarter of 0.05 nats half an octave away, up to noise.
        assert by_name["lr"].startswith("lr 2^-6 matters, moved (2^-6.5: +0.012")
        assert by_name["lr.embedding"].startswith("lr.embedding 2^2 matters, moved (")
        for name in ("lr.readout", "lr.gains", "std.embedding", "std.readout"):
            assert by_name[name].startswith(f"{name} 2^0 no significant difference (2^-2: ")
            assert "[" in by_name[name]

    def test_tables_fit_80_columns_and_files_are_written(
        self, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("COLUMNS", "80")
        shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
        shown = EXPERIMENT.findings("cpu", tmp_path / "factors")
        assert max(len(line) for text in shown.lines for line in text.split("\n")) <= 80
        text = "\n".join(shown.lines)
        assert "Found at width 64, and carried: the rate 2^-6, lr.embedding × 4." in text
        assert "no significant difference" in text
        assert {path.name for path in shown.paths} == {
            "differences.png", "differences.svg", "sensitivity.png", "sensitivity.svg",
            "answers.csv",
        }  # fmt: skip
        assert all(path.exists() for path in shown.paths)
        rows = (tmp_path / "factors" / "answers.csv").read_text(encoding="utf-8").splitlines()
        assert rows[1].startswith("carried to 512,plain AdamW tuned there,measured,4,")

    def test_the_figure_has_a_panel_per_comparison_and_a_row_per_width(self, found: FactorsRuns):
        shown = panels(found)
        assert [panel.title for panel in shown] == [
            "minus plain AdamW tuned there",
            "minus one rate for all weights",
            "minus plain AdamW at width 64's rate",
        ]
        assert {tuple(row.label for row in one.rows) for one in shown} == {
            ("width 256", "width 512")
        }
        by_seed = [[row.by_seed for row in panel.rows] for panel in shown]
        assert [[len(one) for one in rows] for rows in by_seed] == [[3, 4], [3, 4], [0, 2]]
        assert by_seed[0][1] == values(found.compared(512)[0])
        assert (shown[2].rows[0].mean, shown[2].rows[0].note[:8]) == (None, "not run:")

    def test_the_command_lists_it(self, capsys: pytest.CaptureFixture[str]):
        assert main(["paper"]) == 0
        assert "factors" in capsys.readouterr().out


def test_tables_with_different_seeds_become_one_at_their_common_rates():
    first = RateTable(
        "sp", "width 512", (1, 2), (-3.0, -2.0, -1.0), np.arange(6.0).reshape(2, 3), 6, 0
    )
    second = RateTable(
        "sp", "width 512", (3,), (-2.0, -1.0, 0.0), np.array([[7.0, math.nan, 9]]), 3, 1
    )
    both = with_more_seeds(first, second)
    assert (both.seeds, both.log2_rates) == ((1, 2, 3), (-2.0, -1.0))
    assert both.losses.tolist()[:2] == [[1, 2], [4, 5]]
    assert (both.ended, both.diverged, both.complete, both.best) == (6, 1, True, -2.0)
    waiting = RateTable("sp", "width 512", (3,), (-2.0, -1.0), np.array([[7.0, math.nan]]), 1, 0)
    assert (with_more_seeds(first, waiting).ended, waiting.complete) == (5, False)
