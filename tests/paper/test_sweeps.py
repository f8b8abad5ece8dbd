"""What the paper's sweeps say of its claims, on runs whose answer is known."""

import math
import re
import shutil
from pathlib import Path

import pytest

from mupscale.analysis import Estimate, Measurement, Member, analyse
from mupscale.analysis.by_fit import SeedOptima
from mupscale.analysis.verdicts import judge_drift
from mupscale.errors import OptionError, UnknownNameError
from mupscale.paper import EXPERIMENTS, experiment_named
from mupscale.paper.horizon import seen_over_r, to_target
from mupscale.paper.sweeps import Sweep, SweepFinding, drift_words
from mupscale.paper.weight_decay import drift_over_sizes, further, variance_lines, with_weak_decay
from mupscale.studies import Study
from tests.paper.made_runs import SEEDS, curve_runs, seen_over

R = (1, 2, 3, 4, 6, 12)
UNDECIDED = "cannot be decided"


def verdicts(name: str, seen: SweepFinding) -> list[str]:
    chosen = experiment_named(name)
    assert isinstance(chosen, Sweep)
    return [claim.verdict for claim in chosen.claims(seen)]


class TestGqaAblation:
    def test_what_the_paper_saw_agrees(self) -> None:
        def falls(x: float) -> float:
            return -6 - 0.4 * x

        seen = seen_over("r", R, {"mup": falls, "complete-p": falls, "gqa-mup": lambda x: -6})
        assert verdicts("gqa-ablation", seen)[:2] == ["agrees", "agrees"]

    def test_the_opposite_disagrees(self) -> None:
        seen = seen_over("r", R, {"mup": lambda x: -6, "gqa-mup": lambda x: -6 + 0.4 * x})
        assert verdicts("gqa-ablation", seen)[:2] == ["disagrees", "disagrees"]

    def test_two_that_hold_still_are_not_told_apart(self) -> None:
        seen = seen_over("r", R, {"mup": lambda x: -6, "gqa-mup": lambda x: -6.2})
        assert verdicts("gqa-ablation", seen)[:2] == ["disagrees", UNDECIDED]

    def test_noise_decides_nothing(self) -> None:
        seen = seen_over(
            "r", (1, 12), {"mup": lambda x: -6 + 0.1 * x, "gqa-mup": lambda x: -6}, noise=0.15
        )
        assert set(verdicts("gqa-ablation", seen)[:2]) == {UNDECIDED}

    def test_runs_are_counted_by_rule(self) -> None:
        seen = seen_over("r", R, {"mup": lambda x: -6, "gqa-mup": lambda x: -6})
        each = len(R) * len(SEEDS) * 9
        assert (seen.count("mup"), seen.count()) == (each, 2 * each)
        claims = list(experiment_named("gqa-ablation").claims(seen))  # pyright: ignore[reportAttributeAccessIssue]
        assert [claim.runs for claim in claims[:2]] == [each, 2 * each]

    def test_the_study_on_disk_gets_a_page_figures_and_lines(self, tmp_path: Path) -> None:
        for name in ("study.toml", "records.jsonl"):
            shutil.copy(Path("results/gqa-dense") / name, tmp_path / name)
        found = experiment_named("gqa-ablation").findings("cpu", tmp_path)
        names = {path.name for path in found.paths}
        assert {"report.html", "loss-by-lr.png", "loss-by-lr.svg", "transfer.csv"} <= names
        assert all(path.stat().st_size > 0 for path in found.paths)
        text = "\n".join(found.lines)
        assert "complete-p  mean -5.80" in text
        assert "gives up 0.0000" in text
        assert found.claims == experiment_named("gqa-ablation").claims_in("cpu", tmp_path)

    def test_an_empty_folder_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match=r"holds no records\.jsonl"):
            experiment_named("gqa-ablation").findings("cpu", tmp_path)


class TestFits:
    """A claim is decided only if every fit decides it."""

    def seen(self) -> SweepFinding:
        return seen_over("r", R, {"mup": lambda x: -6, "gqa-mup": lambda x: -6 + 0.4 * x})

    def test_a_fit_that_locates_nothing_leaves_only_a_hint(self) -> None:
        seen = self.seen()
        assert verdicts("gqa-ablation", seen)[:2] == ["disagrees", "disagrees"]
        optima = {fit: dict(cells) for fit, cells in seen.optima_by_fit.by_fit.items()}
        optima["cubic"].pop(("mup", seen.cells("mup")[0].member))
        seen.__dict__["optima_by_fit"] = SeedOptima(optima)
        assert verdicts("gqa-ablation", seen)[:2] == ["points against", "points against"]
        claims = list(experiment_named("gqa-ablation").claims(seen))  # pyright: ignore[reportAttributeAccessIssue]
        assert "cubic not located" in claims[0].seen
        assert "cubic unknown" in claims[0].seen

    def test_fits_that_contradict_each_other_decide_nothing(self) -> None:
        seen = self.seen()
        optima = {fit: dict(cells) for fit, cells in seen.optima_by_fit.by_fit.items()}
        for key in list(optima["cubic"]):
            place = math.log2(key[1].position or 1)
            # Under the cubic, mup moves and gqa-mup does not.
            best = -6 + 0.8 * place if key[0] == "mup" else -6
            optima["cubic"][key] = {seed: best + 0.001 * seed for seed in SEEDS}
        seen.__dict__["optima_by_fit"] = SeedOptima(optima)
        assert verdicts("gqa-ablation", seen)[:2] == [UNDECIDED, UNDECIDED]

    def test_each_fit_gives_the_drift_that_was_put_in(self) -> None:
        for one in self.seen().drifts_by_fit("gqa-mup").values():
            assert one is not None
            assert one.value == pytest.approx(0.4, abs=0.03)
        for one in self.seen().further_by_fit("gqa-mup", "mup").values():
            assert one is not None
            assert one.value == pytest.approx(0.4, abs=0.05)

    def test_a_part_of_the_family_has_no_comparison(self) -> None:
        """At r = 12 the best rate lies beyond all that were tried, as for SGD in the records."""
        best = {
            "complete-p": lambda x: -6.5 + 0.4 * x if x <= 2 else -1,
            "gqa-mup": lambda x: -6.5,
        }
        seen = seen_over("r", (1, 2, 4, 12), best)
        (claim,) = experiment_named("sgd").claims(seen)  # pyright: ignore[reportAttributeAccessIssue]
        assert "complete-p: no drift known (3 of 4 models have an optimum)" in claim.seen
        assert "gqa-mup: drift" in claim.seen
        assert "further" not in claim.seen
        assert "minus" not in claim.seen


class TestDepth:
    def test_what_the_rate_of_the_shallowest_costs_is_said(self) -> None:
        best = dict.fromkeys(("beta-1", "beta-1-over-sqrt-L", "complete-p"), lambda x: -6 - 0.5 * x)
        seen = seen_over("depth", (2, 4), best)
        claim = next(iter(experiment_named("depth").claims(seen)))  # pyright: ignore[reportAttributeAccessIssue]
        assert re.search(
            r"best rate of depth = 2: 0\.02\d \[.*\] \(depth = 4\) \(3 seeds\)", claim.seen
        )

    def test_only_one_over_l_holding_still_agrees(self) -> None:
        best = {
            "beta-1": lambda x: -5 - 0.6 * x,
            "beta-1-over-sqrt-L": lambda x: -6 - 0.4 * x,
            "complete-p": lambda x: -6,
        }
        assert verdicts("depth", seen_over("depth", (2, 4, 8, 16), best)) == ["agrees"] * 3

    def test_all_holding_still_disagrees_with_the_first_two(self) -> None:
        best = dict.fromkeys(("beta-1", "beta-1-over-sqrt-L", "complete-p"), lambda x: -6.0)
        assert verdicts("depth", seen_over("depth", (2, 4, 8, 16), best)) == [
            "disagrees",
            "disagrees",
            "agrees",
        ]


class TestHorizon:
    RATES = tuple(-8 + k / 2 for k in range(9))

    def seen(self, mup: dict[int, float], gqa: dict[int, float], target: float) -> SweepFinding:
        optima = {
            (rule, Member(label=f"proxy-r{r}", position=1000.0 - r)): value
            for rule, proxies in (("mup", mup), ("gqa-mup", gqa))
            for r, value in proxies.items()
        }
        optima |= {
            (rule, Member(label="target-r4", position=5000.0)): target
            for rule in ("mup", "gqa-mup")
        }
        runs = list(curve_runs(optima, self.RATES))
        return SweepFinding(analyse(runs, axis="parameters"), runs)

    def test_each_proxy_is_measured_against_the_target(self) -> None:
        seen = self.seen({1: -5.5, 2: -6, 4: -6, 8: -6.5}, dict.fromkeys((1, 2, 4, 8), -6.0), -6)
        found = {r: one.octaves.value for r, one in to_target(seen, "mup").items()}
        assert found == pytest.approx({1: 0.5, 2: 0, 4: 0, 8: -0.5}, abs=0.06)
        assert verdicts("horizon", seen) == ["agrees", "agrees"]

    def test_the_drift_is_over_r_of_the_proxies_alone(self) -> None:
        seen = self.seen({1: -5, 2: -5.5, 4: -6, 8: -6.5}, dict.fromkeys((1, 2, 4, 8), -6.0), -3)
        over_r = seen_over_r(seen)
        transfer = over_r.transfer("mup")
        assert transfer is not None
        assert transfer.drift is not None
        assert transfer.drift.value == pytest.approx(-0.5, abs=0.05)
        assert over_r.count() == 2 * 4 * len(SEEDS) * len(self.RATES)


class TestWeightDecay:
    def seen(self, moves: float) -> SweepFinding:
        """Two parameters on a grid; under mup the best decay moves with size, under complete-p
        nothing does.
        """
        runs = [
            Measurement(
                rule=rule,
                member=Member(label=name, position=size),
                seed=42,
                params={"lr": 2.0**x, "weight_decay": 2.0**y},
                loss=2
                + 0.1 * (x + 6) ** 2
                + 0.05 * (y + 1 - (moves * k if rule == "mup" else 0)) ** 2,
                steps=100 * 2**k,
            )
            for rule in ("sp", "mup", "complete-p")
            for k, (name, size) in enumerate((("small", 1e4), ("medium", 2e4), ("large", 4e4)))
            for x in (-8, -7.2, -6.4, -5.6, -4.8, -4)
            for y in (-5, -3.8, -2.6, -1.4, -0.2, 1, 2.2)
        ]
        return SweepFinding(analyse(runs, axis="parameters"), runs)

    def test_drifts_are_those_put_in_and_tau_follows(self) -> None:
        seen = self.seen(1.0)
        decay, tau = (
            drift_over_sizes(seen, "mup", name).estimate for name in ("weight_decay", "tau_epoch")
        )
        assert decay is not None
        assert tau is not None
        assert decay.value == pytest.approx(1.0, abs=0.05)
        # τ = 1/(ηλ·steps), and steps double with size.
        assert tau.value == pytest.approx(-2.0, abs=0.1)
        still = drift_over_sizes(seen, "complete-p", "weight_decay").estimate
        assert still is not None
        assert still.value == pytest.approx(0.0, abs=0.05)

    def test_a_decay_that_moves_unless_scaled_points_for_it(self) -> None:
        """Surfaces have one fit, so that no more is said."""
        assert verdicts("weight-decay", self.seen(1.0))[1] == "points for"
        assert verdicts("weight-decay", self.seen(0.0))[1] == UNDECIDED

    def test_the_weaker_half_of_decays_is_looked_at_by_rate_alone(self) -> None:
        """Decay does nothing up to 2^-2, and ruins everything beyond."""
        runs = [
            Measurement(
                rule="mup",
                member=Member(label=name, position=size),
                seed=42,
                params={"lr": 2.0**x, "weight_decay": 2.0**y},
                loss=2
                + 0.1 * (x + 6 - k / 2) ** 2
                + 0.001 * math.sin(50 * x + y)
                + (5 if y > -2 else 0),
            )
            for k, (name, size) in enumerate((("small", 1e4), ("medium", 2e4), ("large", 4e4)))
            for x in (-8, -7.2, -6.4, -5.6, -4.8, -4)
            for y in (-5, -4, -3, 0, 1, 2)
        ]
        weak = with_weak_decay(SweepFinding(analyse(runs, axis="parameters"), runs))
        assert weak.seeds == 1
        transfer = weak.transfer("mup")
        assert weak.count() == len(runs) // 2
        assert transfer is not None
        assert transfer.drift is not None
        assert transfer.drift.value == pytest.approx(0.5, abs=0.03)

    def test_runs_that_grow_with_the_size_are_said_to(self) -> None:
        claim = list(experiment_named("weight-decay").claims(self.seen(0.0)))[-1]  # pyright: ignore[reportAttributeAccessIssue]
        assert "1 seed; batch, warmup and steps grow" in claim.seen
        assert "steps: small 100, medium 200, large 400" in claim.seen

    def test_the_table_stands_beside_the_papers(self) -> None:
        text = "\n".join(variance_lines(self.seen(1.0)))
        assert "0.00554" in text
        assert "0.383" in text

    def test_how_much_further_counts_neither_direction(self) -> None:
        found = further(Estimate(-1, -1.2, -0.8, 20), Estimate(0.5, 0.3, 0.7, 20), 0.95)
        assert found is not None
        assert found.value == 0.5
        assert (found.high - found.low) / 2 == pytest.approx(0.2 * 2**0.5)
        assert further(None, Estimate(0, -1, 1), 0.95) is None


def test_every_experiment_of_the_list_is_there() -> None:
    for name in EXPERIMENTS:
        assert experiment_named(name).name == name
    with pytest.raises(UnknownNameError, match="gqa-ablation"):
        experiment_named("gqa-ablatoin")


def test_a_rule_without_an_optimum_is_said() -> None:
    nothing = SweepFinding(analyse([]), [])
    assert drift_words(nothing, "sp") == "sp: no optimum found"
    assert nothing.analysis.drift_verdict("sp").movement == "unknown"


@pytest.mark.parametrize(("step", "found"), [(0.0, "still"), (0.4, "moves")])
def test_nothing_is_said_of_movement_where_part_of_the_family_has_no_optimum(
    step: float, found: str
) -> None:
    """At r = 12 the best rate lies beyond all that were tried."""
    whole = seen_over("r", (1, 2, 4, 12), {"mup": lambda x: -6.5 + step * x})
    assert whole.analysis.drift_verdict("mup").movement == found
    seen = seen_over("r", (1, 2, 4, 12), {"mup": lambda x: -6.5 + step * x if x <= 2 else -1})
    transfer = seen.transfer("mup")
    assert transfer is not None
    assert judge_drift(transfer.drift, math.log2(12)).movement == found
    assert seen.analysis.drift_verdict("mup").movement == "unknown"
    assert "(3 of 4 models have an optimum)" in drift_words(seen, "mup")


def test_cpu_studies_are_as_committed() -> None:
    """A record that no longer belongs to the study of its name could not be made again."""
    for name in EXPERIMENTS:
        chosen = experiment_named(name)
        folder = Path("results") / name
        if isinstance(chosen, Sweep) and folder.is_dir():
            assert Study.open(folder).config.identity() == chosen.config("cpu").identity(), name
