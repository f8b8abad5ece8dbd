"""What the user says about a model reaches every command: by flags, by a file, by mupscale.toml
beside the model.
"""

import json
import tomllib
from pathlib import Path

import pytest

from mupscale.cli import main
from mupscale.planning import Plan
from mupscale.reading import Reading
from tests.odd.copying import ROLES, copied

SAID = Reading.from_dict(tomllib.loads(ROLES)["reading"])
FLAGS = [part for pattern, role in SAID.roles.items() for part in ("--role", f"{pattern}={role}")]
KNOB = "storeys.*.think.tilt"
STUDY = """
name = "odd"
seeds = [1]
[space]
lr = [0.01, 0.02]
[vary]
width = [16, 32]
[trainer]
function = "{name}:train"
target = "{name}:build"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def planned(capsys, name: str, *flags: str) -> tuple[Plan, str]:
    status, out, err = run(
        capsys, "plan", f"{name}:build", "--base", f"{name}:build,width=16", *flags, "--json"
    )
    assert status == 0, err
    return Plan.from_json(out), err


def studied(capsys, name: str, *flags: str, table: str = "") -> Reading:
    Path("study.toml").write_text(STUDY.format(name=name) + table)
    status, out, err = run(capsys, "sweep", "study.toml", *flags, "--show-config")
    assert status == 0, err
    return Reading.from_dict(tomllib.loads(out).get("reading", {}))


class TestPlan:
    def test_the_file_beside_the_model_is_used_and_named(self, capsys, here):
        made, err = planned(capsys, copied(here))
        assert made.reading == SAID
        assert err == f"reading: {here / 'mupscale.toml'}\n"

    def test_flags_alone_say_as_much(self, capsys, here):
        made, err = planned(capsys, copied(here, beside=None), *FLAGS)
        assert (made.reading, err) == (SAID, "")

    def test_a_file_takes_the_place_of_the_one_beside(self, capsys, here):
        (here / "other.toml").write_text(ROLES)
        wrong = ROLES.replace("chimney.weight", "no.such.weight")
        made, err = planned(capsys, copied(here, beside=wrong), "--reading", "other.toml")
        assert (made.reading, err) == (SAID, "")

    @pytest.mark.parametrize("file", ["beside", "named"])
    def test_a_flag_overrides_an_entry_of_either_file(self, capsys, here, file):
        wrong = ROLES.replace(f'"{KNOB}" = "gain"', f'"{KNOB}" = "bias"')
        name = copied(here, beside=wrong if file == "beside" else "")
        if file == "named":
            (here / "mupscale.toml").rename("other.toml").write_text(wrong)
        flags = ["--reading", "other.toml"] if file == "named" else []
        made, _ = planned(capsys, name, *flags)
        assert made.reading.roles[KNOB] == "bias"
        made, _ = planned(capsys, name, *flags, "--role", f"{KNOB}=gain")
        assert made.reading.roles == SAID.roles

    def test_the_same_numbers_however_it_was_said(self, capsys, here):
        first, _ = planned(capsys, copied(here))
        (here / "mupscale.toml").rename(here / "other.toml")
        second, _ = planned(capsys, copied(here, beside=None), "--reading", "other.toml")
        third, _ = planned(capsys, copied(here, beside=None), *FLAGS)
        assert first == second == third

    def test_dimensions_of_a_base_are_read_with_it_too(self, capsys, here):
        name = copied(here)
        status, out, err = run(
            capsys, "plan", f"{name}:build", "--base", "width=16,depth=2,r=2", "--json"
        )
        assert status == 0, err
        assert Plan.from_json(out).parameters == planned(capsys, name)[0].parameters

    def test_inputs_are_kept_by_name_and_by_position(self, capsys, here):
        name = copied(here)
        made, _ = planned(capsys, name, "--inputs", "tokens=int64[1,16] < 256")
        assert made.reading == SAID | Reading(inputs={"tokens": "int64[1,16]<256"})
        made, _ = planned(capsys, name, "--inputs", "int64[1,16]<256")
        assert made.reading == SAID | Reading(inputs=("int64[1,16]<256",))


class TestStudies:
    """The first of these counts: --reading, the study's own table, mupscale.toml. Flags go over
    it.
    """

    TABLE = '[reading.roles]\n"door.book" = "embedding"\n'

    def test_the_first_that_is_there_counts(self, capsys, here):
        (here / "other.toml").write_text('[reading.roles]\n"roof.knob" = "gain"\n')
        name = copied(here)
        assert studied(capsys, name) == SAID
        assert studied(capsys, name, table=self.TABLE) == Reading({"door.book": "embedding"})
        assert studied(capsys, name, "--reading", "other.toml", table=self.TABLE) == Reading(
            {"roof.knob": "gain"}
        )
        assert studied(capsys, copied(here, beside=None), table=self.TABLE) == Reading(
            {"door.book": "embedding"}
        )

    def test_flags_go_over_each(self, capsys, here):
        name, flag, more = (
            copied(here),
            ["--role", "door.book=position", "--ignore", "scale"],
            Reading(ignore=("scale",)),
        )
        other = Reading({"door.book": "position"})
        assert studied(capsys, name, *flag) == SAID | other | more
        assert studied(capsys, name, *flag, table=self.TABLE) == other | more

    def test_it_is_named_only_where_it_is_used(self, capsys, here):
        name = copied(here)
        Path("study.toml").write_text(STUDY.format(name=name))
        assert (
            run(capsys, "sweep", "study.toml", "--show-config")[2]
            == f"reading: {here / 'mupscale.toml'}\n"
        )
        Path("study.toml").write_text(STUDY.format(name=name) + self.TABLE)
        assert run(capsys, "sweep", "study.toml", "--show-config")[2] == ""

    def test_what_a_calibration_would_run(self, capsys, here):
        name = copied(here, beside=None)
        Path("proxy.toml").write_text(
            STUDY.format(name=name).replace("[vary]\nwidth = [16, 32]", "")
        )
        line = ["calibrate", "proxy.toml", "--repetitions", "1,2,4", "--dry-run"]
        assert run(capsys, *line)[0] == 2
        status, out, err = run(capsys, *line, *FLAGS)
        assert status == 0, err
        assert "r = 2, 4" in out


def test_a_check_with_a_reading_has_a_folder_of_its_own(capsys, here, monkeypatch):
    """One without has the folder that it always had."""
    folders = []

    def stop(*_, reading, folder, **__):
        folders.append((reading, folder))
        raise KeyboardInterrupt

    monkeypatch.setattr("mupscale.checks.coordinate_check", stop, raising=False)
    assert run(capsys, "check", "gpt:check")[0] == 130
    assert folders[-1] == (Reading(), Path("runs/check/gqa-mup-n-kv-heads-a3f16645"))
    name = copied(here)
    for flags in ([], ["--role", f"{KNOB}=bias"]):
        assert run(capsys, "check", f"{name}:build", "--vary", "width=16,32", *flags)[0] == 130
    assert folders[1][0] == SAID
    assert folders[2][0] == SAID | Reading({KNOB: "bias"})
    assert folders[1][1] != folders[2][1]


MISTAKES = {
    "plan M:build --base width=16 --role hidden": "is not pattern=role",
    "plan M:build --base width=16 --role *.x=hidden": "matches no parameter",
    "plan M:build --base width=16 --role *.knob=gian": "Did you mean 'gain'",
    "plan M:build --base width=16 --inputs float23[1]": "Did you mean 'float32'",
    "plan M:build --base width=16 --inputs x=float32[1;3]": "Write it like float32[1,3,32,32]",
    "plan M:build --base width=16 --inputs x=int64[1] --inputs int64[1]": "name all arguments, or "
    "none",
    "plan M:build --base width=16 --inputs x=int64[1] --inputs x=int64[2]": "given twice",
    "plan M:build --base width=16 --inputs 1x=int64[1]": "'1x' is not a name",
    "plan M:build --base width=16 --reading nowhere.toml": "nowhere.toml: No such file",
    "check M:build --vary width=16,32 --reading nowhere.toml": "nowhere.toml: No such file",
    "check M:build --vary width=16,32 --role hidden": "is not pattern=role",
    "sweep --role *.x=hidden": "no trainer.target",
    "sweep --reading nowhere.toml": "nowhere.toml: No such file",
    "calibrate --role *.x=hidden --dry-run": "no trainer.target",
    "transfer RESULTS --to M:build --role hidden": "is not pattern=role",
    "transfer RESULTS --to M:build --reading nowhere.toml": "nowhere.toml: No such file",
    "report RESULTS --role *.x=hidden": "Name it with --to",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_message_and_status_2(line, capsys, here):
    results = Path(__file__).parents[2] / "results" / "gqa-dense"
    words = line.replace("M:", f"{copied(here)}:").replace("RESULTS", str(results)).split()
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert "\nerror: " in f"\n{err}"
    assert MISTAKES[line] in err
    assert "Traceback" not in err


def test_a_calibration_that_was_begun_has_its_reading(capsys, here):
    for part in ("base", "factors"):
        (here / "begun" / part).mkdir(parents=True)
        (here / "begun" / part / "study.toml").write_text(STUDY.format(name=copied(here)))
    status, _, err = run(capsys, "calibrate", "begun", "--role", f"{KNOB}=gain")
    assert status == 2
    assert "keeps its settings" in err


def test_the_plan_of_a_command_is_json_with_the_reading(capsys, here):
    _, out, _ = run(capsys, "plan", f"{copied(here)}:build", "--base", "width=16,r=2", "--json")
    assert json.loads(out)["reading"] == {"roles": dict(SAID.roles)}
