"""The width study: nothing but width, rule and the range of rates differs from file to file, and
the analysis finds what made runs hold.
"""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mupscale.analysis.estimates import Estimate
from mupscale.analysis.fits import FITS
from mupscale.errors import OptionError
from mupscale.paper.costs import training_operations
from mupscale.paper.rate_study import make_text
from mupscale.paper.width import EXPERIMENT, WidthRuns, panels
from mupscale.reports.widths import draw_widths
from mupscale.studies import Snapshot, Study, StudyConfig
from mupscale.studies.searching import grid
from mupscale.theory import RULES
from mupscale.training import RunConfig
from mupscale.training.preparation import plan_for
from tests.paper.made_widths import BEST, Loss, write_part, write_widths

RESULTS = Path(__file__).parents[2] / "results" / "width"
STUDIES = {
    path.parent.name: StudyConfig.load(path) for path in sorted(RESULTS.glob("*/study.toml"))
}
WIDTHS = {"64": 64, "128": 128, "256": 256, "512": 512, "512-at-64": 512}


def runs(name: str) -> dict[str, RunConfig]:
    """A run of each rule, all with the same rate and seed."""
    config = STUDIES[name]
    return {cell.rule_name: config.run_config(cell, {"lr": 2**-7}, 42) for cell in config.cells()}


def test_every_width_has_the_same_training_and_the_same_base():
    assert STUDIES.keys() == WIDTHS.keys()
    (reference,) = runs("64").values()
    for name, width in WIDTHS.items():
        for run in runs(name).values():
            assert (run.data, run.optimizer, run.length, run.record) == (
                reference.data, reference.optimizer, reference.length, reference.record,
            )  # fmt: skip
            assert run.base_model() == reference.model
            model = run.model
            assert (model.width, model.n_heads * 16, model.repetitions, model.head_size) == (
                width,
                width,
                4,
                16,
            )
            assert model.d_ff == 172 * width // 64


@pytest.mark.parametrize("name", ["128", "256", "512"])
def test_the_rules_are_gqa_mup_and_sp_with_either_std(name: str):
    rules = {rule: run.rule for rule, run in runs(name).items()}
    assert rules["gqa-mup"] == RULES["gqa-mup"]
    assert rules["sp"] == RULES["sp"]
    fan_in = RULES["sp"].with_(width="init")
    assert rules["sp-fan-in"].choices | {"name": ""} == fan_in.choices | {"name": ""}


def rates(name: str, rule: str) -> list[float]:
    config = STUDIES[name]
    (cell,) = (cell for cell in config.cells() if cell.rule_name == rule)
    points = grid(cell.space, config.seeds, config.search.step)
    assert {point.seed for point in points} == set(config.seeds)
    return sorted({round(math.log2(point.params["lr"]), 6) for point in points})


@pytest.mark.parametrize("rule", ["sp", "sp-fan-in", "gqa-mup"])
def test_the_range_of_sp_moves_down_by_an_octave_per_doubling_and_that_of_gqa_mup_stays(rule: str):
    at_base = rates("64", "gqa-mup")
    assert at_base == [-9 + k / 2 for k in range(9)]
    for name in ("128", "256", "512"):
        octaves = 0 if rule == "gqa-mup" else math.log2(WIDTHS[name] / 64)
        count = 7 if name == "512" else 9
        if (name, rule) == ("512", "sp"):  # grew after its runs: the lowest loss was at its end
            count = 9
        assert rates(name, rule) == [rate - octaves for rate in at_base[:count]]


def test_the_sp_rules_are_trained_at_512_with_the_rate_that_was_best_at_64():
    losses: dict[float, list[float]] = {}
    for trial in Study.open(RESULTS / "64").trials:
        assert trial.loss is not None
        losses.setdefault(trial.log2_lr, []).append(trial.loss)
    best = min(losses, key=lambda rate: sum(losses[rate]))
    assert {len(of_rate) for of_rate in losses.values()} == {3}
    assert [rates("512-at-64", rule) for rule in ("sp", "sp-fan-in")] == [[best], [best]]


class TestParts:
    """The experiment runs the studies that were committed before the first run."""

    def test_the_committed_studies_are_its_parts(self):
        parts = EXPERIMENT.parts_at("cpu", BEST)
        assert list(parts) == ["64", "128", "256", "512", "512-at-64"]
        for name, config in parts.items():
            saved = STUDIES[name]
            if name == "512":  # the one range that grew
                own = {rule: space for rule, space in saved.rule_space.items() if rule != "sp"}
                assert saved.rule_space["sp"] == {"lr": (2.0**-12, 2.0**-8)}
                saved = replace(saved, rule_space=own)
            assert config.identity() == saved.identity(), name

    def test_the_same_parts_exist_at_the_papers_scale(self):
        parts = EXPERIMENT.parts_at("paper", -9.0)
        assert list(parts) == ["256", "512", "1024", "2048", "2048-at-256"]
        for name, config in parts.items():
            (run, *_) = (config.run_config(cell, {"lr": 1.0}, 42) for cell in config.cells())
            assert run.data.corpus == "hf:openwebtext"
            assert (run.model.width, run.model.head_size, run.model.repetitions) == (
                int(name.partition("-")[0]), 64, 4,
            )  # fmt: skip
            assert (run.base_model().width, run.base_model().repetitions) == (256, 4)

    def test_every_rule_gives_the_base_the_same_values(self):
        config = replace(EXPERIMENT.part("cpu", 128), vary={"width": (64,)})
        plans = [plan_for(config.run_config(c, {"lr": 1.0}, 42)) for c in config.cells()]
        values = [[p.values for p in plan.parameters.values()] for plan in plans]
        assert values[0] == values[1] == values[2]

    def test_a_missing_text_is_an_error_with_the_commands_that_make_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        for attempt in (
            lambda: EXPERIMENT.run("cpu", tmp_path),
            lambda: EXPERIMENT.cost("cpu", 1),
            lambda: list(EXPERIMENT.dry_run("cpu")),
        ):
            with pytest.raises(OptionError, match=r"runs/gcide\.txt does not exist") as error:
                attempt()
            for command in make_text("runs/gcide.txt"):
                assert command in str(error.value)
                assert command in (RESULTS / "README.md").read_text(encoding="utf-8")

    def test_finished_records_need_no_text(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """A clone has the records and not the text: its answers are printed all the same."""
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / "width"
        shutil.copytree(RESULTS, folder)
        records = [path.read_bytes() for path in sorted(folder.glob("*/records.jsonl"))]
        EXPERIMENT.run("cpu", folder)
        assert [p.read_bytes() for p in sorted(folder.glob("*/records.jsonl"))] == records
        EXPERIMENT.check_text("cpu", folder)
        (folder / "256" / "records.jsonl").unlink()
        with pytest.raises(OptionError, match=r"runs/gcide\.txt does not exist"):
            EXPERIMENT.run("cpu", folder)

    def test_it_runs_the_parts_in_order_and_the_last_at_the_base_best_rate(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """With a study in place of training: the losses of a parabola."""
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "gcide.txt").write_text("A text.")
        monkeypatch.chdir(tmp_path)
        begun: list[str] = []

        def made(self: Study, **_: object) -> Snapshot:
            begun.append(self.folder.name)
            write_part(self.config, self.folder, parabola(best=-7.0))
            return self.snapshot()

        monkeypatch.setattr(Study, "run", made)
        EXPERIMENT.run("cpu", tmp_path / "width")
        assert begun == ["64", "128", "256", "512", "512-at-64"]
        last = StudyConfig.load(tmp_path / "width" / "512-at-64" / "study.toml")
        assert [len(grid(cell.space, last.seeds, 0.5)) for cell in last.cells()] == [2, 2]
        assert math.log2(last.space["lr"][0]) == pytest.approx(-7.0)
        assert EXPERIMENT.workers("cpu") == 1
        assert EXPERIMENT.workers("paper") is None


def parabola(best: float = BEST, drift: float = 0.0, bend: float = 0.05) -> Loss:
    """The optima of the SP rules move by `drift` octaves per doubling."""

    def loss(rule: str, width: int, seed: int, rate: float) -> float:
        doublings = math.log2(width / 64)
        own = best + (0.0 if rule == "gqa-mup" else drift * doublings)
        level = 2 - 0.1 * doublings + (0.02 if rule == "sp" else 0.0)
        return level + 0.01 * (seed - 42) + bend * (rate - own - 0.01 * (seed - 42)) ** 2

    return loss


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moving") / "width"
    write_widths(folder, parabola(drift=-1.2))
    return folder


@pytest.fixture(scope="module")
def found(moving: Path) -> WidthRuns:
    return EXPERIMENT.runs("cpu", moving)


class TestAnswers:
    """Of made runs, whose answers are known."""

    def test_the_regret_is_the_loss_at_the_bases_rate_above_the_lowest(self, found: WidthRuns):
        assert (found.best_rate, found.ended, found.complete) == (BEST, 235, True)
        for rule, octaves in (("sp", 3.6), ("sp-fan-in", 3.6), ("gqa-mup", 0.0)):
            answer = found.regret(rule)
            assert answer.seeds == (42, 43)
            for fit in FITS:
                values = answer.by_fit[fit]
                assert values is not None
                expected = [0.05 * (octaves - 0.01 * k) ** 2 for k in (0, 1)]
                assert values == pytest.approx(expected, abs=5e-3), (rule, fit)
        assert found.regret("sp-fan-in").agreement.verdict == "above 0"
        assert found.regret("gqa-mup").agreement.verdict == "indistinguishable from 0"

    def test_the_drift_is_that_of_the_optima_and_still_is_within_0_17(self, found: WidthRuns):
        for widths, seeds in (((64, 128, 256), 3), ((64, 128, 256, 512), 2)):
            moves = found.drift("sp-fan-in", widths)
            assert len(moves.seeds) == seeds
            for fit in FITS:
                values = moves.by_fit[fit]
                assert values == pytest.approx([-1.2] * seeds, abs=0.02)
            assert moves.agreement.verdict == "moves"
            assert found.drift("gqa-mup", widths).agreement.verdict == "still"

    @pytest.mark.parametrize(("end", "verdict"), [(0.169, "still"), (0.171, "moves")])
    def test_still_needs_the_whole_interval_within_the_bound(
        self, found: WidthRuns, end: float, verdict: str
    ):
        judge = found.drift("sp", (64, 128, 256)).question.judge
        assert judge(Estimate(0.1, 0.05, end)) == verdict
        assert judge(Estimate(-0.1, -end, -0.05)) == verdict
        assert judge(Estimate(0.0, -1, 1)) == "no significant drift"

    def test_the_lowest_losses_are_compared_by_seed(self, found: WidthRuns):
        for rule, difference in (("sp", 0.02), ("sp-fan-in", 0.0)):
            for fit in FITS:
                values = found.above_reference(rule).by_fit[fit]
                assert values == pytest.approx([difference] * 2, abs=2e-3)

    def test_runs_at_the_bases_rate_are_in_no_fit(
        self, found: WidthRuns, moving: Path, tmp_path: Path
    ):
        """Otherwise the Gaussian process, which is fitted through all rates, would see them."""
        folder = tmp_path / "width"
        shutil.copytree(moving, folder)
        given = EXPERIMENT.part_at("cpu", BEST)
        write_part(given, folder / "512-at-64", lambda *_: 9.0)
        now = EXPERIMENT.runs("cpu", folder)
        assert now.at("sp", 512).lowest == found.at("sp", 512).lowest
        regret = now.regret("sp").by_fit["cubic"]
        assert regret is not None
        assert min(regret) > 7

    def test_a_diverged_run_at_the_bases_rate_is_reported_as_such(
        self, moving: Path, tmp_path: Path
    ):
        folder = tmp_path / "width"
        shutil.copytree(moving, folder)
        given = EXPERIMENT.part_at("cpu", BEST)
        write_part(given, folder / "512-at-64", lambda rule, *_: None if rule == "sp" else 9.0)
        found = EXPERIMENT.runs("cpu", folder)
        assert found.regret("sp").agreement.verdict == "diverged"
        assert found.regret("sp-fan-in").agreement.verdict == "above 0"
        assert (found.diverged, found.complete) == (2, True)
        (panel,) = panels(found, ["sp"])
        assert (panel.at_rate, panel.gives_up) == (None, True)
        assert "diverged" in panel.regret
        draw_widths([panel], title="")

    @pytest.mark.parametrize(("spread", "harmless"), [(1e-4, False), (0.05, None)])
    def test_only_a_bounded_regret_is_drawn_as_harmless(
        self, tmp_path: Path, spread: float, harmless: bool | None
    ):
        """An interval that is wide and contains 0 shows nothing."""
        exact = parabola()

        def loss(rule: str, width: int, seed: int, rate: float) -> float:
            off = spread * (seed - 42) if (width, rate) == (512, BEST) else 0.0
            return exact(rule, width, seed, rate) + off

        write_widths(tmp_path, loss)
        (panel,) = panels(EXPERIMENT.runs("cpu", tmp_path), ["gqa-mup"])
        assert panel.gives_up is harmless

    def test_an_open_range_is_not_compared_and_the_page_says_how_to_grow_it(self, tmp_path: Path):
        write_widths(tmp_path, parabola(drift=-0.4))
        found = EXPERIMENT.runs("cpu", tmp_path)
        assert (found.at("sp", 512).open_at, found.complete) == ("upper", False)
        assert "range must grow for sp at width 512" in found.regret("sp").agreement.verdict
        assert found.regret("gqa-mup").agreement.widest is not None
        assert EXPERIMENT.claims_in("cpu", tmp_path) == ()
        text = " ".join(" ".join(EXPERIMENT.findings("cpu", tmp_path).lines).split())
        assert 'lr = ["2^-12", "2^-8"] below [space.sp]' in text

    def test_a_range_that_has_grown_is_read_as_it_is(self, tmp_path: Path):
        write_widths(tmp_path, parabola(drift=-0.8))
        assert EXPERIMENT.runs("cpu", tmp_path).at("sp", 512).open_at == "upper"
        config = EXPERIMENT.part("cpu", 512)
        grown = {"sp": {"lr": (2.0**-12, 2.0**-8)}, "sp-fan-in": {"lr": (2.0**-12, 2.0**-8)}}
        config = replace(config, rule_space={**config.rule_space, **grown})
        shutil.rmtree(tmp_path / "512")
        write_part(config, tmp_path / "512", parabola(drift=-0.8))
        found = EXPERIMENT.runs("cpu", tmp_path)
        assert (found.complete, found.expected) == (True, 235 + 8)
        values = found.drift("sp", (64, 128, 256, 512)).by_fit["quadratic"]
        assert values == pytest.approx([-0.8, -0.8], abs=1e-3)


class TestPartialRecords:
    def test_what_has_not_run_yet_is_counted_and_nothing_is_claimed(self, tmp_path: Path):
        loss = parabola()
        write_part(EXPERIMENT.part("cpu", 64), tmp_path / "64", loss)
        write_part(EXPERIMENT.part("cpu", 128), tmp_path / "128", loss, runs=5)
        found = EXPERIMENT.runs("cpu", tmp_path)
        assert (found.ended, found.expected, found.complete) == (42, 235, False)
        verdicts = {
            answer.agreement.verdict for answer in EXPERIMENT.answers("cpu", found, tmp_path)
        }
        assert all(verdict.startswith("not run yet (") for verdict in verdicts)
        assert found.regret("sp").missing == "not run yet (27 of 41 runs)"
        assert found.drift("sp", (64, 128)).missing == "not run yet (32 of 54 runs)"
        assert EXPERIMENT.claims_in("cpu", tmp_path) == ()
        shown = EXPERIMENT.findings("cpu", tmp_path)
        assert shown.lines[0] == "42 of 235 runs have ended, 0 diverged."

    def test_the_last_part_alone_may_be_missing(self, tmp_path: Path):
        write_widths(tmp_path, parabola(drift=-1.2), last=False)
        found = EXPERIMENT.runs("cpu", tmp_path)
        assert found.regret("gqa-mup").agreement.widest is not None
        assert "0 of 2 runs at the base" in found.regret("sp").missing

    def test_an_empty_folder_is_an_error(self, tmp_path: Path):
        with pytest.raises(OptionError, match="nothing was run there yet"):
            EXPERIMENT.findings("cpu", tmp_path)


class TestFindings:
    def test_every_question_of_the_design_has_a_claim_with_its_interval(self, moving: Path):
        claims = EXPERIMENT.claims_in("cpu", moving)
        assert {claim.verdict for claim in claims} == {"ours"}
        assert [claim.runs for claim in claims] == [
            *(27 + 14 + 2, 27 + 14 + 2, 27 + 14),  # regrets
            *(81, 95) * 3,  # drifts over both spans
            *(28, 28),  # lowest losses
            27,
        ]
        for claim in claims[:-1]:
            assert "seeds" in claim.seen
            assert all(fit in claim.seen for fit in FITS)
        assert claims[-1].seen.startswith("55.7% of its operations, for all 27 runs")

    def test_the_share_of_tuning_is_that_of_the_operations(self):
        count, share = EXPERIMENT.tuning_share("cpu")
        base, target = (next(iter(runs(name).values())) for name in ("64", "512"))
        operations = [training_operations(one.model, 128, 1) for one in (base, target)]
        assert (count, share) == (27, pytest.approx(27 * operations[0] / operations[1]))

    def test_tables_fit_80_columns_and_files_are_written(
        self, moving: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("COLUMNS", "80")
        folder = tmp_path / "width"
        shutil.copytree(moving, folder)
        shown = EXPERIMENT.findings("cpu", folder)
        assert max(len(line) for text in shown.lines for line in text.split("\n")) <= 80
        assert all(path.exists() for path in shown.paths)
        names = {path.name for path in shown.paths}
        assert names >= {
            "report.html", "widths.png", "lowest-points.csv", "answers.csv", "loss-by-lr.png",
        }  # fmt: skip
        rows = (folder / "answers.csv").read_text(encoding="utf-8").splitlines()
        assert len(rows) == 1 + 11 * len(FITS)
        points = (folder / "lowest-points.csv").read_text(encoding="utf-8").splitlines()
        assert len(points) == 1 + 3 * (9 * 3 + 3 * 2)
