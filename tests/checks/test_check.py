"""The check as a whole: the predictions on real training, verdicts, resumption, and what it says of
wrong input.
"""

import dataclasses
import json
import math
import re
from collections import Counter
from typing import ClassVar

import pytest

import mupscale
from mupscale.checks import (
    CheckResult,
    Criteria,
    Running,
    Setup,
    coordinate_check,
    curves,
    judge,
    statistics,
)
from mupscale.checks.judging import Coherence
from mupscale.engines import Local
from mupscale.errors import DimensionError, MupscaleError, OptionError, UnknownNameError
from mupscale.models import GPT, GPTConfig
from mupscale.reading import reader
from mupscale.reading.running import follow
from mupscale.targets import Family
from mupscale.testing import assert_transfers

HERE = Local(workers=0)
SMALL = Setup(batch=1, sequence=128)
R = (1, 3, 12)


def over_r(rule: str) -> CheckResult:
    return coordinate_check(
        Family("gpt:check,depth=1"),
        {"n_kv_heads": [12, 4, 1]},
        rule=rule,
        seeds=3,
        steps=2,
        setup=SMALL,
        engine=HERE,
    )


@pytest.fixture(scope="module")
def vanilla():
    return over_r("mup")


@pytest.fixture(scope="module")
def shared():
    return over_r("gqa-mup")


def slope(result, statistic, role):
    return result.finding(statistic, role).flatness.slope.value


def factor(r, a=192 / 768):
    """The derived key/value factor for heads × head_dim = width/a."""
    return (1 + math.sqrt(r * a)) / (1 + math.sqrt(a))


class TestPredictions:
    """Numbers 7, 8 and 9: the sizes that updates of keys and values have in real training."""

    @pytest.mark.parametrize("role", ["key", "value"])
    def test_vanilla_update_falls_with_r_as_theory_says(self, vanilla, role):
        one = vanilla.finding("update", role)
        logs = [math.log(r) for r in R]
        middle = sum(logs) / 3
        by_hand = sum((x - middle) * -math.log(factor(r)) for x, r in zip(logs, R, strict=True))
        by_hand /= sum((x - middle) ** 2 for x in logs)
        assert one.predicted == pytest.approx(by_hand, abs=1e-4)
        assert one.flatness.slope.value == pytest.approx(one.predicted, abs=0.1)
        assert slope(vanilla, "step", role) == pytest.approx(-0.5, abs=0.1)

    @pytest.mark.parametrize("role", ["key", "value"])
    def test_gqa_mup_update_keeps_its_ratio(self, shared, role):
        assert slope(shared, "update", role) == pytest.approx(0, abs=0.1)
        assert slope(shared, "step", "query") == pytest.approx(0, abs=0.05)

    @pytest.mark.parametrize("role", ["key", "value"])
    def test_first_layer_has_no_change_of_input_to_hide_behind(self, vanilla, shared, role):
        """ΔW·x: flat under vanilla μP, growing with the factor under GQA-μP."""
        flat = vanilla.finding("first-layer", role).means
        assert [value / flat[0] for value in flat] == pytest.approx([1, 1, 1], abs=0.1)
        grown = shared.finding("first-layer", role).means
        assert [value / grown[0] for value in grown] == pytest.approx(
            [factor(r) for r in R], rel=0.1
        )

    def test_repeated_matrix_turns_the_judgement_around(self, vanilla, shared):
        """For W⊕ vanilla is the flat one: shown, never judged."""
        assert slope(vanilla, "repeated", "value") == pytest.approx(0, abs=0.1)
        assert slope(shared, "repeated", "value") > 0.1
        assert not vanilla.finding("repeated", "value").judged

    def test_updates_are_coherent(self, shared):
        assert {
            one.regime for one in shared.coherences if one.role in ("value", "mlp_in", "query")
        } == {"coherent"}

    def test_only_keys_and_values_tell_the_rules_apart(self, vanilla, shared):
        for role in ("query", "attention_output", "mlp_in", "mlp_out", "readout", "embedding"):
            assert slope(vanilla, "update", role) == pytest.approx(
                slope(shared, "update", role), abs=0.03
            )


def unwrapped(result: CheckResult) -> str:
    return " ".join(str(result).split())


class TestVerdict:
    def test_vanilla_fails_where_theory_says(self, vanilla):
        assert vanilla.verdict == "fail"
        assert {(one.statistic, one.role) for one in vanilla.judged if one.verdict == "fail"} <= {
            ("update", "key"),
            ("update", "value"),
        }
        assert vanilla.exit_status == 1
        assert not vanilla.passed
        assert "of value falls with r, as theory predicts (−0.24" in unwrapped(vanilla)

    def test_gqa_mup_does_not_fail(self, shared):
        assert shared.verdict != "fail"
        assert shared.exit_status in (0, 3)

    def test_wide_tolerance_passes_and_a_narrow_one_cannot_decide(self, shared):
        loose = judge(shared.runs, "r", shared.about, Criteria(tolerance=0.5))
        assert loose.exit_status == 0
        narrow = judge(shared.runs, "r", shared.about, Criteria(tolerance=0.02))
        assert narrow.verdict != "pass"
        assert re.search(
            "About [0-9]+ more seeds would settle it|more than 100 seeds", unwrapped(narrow)
        )

    def test_more_confidence_is_a_wider_interval(self, shared):
        sure = (
            judge(shared.runs, "r", shared.about, Criteria(confidence=0.999))
            .finding("update", "key")
            .flatness
        )
        usual = shared.finding("update", "key").flatness
        assert sure.high - sure.low > 1.5 * (usual.high - usual.low)

    def test_judged_intervals_are_corrected_for_their_number(self, shared):
        one = shared.finding("update", "key").flatness
        assert (one.low, one.high) == one.slope.interval(0.95, comparisons=len(shared.judged))

    def test_weights_and_starts_of_every_matrix_and_table_are_judged(self, shared):
        roles = {
            "embedding",
            "position",
            "query",
            "key",
            "value",
            "attention_output",
            "mlp_in",
            "mlp_out",
            "readout",
        }
        assert {one.role for one in shared.judged} == roles
        assert {one.statistic for one in shared.judged} == {"update", "start"}

    def test_as_data(self, shared):
        data = json.loads(json.dumps(shared.to_dict(), allow_nan=False))
        assert data["verdict"] == shared.verdict
        assert data["x"] == list(R)
        assert {row["statistic"] for row in data["findings"]} >= {
            "update",
            "start",
            "dh",
            "dw_x",
            "w_dx",
            "coherence",
            "map",
        }

    def test_everything_is_shown_when_asked(self, shared):
        assert "‖W·Δx‖" not in shared.to_text()
        assert "‖W·Δx‖" in shared.to_text(everything=True)


def test_coherence_lies_between_noise_and_one():
    assert Coherence("key", 1, kappa=1.0, noise=0.1).position == 1
    assert Coherence("key", 1, kappa=0.1, noise=0.1).position == 0
    assert Coherence("key", 1, kappa=0.2, noise=0.1).regime == "noisy"


def test_curves_are_means_over_seeds_at_each_step(shared):
    one = next(curve for curve in curves(shared, "update") if (curve.role, curve.x) == ("query", 3))
    runs = [run for run in shared.runs if run["r"] == 3]
    k = runs[0]["parts"]["role"].index("query")
    second = [math.log(run["series"]["step"][1][k] / run["parts"]["start"][k]) for run in runs]
    assert one.steps == (1, 2)
    assert one.mean[1] == pytest.approx(math.exp(sum(second) / 3))
    assert one.low[1] < one.mean[1] < one.high[1]
    assert {curve.steps for curve in curves(shared, "total")} == {(2,)}
    with pytest.raises(UnknownNameError, match="Did you mean 'update'"):
        curves(shared, "updat")


def deep(depth: int) -> GPT:
    return GPT(
        GPTConfig(width=32, depth=depth, n_heads=2, n_kv_heads=1, vocabulary=256, context=64)
    )


def four_heads(n_kv_heads: int) -> GPT:
    return GPT(
        GPTConfig(width=32, depth=1, n_heads=4, n_kv_heads=n_kv_heads, vocabulary=256, context=64)
    )


TINY = Setup(batch=1, sequence=64)


def fake(role: str, layers: list[float], **sizes):
    """A run of one step with one role, whose updates have these norms."""
    count = len(layers)
    parts = {
        "role": [role] * count,
        "kind": ["matrix"] * count,
        "layer": list(range(count)),
        "name": [role] * count,
    }
    parts |= {name: [value] * count for name, value in sizes.items()}
    return {"parts": parts, "series": {"step": [layers]}}


class TestStatistics:
    def test_layers_are_averaged_geometrically(self):
        run = fake("query", [1.0, 16.0], start=2.0)
        assert statistics.by_step(run, statistics.STATISTICS["update"], "query") == pytest.approx(
            [2.0]
        )

    def test_a_thin_readout_is_measured_by_its_target(self):
        """Its own norm, σ(√n_in + √n_out), goes another way with the width than √(n_out/n_in)
        does.
        """
        run = fake("readout", [3.0], start=7.0, n_out=256, n_in=64)
        assert statistics.by_step(run, statistics.STATISTICS["update"], "readout") == pytest.approx(
            [1.5]
        )


class TestDepth:
    def test_a_stream_that_falls_is_no_fault_and_one_that_grows_is(self):
        result = coordinate_check(
            deep, {"depth": [1, 2, 4]}, seeds=2, steps=1, setup=TINY, engine=HERE
        )
        assert result.about["base"] == 1
        for power, verdict in ((-1, "pass"), (1, "fail")):
            maps = [
                run["maps"] | {"stream": [[1.0, run["depth"] ** power]] * 2} for run in result.runs
            ]
            runs = [run | {"maps": changed} for run, changed in zip(result.runs, maps, strict=True)]
            assert (
                judge(runs, "depth", result.about, result.criteria).finding("map", "stream").verdict
                == verdict
            )

    @pytest.mark.parametrize(
        ("depth", "expected"), [("1/L", 0.0), ("1/sqrt(L)", 0.5), ("none", 1.0)]
    )
    def test_maps_grow_as_the_branches_factor_says(self, depth, expected):
        rule = mupscale.theory.rule_named("gqa-mup").with_(depth=depth)
        result = coordinate_check(
            deep, {"depth": [2, 4, 8]}, rule=rule, seeds=3, steps=1, setup=TINY, engine=HERE
        )
        for role in ("attention", "mlp"):
            one = result.finding("map", role)
            assert one.judged
            assert one.predicted == pytest.approx(expected, abs=1e-4)
            assert one.flatness.slope.value == pytest.approx(expected, abs=0.15)
        assert {one.role for one in result.judged} == {"attention", "mlp", "block", "stream"}
        assert (result.verdict == "fail") == (depth != "1/L")


class TestFolder:
    def test_runs_are_kept_and_not_repeated(self, tmp_path):
        options = {"vary": {"depth": [1, 2]}, "seeds": 2, "steps": 1, "setup": TINY, "engine": HERE}
        first = coordinate_check(deep, folder=str(tmp_path), **options)
        lines = (tmp_path / "runs.jsonl").read_text().splitlines()
        assert len(lines) == 1 + 4
        counted: list[tuple[int, int]] = []
        again = coordinate_check(
            deep,
            folder=tmp_path,
            report=lambda done, total: counted.append((done, total)),
            **options,
        )
        assert counted == [(4, 4)]
        assert again.to_dict() == first.to_dict()
        # One line torn off by a crash is run again, and only that one.
        (tmp_path / "runs.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:50])
        said: list[str] = []
        assert (
            coordinate_check(deep, folder=tmp_path, remark=said.append, **options).to_dict()
            == first.to_dict()
        )
        assert said == [f"{tmp_path / 'runs.jsonl'}: dropped a torn last line; its job runs again."]

    def test_seeds_and_values_can_be_added(self, tmp_path):
        options = {"steps": 1, "setup": TINY, "engine": HERE, "folder": tmp_path}
        coordinate_check(deep, {"depth": [1, 2]}, seeds=2, **options)
        counted: list[tuple[int, int]] = []
        more = coordinate_check(
            deep,
            {"depth": [1, 2, 4]},
            seeds=3,
            report=lambda *count: counted.append(count),
            **options,
        )
        assert counted[0] == (4, 9)
        assert len(counted) == 1 + 5
        assert (more.x, more.about["seeds"]) == ((1, 2, 4), [1, 2, 3])

    def test_a_folder_of_other_runs_is_refused(self, tmp_path):
        options = {
            "vary": {"depth": [1, 2]},
            "seeds": 2,
            "setup": TINY,
            "engine": HERE,
            "folder": tmp_path,
        }
        coordinate_check(deep, steps=1, **options)
        with pytest.raises(OptionError, match="steps"):
            coordinate_check(deep, steps=2, **options)

    def test_two_processes_give_what_one_does(self):
        options = {"vary": {"depth": [1, 2]}, "seeds": 2, "steps": 1, "setup": TINY}
        assert (
            coordinate_check(deep, engine=Local(workers=2), **options).to_dict()
            == coordinate_check(deep, engine=HERE, **options).to_dict()
        )


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"vary": {"n_kv_heads": [4]}},
                r"n_kv_heads=\[4\] is one value. A slope needs at least two",
            ),
            ({"vary": {"n_kv_heads": [4, 4, 2]}}, "holds a value twice"),
            ({"vary": {"depth": [1, 0]}}, "depth=0 is not a positive integer"),
            ({"vary": {"width": [32, 64.0]}}, "width=64.0 is not a positive integer"),
            ({"vary": {}}, r"vary names 0 quantities \(none\). Vary one at a time"),
            ({"vary": {"width": [1, 2], "depth": [1, 2]}}, "vary names 2 quantities"),
            ({"vary": {"widht": [1, 2]}}, "Did you mean 'width'"),
            ({"vary": {"depth": [1, 2]}, "seeds": 1}, "one seed gives no interval"),
            ({"vary": {"depth": [1, 2]}, "seeds": [1, 1]}, "give each once"),
            ({"vary": {"depth": [1, 2]}, "steps": 0}, "steps=0 must be at least 1"),
            ({"vary": {"depth": [1, 2]}, "rule": "gqa"}, "unknown rule 'gqa'"),
            ({"vary": {"depth": [1, 2]}, "seads": 2}, "Did you mean 'seeds'"),
        ],
    )
    def test_is_refused_before_anything_is_run(self, options, message):
        def never(**_):
            raise AssertionError("built")

        with pytest.raises(MupscaleError, match=message):
            coordinate_check(never, engine=HERE, **options)

    def test_build_that_ignores_what_is_varied(self):
        def stubborn(n_kv_heads):
            return deep(1)

        with pytest.raises(
            OptionError, match=r"build ignores n_kv_heads: r is 2 at n_kv_heads = 2, 1\."
        ):
            coordinate_check(
                stubborn, {"n_kv_heads": [2, 1]}, seeds=2, steps=1, setup=TINY, engine=HERE
            )

    def test_values_with_equal_r(self):
        def rounding(n_kv_heads):
            heads = {4: 4, 3: 2, 2: 2}[n_kv_heads]
            shape = GPTConfig(
                width=32, depth=1, n_heads=4, n_kv_heads=heads, vocabulary=256, context=64
            )
            return GPT(shape)

        with pytest.raises(
            OptionError, match=r"n_kv_heads = 3 and 2 both give r = 2\. Remove one of them"
        ):
            coordinate_check(
                rounding, {"n_kv_heads": [4, 3, 2]}, seeds=2, steps=1, setup=TINY, engine=HERE
            )

    def test_a_model_that_diverges(self):
        wild = dataclasses.replace(TINY, lr=1e30)
        with pytest.raises(MupscaleError, match=r"diverged\. Set lr below 1e\+30"):
            coordinate_check(
                deep, {"depth": [1, 2]}, rule="sp", seeds=2, steps=2, setup=wild, engine=HERE
            )

    def test_wrong_shape_of_a_value(self):
        with pytest.raises(DimensionError, match="Choose a divisor of 4: 1, 2 or 4"):
            coordinate_check(
                lambda n_kv_heads: GPT(
                    GPTConfig(width=32, depth=1, n_heads=4, n_kv_heads=n_kv_heads, vocabulary=256)
                ),
                {"n_kv_heads": [4, 3]},
                seeds=2,
                steps=1,
                setup=TINY,
                engine=HERE,
            )


def test_what_changes_beside_the_varied_quantity_is_said():
    def loose(width):
        return GPT(
            GPTConfig(
                width=width, depth=1, n_heads=width // 16, n_kv_heads=1, vocabulary=256, context=64
            )
        )

    result = coordinate_check(loose, {"width": [32, 64]}, seeds=2, steps=1, setup=TINY, engine=HERE)
    assert any("r changes along with width (2 to 4)" in warning for warning in result.warnings)


def test_what_does_not_move_is_said():
    def frozen(model, batch):
        """A loss that the attention's output has no part in."""
        for block in model.blocks:
            block.attention.o_proj.weight.data.zero_()
        return model(batch.inputs, batch.targets)

    options = {
        "seeds": 2,
        "steps": 1,
        "setup": TINY,
        "engine": HERE,
        "loss": frozen,
        "criteria": Criteria(tolerance=9),
    }
    over_r = coordinate_check(four_heads, {"n_kv_heads": [4, 1]}, **options)
    assert "value" in over_r.unjudged
    assert over_r.verdict == "inconclusive"
    assert "value has no numbers in some run, so it is not judged" in unwrapped(over_r)
    over_depth = coordinate_check(deep, {"depth": [1, 2]}, **options)
    assert (over_depth.unjudged, over_depth.verdict) == (("attention",), "inconclusive")
    with pytest.raises(UnknownNameError, match="unknown finding 'update of value'"):
        over_r.finding("update", "value")


def test_a_role_that_moves_in_some_runs_only_is_left_out(shared):
    """An expert that no token reached, say: its zeros have no logarithm."""
    k = shared.runs[0]["parts"]["role"].index("value")
    still = {
        name: [
            [0.0 if i == k else v for i, v in enumerate(row)]
            for row in shared.runs[-1]["series"][name]
        ]
        for name in ("step", "step_frobenius", "moved")
    }
    runs = [*shared.runs[:-1], shared.runs[-1] | {"series": shared.runs[-1]["series"] | still}]
    result = judge(runs, "r", shared.about, shared.criteria)
    assert result.unjudged == ("value",)
    assert "value" not in {one.role for one in result.coherences}
    assert "value" not in {curve.role for curve in curves(result, "update")}


@pytest.mark.parametrize(("name", "base"), [("n_kv_heads", 4), ("r", 1)])
def test_the_base_has_the_least_sharing_by_either_name(name, base):
    def build(**given):
        heads = given.get("n_kv_heads") or 4 // given["r"]
        return four_heads(heads)

    result = coordinate_check(build, {name: [4, 1]}, seeds=2, steps=1, setup=TINY, engine=HERE)
    assert result.about["base"] == base


class TestAssertTransfers:
    def test_raises_with_the_whole_table(self):
        rule = mupscale.theory.rule_named("gqa-mup").with_(depth="none")
        with pytest.raises(
            AssertionError, match=r"(?s)says fail.*attention.*grows with depth, as theory predicts"
        ):
            assert_transfers(
                deep, {"depth": [2, 4, 8]}, rule=rule, seeds=3, steps=1, setup=TINY, engine=HERE
            )

    def test_returns_the_result(self):
        options = {
            "seeds": 3,
            "steps": 1,
            "setup": TINY,
            "engine": HERE,
            "criteria": Criteria(tolerance=0.4),
        }
        assert assert_transfers(deep, {"depth": [2, 4, 8]}, **options).passed

    def test_inconclusive_does_not_pass_unless_allowed(self):
        options = {
            "seeds": 2,
            "steps": 1,
            "setup": TINY,
            "engine": HERE,
            "criteria": Criteria(tolerance=0.01),
        }
        vary = {"n_kv_heads": [4, 1]}

        def build(n_kv_heads):
            return GPT(
                GPTConfig(
                    width=32, depth=1, n_heads=4, n_kv_heads=n_kv_heads, vocabulary=256, context=64
                )
            )

        with pytest.raises(AssertionError, match="says inconclusive"):
            assert_transfers(build, vary, **options)
        assert (
            assert_transfers(build, vary, allow_inconclusive=True, **options).verdict
            == "inconclusive"
        )


def test_is_there_by_its_short_name():
    assert mupscale.coordinate_check is coordinate_check


class TestArguments:
    OPTIONS: ClassVar = {"seeds": 2, "steps": 1, "engine": HERE}

    def test_by_name_and_in_groups_are_the_same_check(self):
        flat = coordinate_check(deep, {"depth": [1, 2]}, batch=1, sequence=32, **self.OPTIONS)
        setup = Setup(batch=1, sequence=32, seeds=2, steps=1)
        grouped = coordinate_check(
            deep, {"depth": [1, 2]}, setup=setup, running=Running(engine=HERE)
        )
        assert grouped.to_dict() == flat.to_dict()

    def test_a_setup_is_described_by_the_values_that_old_folders_hold(self):
        """A folder is continued only if its first line and its name stay as they were."""
        values = Setup(steps=9, seeds=2, base=1).values()
        assert list(values) == [
            "optimizer", "lr", "weight_decay", "eps", "betas", "momentum", "std",
            "batch", "sequence", "tokenizer", "device",
        ]  # fmt: skip
        assert repr(Setup(steps=9, seeds=2, base=1)) == repr(Setup())


@pytest.mark.parametrize("rule", ["gqa-mup", "mup"])
def test_each_size_is_read_once_per_run(rule, monkeypatch):
    """The plan in use, the plan that theory asks for and the norms share one reading."""
    read: list[int] = []

    def counted(model, reading):
        read.append(sum(parameter.numel() for parameter in model.parameters()))
        return follow(model, reading)

    monkeypatch.setattr(reader, "follow", counted)
    vary = {"depth": [1, 2, 4]}
    coordinate_check(deep, vary, rule=rule, seeds=2, steps=1, setup=TINY, engine=HERE)
    counts = sorted(Counter(read).values())
    # Two seeds. The base, at depth 1, is read in its own runs and beside each larger model.
    assert counts == [2, 2, 2 * 3]


def test_text_fits_the_terminal(vanilla, monkeypatch):
    for columns in (80, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, vanilla.to_text(everything=True).splitlines())) <= columns
    monkeypatch.setenv("COLUMNS", "1")
    assert "as theory predicts" in unwrapped(vanilla)
