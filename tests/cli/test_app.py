"""The command line as a user meets it: what it prints, what it returns, and no traceback for a mistake."""

import json
import os
import subprocess
import sys

import pytest
import sympy

from mupscale.cli import main
from mupscale.theory import FIELDS, RULES, derive
from mupscale.theory.units import NAMED

COMMANDS = [["derive"], ["table"], ["paper"], ["paper", "expected-norms"], ["demo"]]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(command, capsys):
    status, out, _ = run(capsys, *command, "--help")
    assert status == 0
    assert f"Example: mupscale {' '.join(command)}" in out or command == ["paper"]
    assert "--json" in out or command == ["paper"]


@pytest.mark.parametrize("unit", NAMED)
def test_derive_prints_the_five_expressions_as_json(unit, capsys):
    status, out, _ = run(capsys, "derive", unit, "--json")
    data = json.loads(out)
    assert status == 0
    for field in FIELDS:
        free = {str(symbol) for symbol in sympy.sympify(data[field]).free_symbols}
        assert free <= {"n", "r", "L"} | ({"inner"} if unit == "kv-inner" else set()) | (
            {"rank"} if "rank" in unit else set()
        )


def test_derive_shows_the_steps_when_asked(capsys):
    _, short, _ = run(capsys, "derive", "kv", "--optimizer", "muon")
    _, long, _ = run(capsys, "derive", "kv", "--optimizer", "muon", "--show-steps")
    assert "Bai–Yin" in long
    assert "Bai–Yin" not in short
    assert "(1 + √r)/(2√r)" in short


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["--rule", "mup"], RULES["mup"]),
        (["--kv-factor", "sqrt(r)"], RULES["gqa-mup"].but(kv_factor="sqrt(r)")),
        (["--width", "none"], RULES["gqa-mup"].but(width="none")),
        (["--decay-scaling", "none"], RULES["gqa-mup"].but(decay="none")),
        (["--eps", "none"], RULES["gqa-mup"].but(eps="none")),
    ],
)
def test_every_choice_of_a_rule_has_a_flag(flags, rule, capsys):
    _, out, _ = run(capsys, "derive", "kv", *flags, "--json")
    assert {field: json.loads(out)[field] for field in FIELDS} == {
        field: str(value) for field, value in derive("kv", rule=rule).expressions.items()
    }


def test_derive_puts_numbers_in(capsys):
    _, out, _ = run(capsys, "derive", "kv", "--base", "n=512,r=1", "--target", "n=4096,r=4", "--json")
    assert json.loads(out)["factors"]["lr"] == 1.5 / 8
    _, out, _ = run(capsys, "derive", "kv", "--base", "n=512,r=4", "--target", "n=4096,r=4", "--reference-r", "1")
    assert "0.1875" in out


def test_derive_places_a_unit_in_a_block_and_folds(capsys):
    _, out, _ = run(capsys, "derive", "kv", "--block", "inside", "--json")
    assert json.loads(out)["eps"] == "1/(L*n)"
    _, out, _ = run(capsys, "derive", "o", "--block", "output", "--depth", "1/sqrt(L)", "--json")
    assert json.loads(out)["multiplier"] == "1/sqrt(L)"
    _, out, _ = run(capsys, "derive", "unembed", "--fold", "--json")
    assert json.loads(out)["multiplier"] == "1"


@pytest.mark.parametrize("kind", ["markdown", "latex"])
def test_other_formats(kind, capsys):
    for command in (["derive", "kv", "--show-steps"], ["table"]):
        status, out, _ = run(capsys, *command, "--format", kind)
        assert status == 0
        assert "\\frac" in out


def test_table_compares_all_optimizers(capsys):
    _, out, _ = run(capsys, "table", "--optimizer", "all", "--json")
    assert {row["optimizer"] for row in json.loads(out)} >= {"adamw", "sgd", "muon", "shampoo"}
    _, out, _ = run(capsys, "table", "--optimizer", "all")
    assert "K/V factor" in out


MISTAKES = {
    "derive kvv": "Did you mean 'kv'",
    "derive kv --optimizer adamm": "Did you mean 'adam",
    "derive kv --rule gqa": "Did you mean 'gqa-mup'",
    "derive kv --decay coupled": "Did you mean 'lr_coupled'",
    "derive kv --optimiser adam": "--optimiser",
    "derive": "UNIT",
    "derive kv --target n=768,r=5": "r=5 does not divide heads × head_dim = 768",
    "derive kv --target n=768": "also needs r",
    "derive kv --target n=0,r=1": "n=0 is not a positive whole number",
    "derive kv --target n:768": "Write it like n=4096,r=4",
    "derive kv --target n=--768,r=1": "Write it like n=4096,r=4",
    "derive kv --base n=768": "need a --target",
    "derive kv --kv-factor r-9": "not positive",
    "derive vector --optimizer muon": "trained by AdamW",
    "derive unembed --optimizer adafactor --fold": "cannot be folded",
    "derive fused --block inside": "Put Residual inside",
    "table --depth 1/n": "unknown symbol 'n'",
    "table --optimizer all --rule sp": "no other option but --json",
    "tabel": "tabel",
    "paper expected-norm": "expected-norm",
    "paper expected-norms --width 100": "r=3 does not divide heads × head_dim = 100",
    "paper expected-norms --draws 1": "at least 2",
    "paper expected-norms --seed -1": "seed=-1 is out of range",
    "paper expected-norms --seed 99999999999999999999": "is out of range",
    "paper expected-norms --draws many": "many",
    "paper expected-norms --repetitions 1;2": "Write it like 1,2,4",
    "paper expected-norms --repetitions 2,2": "holds one twice",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_message_and_status_2(line, capsys):
    status, out, err = run(capsys, *line.split())
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert MISTAKES[line] in err
    assert "Traceback" not in err


def mupscale(*arguments: str, **settings) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "mupscale", *arguments], capture_output=True, text=True, check=False, **settings
    )


def test_the_module_runs_as_the_command_does():
    assert mupscale("--version").stdout.strip() == __import__("mupscale").__version__
    assert mupscale("derive", "nothing").returncode == 2


def test_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-m", "mupscale", "table"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert result.stderr == ""


def test_a_missing_extra_is_named_with_the_line_that_installs_it(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None; from mupscale.cli import main\n"
        f"sys.exit(main(['paper', 'expected-norms', '--draws', '2', '--width', '12', '--output', {str(tmp_path)!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "pip install 'mupscale[report]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_output_that_cannot_be_written_has_its_own_status(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    status, _, err = run(
        capsys, "paper", "expected-norms", "--draws", "2", "--width", "12", "--output", str(tmp_path / "file" / "x")
    )
    assert status == 4
    assert "could not write" in err


def test_the_demo_shows_table_derivation_and_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mupscale.cli.demo._DRAWS", 4)
    status, out, _ = run(capsys, "demo", "--output", str(tmp_path))
    assert status == 0
    assert "2n/(1 + √r)" in out
    assert "Bai–Yin" in out
    assert (tmp_path / "expected-norms.png").read_bytes().startswith(b"\x89PNG")
    status, out, _ = run(capsys, "demo", "--output", str(tmp_path), "--json")
    assert set(json.loads(out)) == {"table", "derivation", "points", "files"}
