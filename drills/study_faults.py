"""Kill a study at random moments, run it again, and compare it with an undisturbed one.

    python drills/study_faults.py [KILLS]

Each kill is a SIGKILL of a worker, of the driver, or of the driver and all its workers at once. The
study is then run again, as a user would, until it ends. Two kinds of studies alternate: an adaptive
search with a function that takes a fifth of a second, on two cells, and a grid of real training
runs of a tiny model, which resume from their checkpoints.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from mupscale.studies import Study, StudyConfig

FUNCTION = """
import math, time

def train(trial):
    x = math.log2(trial.lr)
    for step in range(1, 11):
        trial.report(step, 4 - 0.15 * step + 0.05 * (x + 6.2) ** 2, steps=10)
        time.sleep(0.02)
    noise = 0.005 * math.sin(50 * x + trial.seed)
    return {"loss": 2 + 0.05 * (x + 6.2) ** 2 + noise, "tokens": 1000}
"""
COMMON = {"name": "faults", "seeds": [1, 2, 3], "engine": {"workers": 2}}
STUDIES = {
    "function": {
        "rules": ["sp"],
        "vary": {"width": [16, 32]},
        "space": {"lr": ["2^-8", "2^-4"]},
        "trainer": {"function": "fault_trainer:train"},
    },
    "training": {
        "rules": ["gqa-mup"],
        "vary": {"n_kv_heads": [2, 1]},
        "space": {"lr": ["2^-8", "2^-6"]},
        "search": {"method": "grid", "step": 1.0},
        "model": {"width": 16, "depth": 1, "n_heads": 2, "vocabulary": 256, "context": 32},
        "data": {"sequence": 32},
        "length": {"steps": 60, "batch": 4},
        "record": {"eval_batches": 1, "checkpoint_every": 5},
    },
}
KINDS = ("worker", "driver", "both")


def begun(folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder.parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "mupscale", "sweep", str(folder)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def outcome(folder: Path) -> list[dict[str, object]]:
    """Everything except times and attempts."""
    apart = ("began", "seconds", "attempts")
    return [
        {k: v for k, v in t.to_dict().items() if k not in apart} for t in Study.open(folder).trials
    ]


def in_database(folder: Path) -> Counter[str]:
    with sqlite3.connect(folder / "study.db") as database:
        rows = database.execute("SELECT value_json FROM trial_user_attributes WHERE key = 'trial'")
        return Counter(json.loads(value) for (value,) in rows)


def workers_of(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        children = psutil.Process(driver.pid).children(recursive=True)
        return [
            child for child in children if "mupscale.engines.worker" in " ".join(child.cmdline())
        ]
    except psutil.NoSuchProcess:
        return []


def kill(kind: str, driver: subprocess.Popen[bytes], chance: random.Random) -> None:
    victims = workers_of(driver)
    if kind == "worker":
        victims = chance.sample(victims, 1) if victims else []
    if kind in ("driver", "both"):
        driver.send_signal(signal.SIGKILL)
    if kind in ("worker", "both"):
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()


def main(kills: str = "100") -> None:
    chance = random.Random(0)
    counts: dict[tuple[str, str], Counter[str]] = {}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "fault_trainer.py").write_text(FUNCTION, encoding="utf-8")
        os.chdir(folder)
        sys.path.insert(0, home)
        undisturbed, seconds = {}, {}
        for name, values in STUDIES.items():
            Study.create(StudyConfig.from_dict(COMMON | values), folder / name)
            began = time.monotonic()
            assert begun(folder / name).wait() == 0
            undisturbed[name], seconds[name] = outcome(folder / name), time.monotonic() - began
        for number in range(int(kills)):
            name = "training" if number % 4 == 3 else "function"
            kind = KINDS[number % 3]
            count = counts.setdefault((name, kind), Counter())
            study = folder / f"{name}-{number}"
            Study.create(StudyConfig.from_dict(COMMON | STUDIES[name]), study)
            disturb(study, kind, seconds[name], chance, count)
            judge(study, undisturbed[name], count)
    report(counts, undisturbed)
    if any(count["lost"] or count["twice"] or count["differ"] for count in counts.values()):
        sys.exit(1)


def disturb(
    study: Path, kind: str, seconds: float, chance: random.Random, count: Counter[str]
) -> None:
    driver = begun(study)
    time.sleep(chance.uniform(0.3, 1.0) * seconds)
    running = driver.poll() is None
    kill(kind, driver, chance)
    count["kills"] += running
    count["before it ended"] += running and (study / "records.jsonl").exists()
    status = driver.wait()
    for _ in range(5):
        if status == 0:
            return
        status = begun(study).wait()
    count["did not end"] += 1


def judge(study: Path, expected: list[dict[str, object]], count: Counter[str]) -> None:
    found = outcome(study)
    database = in_database(study)
    keys = Counter(f"{row['cell']}/{row['number']:04d}" for row in found)
    count["lost"] += len(expected) - len(found)
    count["twice"] += sum(n > 1 for n in (keys | database).values())
    count["differ"] += found != expected
    count["database differs"] += database != keys
    count["studies"] += 1


def report(
    counts: dict[tuple[str, str], Counter[str]], undisturbed: dict[str, list[dict[str, object]]]
) -> None:
    sizes = ", ".join(f"{name}: {len(rows)} trials" for name, rows in undisturbed.items())
    print(f"studies ({sizes}), killed at a random moment and run again\n")
    columns = (
        "studies", "kills", "before it ended", "did not end", "lost", "twice", "differ", "database "
                                                                                         "differs",
    )  # fmt: skip
    print(f"{'study':10s} {'killed':8s} " + "  ".join(columns))
    for (name, kind), count in sorted(counts.items()):
        print(
            f"{name:10s} {kind:8s} "
            + "  ".join(str(count[column]).rjust(len(column)) for column in columns)
        )
    print(
        "\nlost, twice: trials; differ: studies whose final records are not equal, digit for "
        "digit, to those of the "
        "undisturbed one"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
