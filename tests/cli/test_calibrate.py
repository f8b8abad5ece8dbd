"""`mupscale calibrate` as a user meets it."""

import json
import sys
from pathlib import Path

import pytest
import tomli_w

from mupscale.cli import main
from tests.recipes.made_calibrations import BOWLS, PROXY


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bowls", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("proxy.toml").write_text(tomli_w.dumps(PROXY), encoding="utf-8")

    def write(noise: float) -> str:
        Path("bowls.py").write_text(
            BOWLS.format(still=0.3, loss=1.2, noise=noise), encoding="utf-8"
        )
        return "proxy.toml"

    return write


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["calibrate", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_it_says_the_cost_then_runs_then_writes_a_rule_that_plan_and_check_take(proxy, capsys):
    status, out, err = run(capsys, proxy(0.002), "--repetitions", "1,4,16", "--output", "runs/c")
    assert status == 0
    assert err.index("to run: 9 cells, 243 runs") < err.index("proxy-base")
    assert "optimum constant over r: γ = 0." in out
    assert json.loads(Path("runs/c/rule.json").read_text())["evidence"]["question"] == "still"
    assert (
        main(
            ["plan", "llama-3-8b", "--base", "width=512,depth=8,r=1", "--rule", "runs/c/rule.json"]
        )
        == 0
    )
    assert "γ = 0." in capsys.readouterr().out
    assert main(["derive", "kv", "--rule", "runs/c/rule.json"]) == 0


def test_a_calibration_that_was_begun_answers_the_other_question_without_running_again(
    proxy, capsys
):
    run(capsys, proxy(0.002), "--repetitions", "1,4,16", "--output", "runs/c")
    Path("bowls.py").write_text("raise RuntimeError", encoding="utf-8")
    status, out, _ = run(capsys, "runs/c", "--question", "loss", "--json")
    shown = json.loads(out)
    assert status == 0
    assert abs(shown["evidence"]["gamma"] - 1.2) < 0.1
    assert json.loads(Path("runs/c/rule.json").read_text())["evidence"]["question"] == "loss"
    assert run(capsys, "runs/c", "--gammas", "0,1,2")[0] == 2


def test_runs_that_do_not_bound_gamma_write_no_rule_and_say_what_would(proxy, capsys):
    status, out, _ = run(capsys, proxy(0.02), "--repetitions", "1,4", "--output", "runs/c")
    assert status == 3
    assert "No rule was written" in out
    assert "more seeds" in out.lower() or "no optimum" in out
    assert not Path("runs/c/rule.json").exists()


def test_a_dry_run_writes_nothing(proxy, capsys):
    status, out, _ = run(
        capsys, proxy(0.01), "--gammas", "0,1,2", "--repetitions", "1,4", "--dry-run"
    )
    assert status == 0
    assert "gamma_0, gamma_1, gamma_2: r = 4" in out
    assert "4 cells, 108 runs" in out
    assert not Path("runs").exists()


@pytest.mark.parametrize("arguments", [["--gammas", "-1,0,1,2"], ["--gammas=-1,0,1,2"], []])
def test_exponents_below_zero_are_no_option(proxy, capsys, arguments):
    """As documented, `--gammas -1,0,1,2` ended with "requires an argument"."""
    status, out, _ = run(capsys, proxy(0.01), *arguments, "--repetitions", "1,4", "--dry-run")
    assert status == 0
    assert "gamma_-1, gamma_0, gamma_1, gamma_2: r = 4" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gammas", "--lr"], "--gammas '--lr' is not a list of numbers"),
        (["--gammas", "a,b"], "not a list of numbers"),
        (["--repetitions", "1,2.5"], "not a list of whole numbers"),
        (["--repetitions", "1,7"], "does not divide"),
        (["--rule", "none.json"], "mupscale calibrate writes one"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_mistake_is_one_line(proxy, capsys, arguments, message):
    proxy(0.01)
    status, _, err = run(capsys, *arguments, "--dry-run")
    assert status == 2
    assert message in err
    assert "Traceback" not in err
