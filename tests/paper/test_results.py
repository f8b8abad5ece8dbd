"""Committed results: they belong to the studies of the package, can be made again, and the table
says what they say.
"""

import dataclasses
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mupscale.analysis import families
from mupscale.cli import main
from mupscale.engines import Local
from mupscale.engines.ledger import Ledger
from mupscale.paper import EXPERIMENTS, experiment_named
from mupscale.paper.claims import KINDS, VERDICTS, Claim
from mupscale.paper.experiment import Execution, Scale
from mupscale.paper.sweeps import Sweep
from mupscale.paper.verdicts import claims_in, table_lines
from mupscale.studies import Study
from mupscale.studies.cell_run import CellRun, assignment
from mupscale.studies.stopping import reference
from mupscale.studies.trainers import train

RESULTS = Path(__file__).parents[2] / "results"


def committed() -> list[str]:
    """One name for each study, though two experiments may share it."""
    sweeps = [one for name in EXPERIMENTS if isinstance(one := experiment_named(name), Sweep)]
    return [
        one.name
        for one in sweeps
        if one.name == one.study and (RESULTS / one.study / "records.jsonl").exists()
    ]


@pytest.mark.parametrize("name", committed())
def test_records_belong_to_the_study_of_their_name_and_are_whole(name: str) -> None:
    chosen, study = experiment_named(name), Study.open(RESULTS / name)
    assert isinstance(chosen, Sweep)
    assert study.config.identity() == chosen.config("cpu").identity()
    snapshot = study.snapshot()
    assert snapshot.done == set(snapshot.cells)
    assert {trial.status for trial in snapshot.trials} <= {"finished", "diverged"}


@pytest.fixture
def without_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Optuna is not installed: copies of large studies need no mirror here."""
    monkeypatch.setattr("mupscale.studies.study._Driver._mirrored", lambda self: None)


class Refusing(Local):
    """No run is missing, so that none is asked for."""

    def session(self, function: Any) -> Any:
        raise AssertionError(f"{function} is run again")


@pytest.mark.usefixtures("without_database")
@pytest.mark.parametrize(
    ("name", "scale", "folder"),
    [
        ("coordinate-check", "cpu", "coordinate-check/cpu"),
        ("coordinate-check", "paper", "coordinate-check/paper"),
        ("adam-epsilon", "cpu", "adam-epsilon"),
        ("decay-balance", "cpu", "decay-balance"),
        ("gqa-noise", "cpu", "gqa-noise"),
    ],
)
def test_todays_experiment_goes_on_from_what_was_recorded(
    name: str, scale: Scale, folder: str, tmp_path: Path
) -> None:
    shutil.copytree(RESULTS / folder, tmp_path / name)
    experiment_named(name).run(scale, tmp_path / name, Execution(Refusing()))


LONG = 500_000
"""Tokens of a run from which on only the first part of it is run again."""


@pytest.mark.parametrize("name", committed())
def test_a_recorded_run_comes_out_again(name: str, tmp_path: Path) -> None:
    """The shortest, at the least rate: to the last digit where it was made, elsewhere as far as
    rounding lets it.
    """
    study = Study.open(RESULTS / name)
    trial = min(
        (t for t in study.trials if t.loss is not None),
        key=lambda t: (t.tokens, t.log2_lr, t.seconds),
    )
    cell = next(one for one in study.config.cells() if one.name == trial.cell)
    waiting = CellRun(study.config, cell, [])
    while (proposed := waiting.next()) is not None and proposed.number != trial.number:
        pass
    assert proposed is not None
    work = assignment(study.config, proposed, str(tmp_path / trial.key))
    if (
        trial.tokens and trial.tokens > LONG
    ):  # behind one that is far ahead, so that it is stopped as hopeless
        ahead = [[step, loss - 1] for step, loss in trial.curve]
        work = dataclasses.replace(work, stop=reference(ahead, trial.steps or 0))
    again = train(work)
    losses = [loss for _, loss in again["curve"]]
    assert losses == pytest.approx([loss for _, loss in trial.curve[: len(losses)]], abs=2e-2)
    assert len(losses) > len(trial.curve) / 3
    if not work.stop:
        assert again["loss"] == pytest.approx(trial.loss, abs=5e-3)


@pytest.mark.usefixtures("without_database")
def test_one_command_reads_and_analyses_the_study_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Records are read twice more: by the run, which finds nothing to do, before and after."""
    shutil.copytree(RESULTS / "muon", tmp_path / "muon")
    analyse, read = families.analyse, Ledger.read
    analyses, reads = list[int](), list[Path]()

    def counted_analyse(runs: Any, **options: Any) -> Any:
        analyses.append(len(runs))
        return analyse(runs, **options)

    def counted_read(path: Path) -> Any:
        reads.append(path)
        return read(path)

    for name, module in list(sys.modules.items()):
        if name.startswith("mupscale.") and getattr(module, "analyse", None) is analyse:
            monkeypatch.setattr(module, "analyse", counted_analyse)
    monkeypatch.setattr(Ledger, "read", staticmethod(counted_read))
    monkeypatch.setattr(Sweep, "cost", None)  # of which nothing is left, so that it is not computed
    assert main(["paper", "muon", "--output", str(tmp_path / "muon"), "--workers", "0"]) == 0
    assert analyses == [162]
    assert len(reads) <= 3


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    return claims_in(RESULTS)


def test_the_table_of_claims_is_what_the_records_say(claims: list[Claim]) -> None:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    for line in table_lines(claims):
        assert line in text


def test_documents_repeat_the_figures_of_the_table(claims: list[Claim]) -> None:
    """The drifts of README and limits, and the ends of γ in README, limits and calibrate."""
    root = RESULTS.parent
    readme, limits, calibrate = (
        " ".join((root / name).read_text(encoding="utf-8").split())
        for name in ("README.md", "docs/limits.md", "docs/calibrate.md")
    )
    seen = {name: [one.seen for one in claims if one.experiment == name] for name in EXPERIMENTS}
    for text, experiment, place in (
        (readme, "gqa-ablation", 1),
        (limits, "horizon", 1),
        *((limits, "depth", rule) for rule in range(3)),
    ):
        drifts = re.findall(r": drift (-?[\d.]+ \[[^]]+\]) per doubling", seen[experiment][place])
        assert drifts
        for drift in drifts:
            assert drift in text
    ends = re.findall(r"γ below ([\d.]+)", seen["kv-factor"][0])
    assert len(ends) == 3
    most = re.findall(r"([\d.]+) \(without", seen["kv-factor"][0])
    for text in (readme, limits, calibrate):
        assert f"upper end of {ends[0]}" in text
        assert all(end in text for end in (*ends, most[1]))
    assert all(f"{most[0]} to {most[1]}" in text for text in (limits, calibrate))


def test_the_readme_counts_claims_by_kind(claims: list[Claim]) -> None:
    text = " ".join((RESULTS.parent / "README.md").read_text(encoding="utf-8").split())
    count = Counter((one.kind, one.verdict) for one in claims if one.verdict != "ours")
    agree = {kind: count[kind, "agrees"] for kind in KINDS}
    assert agree["best rates"] == 0
    assert (
        f"The {sum(agree.values())} that agree are arithmetic ({agree['arithmetic']}) or about the "
        f"first steps of training ({agree['first steps']})" in text
    )
    rates = {verdict: count["best rates", verdict] for verdict in VERDICTS}
    assert rates["points against"] == 1
    assert rates["points for"] + rates["disagrees"] == 0
    number = rates["cannot be decided"]
    assert f"Of the {sum(rates.values())} about best rates, our runs decide none" in text
    assert f"one result points against the paper, and {number} cannot be decided" in text
