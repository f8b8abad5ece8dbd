"""The command line as a user meets it: what it prints, what it returns, and no traceback for a
mistake.
"""

import functools
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import sympy
from cyclopts import App

from mupscale.cli import main
from mupscale.cli.app import app
from mupscale.planning import Plan
from mupscale.studies.quick import DEMO
from mupscale.theory import FIELDS, RULES, derive
from mupscale.theory.units import NAMED


def _below(parent: App, *path: str) -> list[list[str]]:
    names = [name for name in parent if not name.startswith("-")]
    return [
        command for name in names for command in [[*path, name], *_below(parent[name], *path, name)]
    ]


COMMANDS = _below(app)


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


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_option_takes_half_a_number_for_a_whole_one(command):
    arguments = functools.reduce(App.__getitem__, command, app).assemble_argument_collection()
    assert [
        a.name for a in arguments if a.hint in (int, int | None) and a.parameter.converter is None
    ] == []


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
        (["--kv-factor", "sqrt(r)"], RULES["gqa-mup"].with_(kv_factor="sqrt(r)")),
        (["--kv-factor", "rms"], RULES["gqa-mup"].with_(kv_factor="rms")),
        (["--kv-part", "keys"], RULES["gqa-mup"].with_(kv_part="keys")),
        (["--kv-part", "values"], RULES["gqa-mup"].with_(kv_part="values")),
        (["--width", "none"], RULES["gqa-mup"].with_(width="none")),
        (["--width", "init"], RULES["gqa-mup"].with_(width="init")),
        (["--decay-scaling", "none"], RULES["gqa-mup"].with_(decay="none")),
        (["--eps", "none"], RULES["gqa-mup"].with_(eps="none")),
    ],
)
def test_every_choice_of_a_rule_has_a_flag(flags, rule, capsys):
    for unit in ("k", "v"):
        _, out, _ = run(capsys, "derive", unit, *flags, "--json")
        assert {field: json.loads(out)[field] for field in FIELDS} == {
            field: str(value) for field, value in derive(unit, rule=rule).expressions.items()
        }


def test_a_part_that_does_not_exist_is_named(capsys):
    status, _, err = run(capsys, "derive", "k", "--kv-part", "key")
    assert status == 2
    assert '"both", "keys", "values"' in err


def test_derive_puts_numbers_in(capsys):
    _, out, _ = run(
        capsys, "derive", "kv", "--base", "n=512,r=1", "--target", "n=4096,r=4", "--json"
    )
    assert json.loads(out)["factors"]["lr"] == 1.5 / 8
    _, out, _ = run(
        capsys,
        "derive",
        "kv",
        "--base",
        "n=512,r=4",
        "--target",
        "n=4096,r=4",
        "--reference-r",
        "1",
    )
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


class TestPlan:
    def test_a_published_shape_from_its_thin_copy(self, capsys):
        status, out, _ = run(capsys, "plan", "llama-3-8b", "--base", "width=512,depth=8")
        assert status == 0
        base = "from a base of width 512, depth 8, heads 4, kv_heads 1, head_dim 128, r 4"
        assert base in " ".join(out.split())  # the heading wraps at the terminal's width
        assert "lr (1 + √r)/(2n)" in out

    def test_json_is_a_plan_and_the_same_as_the_file(self, capsys, tmp_path):
        path = tmp_path / "plan.json"
        _, out, _ = run(
            capsys, "plan", "hf:llama", "--base", "width=512", "--output", str(path), "--json"
        )
        assert Plan.from_json(out) == Plan.load(path)

    def test_the_base_may_be_any_target_or_have_another_r(self, capsys):
        _, out, _ = run(capsys, "plan", "hf:qwen3", "--base", "hf:qwen3,hidden_size=1024", "--json")
        assert Plan.from_json(out).base["width"] == 1024
        _, out, _ = run(capsys, "plan", "mistral-7b", "--base", "width=1024,r=1", "--json")
        plan = Plan.from_json(out)
        assert plan.base["r"] == 1
        assert plan.parameters["model.layers.0.self_attn.k_proj.weight"].lr == 1.5 / 4

    def test_functions_of_ones_own_and_dimensions(self, capsys, tmp_path, monkeypatch):
        code = """
            from transformers import LlamaConfig, LlamaForCausalLM

            def build(width=64):
                return LlamaForCausalLM(LlamaConfig(
                    hidden_size=width, intermediate_size=2 * width, num_attention_heads=width // 8,
                    num_key_value_heads=width // 16, num_hidden_layers=2, vocab_size=61,
                ))
        """
        (tmp_path / "own_models.py").write_text(textwrap.dedent(code))
        monkeypatch.chdir(tmp_path)
        _, first, _ = run(
            capsys, "plan", "own_models:build", "--base", "own_models:build,width=32", "--json"
        )
        _, second, _ = run(capsys, "plan", "own_models:build", "--base", "width=32", "--json")
        assert Plan.from_json(first).parameters == Plan.from_json(second).parameters

    def test_markdown_and_an_explanation(self, capsys):
        _, out, _ = run(capsys, "plan", "hf:gpt2", "--base", "width=256", "--markdown")
        assert "| role | parameters |" in out
        name = "transformer.h.3.mlp.c_proj.weight"
        _, out, _ = run(capsys, "plan", "hf:gpt2", "--base", "width=256,depth=6", "--explain", name)
        assert out.startswith(f"{name}: mlp_out, 3072 × 768")

    def test_a_role_that_the_user_settles(self, capsys):
        line = ["plan", "hf:doge", "--base", "depth=30"]
        assert run(capsys, *line)[0] == 2
        status, _, err = run(capsys, *line, "--role=*.dt_proj.weight=hidden")
        assert status == 0, err

    def test_the_rule_and_its_choices(self, capsys):
        line = [
            "plan",
            "hf:llama",
            "--base",
            "width=512,depth=8",
            "--rule",
            "complete-p",
            "--depth",
            "none",
            "--json",
        ]
        plan = Plan.from_json(run(capsys, *line)[1])
        assert (plan.rule.kv_factor, plan.rule.depth) == ("hidden", "none")


class TestTrain:
    SETTINGS = "model.name=cpu_32_r2 length.steps=3 length.batch=2 record.eval-batches=1"
    LINE = ("train", *(f"--{one}" for one in SETTINGS.split()), "--data.sequence", "16")

    def test_a_run_and_its_record(self, capsys, tmp_path):
        status, out, _ = run(capsys, *self.LINE, "--output", str(tmp_path / "a"))
        assert status == 0
        assert "3 steps, 96 tokens: training loss" in out
        status, out, _ = run(capsys, *self.LINE, "--output", str(tmp_path / "a"), "--json")
        assert json.loads(out)["status"] == "finished"

    def test_the_whole_config_can_be_seen_and_used(self, capsys, tmp_path):
        _, out, _ = run(capsys, *self.LINE, "--rule", "mup", "--seed", "4", "--show-config")
        (tmp_path / "run.toml").write_text(out)
        status, again, _ = run(capsys, "train", str(tmp_path / "run.toml"), "--show-config")
        assert status == 0
        assert again == out
        assert 'name = "mup"' in out
        assert "seed = 4" in out

    def test_a_schedule_is_a_setting(self, capsys, tmp_path):
        wsd = ["--length.schedule", "wsd", "--length.decay-share", "0.5"]
        _, out, _ = run(capsys, *self.LINE, *wsd, "--show-config")
        length = tomllib.loads(out)["length"]
        assert (length["schedule"], length["decay_share"]) == ("wsd", 0.5)
        status, _, _ = run(capsys, *self.LINE, *wsd, "--output", str(tmp_path / "a"))
        assert status == 0
        status, _, err = run(capsys, *self.LINE, "--output", str(tmp_path / "a"))
        assert status == 2
        assert 'length.schedule: "wsd" → "cosine"' in err

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            ("--length.schedule wds", "unknown length.schedule 'wds'. Did you mean 'wsd'?"),
            ("--length.decay-share 0.2", "decay_share = 0.2 is a setting of the schedule wsd"),
            ("--length.schedule wsd --length.decay-share 0", "decay_share = 0.0 must be above 0"),
            ("--length.schedule wsd --length.decay-share 1.5", "= 1.5 must be above 0 and at most"),
            ("--length.schedule wsd --length.warmup 3", "a warmup of 3 steps and a decay of 1"),
        ],
    )
    def test_a_wrong_schedule_is_one_line(self, capsys, flags, words):
        status, _, err = run(capsys, *self.LINE, *flags.split())
        assert status == 2
        assert words in " ".join(err.split())
        assert "Traceback" not in err

    def test_a_run_that_diverges_is_a_result(self, capsys, tmp_path):
        settings = [
            "--optimizer.lr",
            "1e8",
            "--length.steps",
            "30",
            "--output",
            str(tmp_path / "a"),
        ]
        status, out, _ = run(capsys, *self.LINE, *settings)
        assert status == 0
        assert "diverged at step" in out

    def test_models_have_the_papers_columns(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "160")
        status, out, _ = run(capsys, "models")
        assert status == 0
        line = next(line.split() for line in out.splitlines() if line.startswith("kvr_12"))
        assert (
            " ".join(line[:15])
            == "kvr_12 133.12 88.19 768 7 12 64 12 1 10 881900000 107654 33 3262 65"
        )
        _, out, _ = run(capsys, "models", "--json")
        assert len(json.loads(out)) > 30
        kvr_12 = next(row for row in json.loads(out) if row["name"] == "kvr_12")
        _, out, _ = run(capsys, "models", "--model", "kvr_12")
        assert [re.split(r" {2,}", line) for line in out.splitlines()] == [
            [key, str(value)] for key, value in kvr_12.items()
        ]

    def test_models_fit_80_columns_one_line_each(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        _, out, _ = run(capsys, "models")
        lines = out.splitlines()
        assert max(map(len, lines)) <= 80
        line = next(line for line in lines if line.startswith("kvr_12"))
        assert line.split() == ["kvr_12", "133.12", "88.19", "768", "7", "12", "12", "1", "10"]


class TestCheck:
    LINE = (
        "check gpt:cpu_32_r2 --vary depth=1,2,4 --seeds 2 --steps 1 --batch 1 --sequence 32 "
        "--workers 0"
    )

    def test_the_verdict_is_the_status(self, capsys, tmp_path):
        line = [*self.LINE.split(), "--depth", "none", "--output", str(tmp_path), "--json"]
        statuses = {"pass": 0, "fail": 1, "inconclusive": 3}
        for tolerance, verdict in (("9", "pass"), ("0.001", "fail")):
            status, out, _ = run(capsys, *line, "--tolerance", tolerance)
            data = json.loads(out)
            assert (data["verdict"], status) == (verdict, statuses[verdict])
        files = {Path(file).name: Path(file) for file in data["files"]}
        assert {
            "runs.jsonl",
            "findings.jsonl",
            "findings.csv",
            "slopes.png",
            "slopes.svg",
            "slopes.pdf",
        } == set(files)
        assert all(path.stat().st_size > 0 for path in files.values())

    def test_text_names_slopes_and_verdict_and_a_second_call_runs_nothing(
        self, capsys, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        status, out, _ = run(capsys, *self.LINE.split())
        assert status in (0, 1, 3)
        assert "coordinate check over depth = 1, 2, 4" in out
        assert "files in runs/check/gqa-mup-depth-" in out
        monkeypatch.setattr("mupscale.checks.check.run_probe", None)
        assert run(capsys, *self.LINE.split()) == (status, out, "")


MISTAKES = {
    "models --model kvr_5": "Did you mean 'kvr_",
    "demo --workers 0.5": "Invalid value for --workers: '0.5' is not a whole number",
    "sweep --rule gqa": "Did you mean 'gqa-mup'",
    "sweep --vary n_kv_heads=5": "n_kv_heads=5",
    "sweep --vary heads=1": "n_kv_heads",
    "sweep --vary n_kv_heads": "Write it like n_kv_heads=4,2,1",
    "sweep --lr 2^-4,2^-8": "smaller end first",
    "sweep --lr 0.1": "is not a range",
    "sweep --lr a,b": "'a' is not a number",
    "sweep --seeds 1;2": "Write it like 42,43,44",
    "sweep --weight-decay 0.1,1": "searches only lr",
    "sweep --method hyperband": "hyperband",
    "sweep --method random": "Set search.trials",
    "sweep --tau-epoch 0.1,1 --weight-decay 0.1,1 --method grid": "are equivalent at a given lr",
    "sweep --optimizer.lrr 1": "Did you mean 'lr'",
    "sweep nowhere.toml": "nowhere.toml",
    "sweep --status --output nowhere": "holds no study",
    "sweep tests --status": "study.toml",
    "sweep --workers -1": "workers",
    "sweep --storage postgresql://me:secret@host/db": "PGPASSWORD",
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
    "plan": "TARGET",
    "plan llama-3-8b": "--base",
    "plan lama-3-8b --base width=512": "Did you mean 'llama-3-8b'",
    "plan hf:lama --base width=512": "Did you mean 'llama'",
    "plan hf:llama,hiden_size=64 --base width=512": "Did you mean 'hidden_size'",
    "plan hf:meta-llama/Llama-3-8B --base width=512": "nothing is downloaded",
    "plan nowhere.json --base width=512": "nowhere.json",
    "plan no_such_module:build --base width=512": "no module no_such_module",
    "plan llama-3-8b --base width=512,width=256": "width is given twice",
    "plan llama-3-8b --base width:512": "unknown target 'width:512'",
    "plan llama-3-8b --base width=big": "Write it like width=512,depth=8",
    "plan llama-3-8b --base width=0": "width=0",
    "plan llama-3-8b --base widht=512": "Did you mean 'width'",
    "plan llama-3-8b --base mistral-7b --json --markdown": "exclude each other",
    "plan llama-3-8b --base width=512 --optimizer adamm": "Did you mean 'adam",
    "plan llama-3-8b --base width=512 --multipliers folded": "folded",
    "plan llama-3-8b --base width=512 --role hidden": "is not pattern=role",
    "plan llama-3-8b --base width=512 --role *.x=hidden": "matches no parameter",
    "plan llama-3-8b --base width=512 --ignore scale": "scale",
    "plan llama-3-8b --base width=512 --explain model.norm": "Did you mean 'model.norm.weight'",
    "plan hf:mamba --base width=512": "not understood",
    "plan gpt:kvr_5 --base width=64": "Did you mean 'kvr_",
    "check --vary n_kv_heads=12": "A slope needs at least two",
    "check --vary n_kv_heads": "Write it like n_kv_heads=4,2,1",
    "check --vary n_kv_heads=12,x": "Write it like n_kv_heads=4,2,1",
    "check --vary widht=64,128": "Did you mean 'width'",
    "check --vary width=64,0": "width=0 is not a positive integer",
    "check gpt:chek --workers 0": "Did you mean 'check'",
    "check --vary n_kv_heads=12,5 --workers 0": "Choose a divisor of 12",
    "check --seeds 1": "one seed gives no interval",
    "check --steps 0": "steps=0 must be at least 1",
    "check --lr -1": "lr=-1.0 must be",
    "check --base-eps 0": "eps=0.0 must be",
    "check --optimizer adamm": "Did you mean 'adam",
    "check --optimizer shampoo": "unknown optimizer for a check",
    "check --rule gqa": "Did you mean 'gqa-mup'",
    "check --tolerance 0": "tolerance=0.0 must be",
    "check --confidence 2": "confidence=2.0 must be from 0 to 1",
    "check --data pyton-stdlib --workers 0": "Did you mean 'python-stdlib'",
    "paper coordinate-check --scale gpu": "gpu",
    "train": "width, depth, n_heads missing",
    "train nowhere.toml": "nowhere.toml: No such file",
    "train --model.name cpu_64_r2": "give steps, tokens, or tokens_per_parameter",
    "train --model.name cpu_64_r2 --length.steps 2": "length.batch is missing",
    "train --modle.name cpu_64_r2": "Did you mean 'model'",
    "train --model.nam cpu_64_r2": "Did you mean 'name'",
    "train --set lr=3": "Write table.setting=value",
    "train --model.name cpu_64_r2 --length.steps 2 --length.batch 2 --optimizer.lr "
    "-1": "optimizer.lr = -1.0",
    "train --model.name cpu_64_r2 --length.steps 2 --length.batch 2 --shard dpp": "Did you mean "
    "'ddp'",
    "train --model.name cpu_64_r2 --length.steps 2 --length.batch 2 --shard ddp": "torchrun",
    "train --model.name cpu_64_r2 --length.steps 2 --length.batch 2 --rule mupp": "Did you mean "
    "'mup'",
    "tabel": "tabel",
    "paper expected-norm": "Did you mean 'expected-norms'",
    "paper gqa-ablatoin": "Did you mean 'gqa-ablation'",
    "paper depth --scale gpu --dry-run": "gpu",
    "paper claims --results nowhere": "nowhere is not a folder",
    "paper expected-norms --width 100": "r=3 does not divide heads × head_dim = 100",
    "paper expected-norms --draws 1": "at least 2",
    "paper expected-norms --seed -1": "seed=-1 is out of range",
    "paper expected-norms --seed 99999999999999999999": "is out of range",
    "paper expected-norms --draws many": "many",
    "paper expected-norms --repetitions 1;2": "Write it like 1,2,4",
    "paper expected-norms --repetitions 2,2": "has a duplicate",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_message_and_status_2(line, capsys, monkeypatch, tmp_path):
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)  # a check of another day in ./runs would be another mistake
    status, out, err = run(capsys, *line.split())
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert MISTAKES[line] in err
    assert "Traceback" not in err


def mupscale(*arguments: str, **settings) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "mupscale", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **settings,
    )


def test_the_module_runs_as_the_command_does():
    assert mupscale("--version").stdout.strip() == __import__("mupscale").__version__
    assert mupscale("derive", "nothing").returncode == 2


def test_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-m", "mupscale", "table"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert result.stderr == ""


def test_a_missing_extra_is_named_with_the_line_that_installs_it(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None; from mupscale.cli import main\n"
        "sys.exit(main(['paper', 'expected-norms', '--draws', '2', '--width', '12', '--output', "
        f"{str(tmp_path)!r}]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "pip install 'mupscale[report]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_output_that_cannot_be_written_has_its_own_status(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    status, _, err = run(
        capsys,
        "paper",
        "expected-norms",
        "--draws",
        "2",
        "--width",
        "12",
        "--output",
        str(tmp_path / "file" / "x"),
    )
    assert status == 4
    assert "could not write" in err


def test_the_demo_goes_the_whole_way_and_again_at_once(tmp_path, capsys, monkeypatch):
    """In small: two values of r and two rates."""
    small = {"steps": 4, "batch": 2, "warmup": 1}
    monkeypatch.setattr("mupscale.cli.demo.KV_HEADS", (12, 1))
    monkeypatch.setattr("mupscale.cli.demo.SEEDS", 2)
    monkeypatch.setattr("mupscale.cli.demo.STEPS", 1)
    monkeypatch.setattr("mupscale.studies.quick.DEMO", DEMO | {"seeds": [42, 43], "length": small})
    status, out, err = run(capsys, "demo", "--output", str(tmp_path), "--workers", "0")
    assert status == 0, err
    assert "2n/(1 + √r)" in out
    assert re.search(r"^rule +verdict +query +key +value +runs$", out, re.MULTILINE)
    assert re.search(r"^mup +\S+( +[+-]\d\.\d\d){3} +4$", out, re.MULTILINE)
    assert "Recipe for llama-3-8b, from the study demo" in out
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    kept = json.loads((tmp_path / "recipe.json").read_text(encoding="utf-8"))
    monkeypatch.setattr("mupscale.checks.check.run_probe", None)
    monkeypatch.setattr("mupscale.studies.study.train", None)
    status, out, _ = run(capsys, "demo", "--output", str(tmp_path), "--workers", "0", "--json")
    data = json.loads(out)
    assert set(data) == {"table", "checks", "cells", "recipe", "report"}
    assert data["recipe"] == kept
