"""A study carries what was said about its trainer's model: in its file, its identity, and every
plan.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mupscale.engines.ledger import Ledger
from mupscale.errors import MupscaleError, OptionError, UnreadableModelError
from mupscale.planning import Plan
from mupscale.reading import Reading
from mupscale.studies import Study, StudyConfig
from mupscale.studies.cell_run import CellRun, assignment, fingerprint_of
from mupscale.studies.planning import plan_dict, with_reading
from mupscale.studies.quick import QUICK
from tests.odd.copying import HERE, ROLES, copied

RESULTS = Path(__file__).parents[2] / "results"
SAID = Reading.load(HERE / "mupscale.toml")
OWN: dict[str, Any] = {
    "name": "own",
    "seeds": [1],
    "vary": {"width": [16, 32]},
    "space": {"lr": [0.01, 0.02]},
    "search": {"method": "grid"},
    "engine": {"workers": 0},
    "trainer": {"function": "tests.odd.model:train", "target": "tests.odd.model:build"},
}


def config(**changes: Any) -> StudyConfig:
    return StudyConfig.from_dict(OWN | changes)


def plans(of: StudyConfig) -> list[Plan]:
    return [Plan.from_json(json.dumps(plan_dict(of, cell, {}))) for cell in of.cells()]


def of_module(name: str) -> dict[str, Any]:
    return {"trainer": {"function": f"{name}:train", "target": f"{name}:build"}}


class TestTheTable:
    def test_it_comes_back_from_toml_and_is_part_of_what_the_study_is(self) -> None:
        said = SAID | Reading(
            ignore=("scale",), inputs={"tokens": "int64[1,16]<256", "mode": "fast"}
        )
        one = config(reading=said.to_dict())
        again = StudyConfig.from_dict(tomllib.loads(one.to_toml()))
        assert again == one
        assert again.reading == said
        assert one.identity()["reading"] == said.to_dict()
        assert one.identity() != config(reading=SAID.to_dict()).identity()

    def test_an_empty_one_leaves_no_trace(self) -> None:
        assert config(reading={}).to_toml() == config().to_toml()
        assert "reading" not in config().identity()

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"reading": {"roles": {"*.a": "qery"}}}, "Did you mean 'query'"),
            ({"reading": {"rolls": {}}}, "Did you mean 'roles'"),
            ({"reading": 3}, r"reading = 3 is not a table"),
            (
                {"reading": SAID.to_dict(), "trainer": {"function": "tests.odd.model:train"}},
                "no trainer.target",
            ),
            ({"reading": {"inputs": {"x": None}}}, "x is None, which TOML cannot represent"),
            ({"reading": {"inputs": [1, None]}}, "1 is None, which TOML cannot represent"),
        ],
    )
    def test_one_that_is_wrong_or_without_effect_is_refused(
        self, changes: dict[str, Any], told: str
    ) -> None:
        with pytest.raises(MupscaleError, match=told):
            config(**changes)

    def test_the_reference_model_needs_none(self) -> None:
        with pytest.raises(OptionError, match=r"no trainer\.target"):
            StudyConfig.from_dict(QUICK | {"reading": SAID.to_dict()})


class TestPlans:
    def test_they_are_made_with_it_and_keep_it(self) -> None:
        for made in plans(config(reading=SAID.to_dict())):
            assert made.reading == SAID
            assert made.parameters["storeys.1.talk.beta.weight"].role == "key"

    def test_without_it_the_model_is_not_read(self) -> None:
        with pytest.raises(UnreadableModelError):
            plans(config())

    def test_another_reading_is_another_plan_and_another_trial(self) -> None:
        """Plans are kept between trials: the reading must be part of what they are found by."""
        other = SAID | Reading({"storeys.*.think.tilt": "bias"})
        roles, same = [], []
        for said in (SAID, other, SAID):
            one = config(reading=said.to_dict())
            roles.append(plans(one)[0].parameters["storeys.0.think.tilt"].role)
            proposed = CellRun(one, one.cells()[0], ()).next()
            assert proposed is not None
            same.append(fingerprint_of(assignment(one, proposed, "folder")))
        assert roles == ["gain", "bias", "gain"]
        assert same[0] == same[2] != same[1]


class TestTheFileBesideTheModel:
    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        self.folder = tmp_path

    def test_it_is_kept_in_the_folder_of_the_study(self) -> None:
        study = Study.create(config(**of_module(copied(self.folder))), self.folder / "study")
        assert study.config.reading == Study.open(self.folder / "study").config.reading == SAID

    def test_a_table_of_the_study_takes_its_place(self) -> None:
        own = Reading({"chimney.weight": "readout"})
        given = config(**of_module(copied(self.folder)), reading=own.to_dict())
        assert with_reading(given).reading == own

    def test_a_study_that_has_begun_is_not_changed_by_the_file(self) -> None:
        given, folder = config(**of_module(copied(self.folder))), self.folder / "study"
        begun = Study.create(given, folder)
        Ledger(folder / "records.jsonl", {"study": begun.config.identity()}).__exit__(
            None, None, None
        )
        changed = ROLES.replace(
            '"storeys.*.think.tilt" = "gain"', '"storeys.*.think.tilt" = "bias"'
        )
        (self.folder / "mupscale.toml").write_text(changed)
        assert Study.create(Study.open(folder).config, folder).config.reading == SAID
        with pytest.raises(OptionError, match=r"another study \(reading.roles.storeys.*--fork"):
            Study.create(given, folder)

    def test_models_without_one_and_the_reference_model_stay_as_they_are(self) -> None:
        for one in (
            StudyConfig.from_dict(QUICK),
            config(**of_module(copied(self.folder, beside=None))),
        ):
            assert with_reading(one) is one

    def test_a_run_hands_it_over_and_ends_well(self) -> None:
        study = Study.create(
            config(**of_module(copied(self.folder)), keep_runs=True), self.folder / "study"
        )
        snapshot = study.run()
        assert {trial.status for trial in snapshot.trials} == {"finished"}
        kept = list((self.folder / "study" / "trials").rglob("plan.json"))
        assert len(kept) == len(snapshot.trials) == 6
        assert all(Plan.load(path).reading == SAID for path in kept)


@pytest.mark.parametrize(
    "folder", sorted({p.parent for p in RESULTS.rglob("records.jsonl")}), ids=lambda f: f.name
)
def test_committed_studies_are_still_the_ones_that_their_records_are_of(folder: Path) -> None:
    study = Study.open(folder)
    about, _ = Ledger.read(folder / "records.jsonl")
    assert about == {"study": json.loads(json.dumps(study.config.identity()))}
    assert not study.config.reading


def test_trials_of_a_committed_study_have_the_fingerprints_that_they_had() -> None:
    study = Study.open(RESULTS / "gqa-dense")
    trials = study.snapshot().cells
    for cell in study.config.cells():
        proposed = CellRun(study.config, cell, ()).next()
        assert proposed is not None
        assert (
            fingerprint_of(assignment(study.config, proposed, "folder"))
            == trials[cell.name][proposed.number].fingerprint
        )
