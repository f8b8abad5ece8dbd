"""Kill a run with SIGKILL at random moments and run it again: metrics and weights must equal those
of an undisturbed run, bit by bit.

    python drills/kill_and_resume.py [KILLS [STEPS]]

Each attempt is a separate process, killed a random time after a random number of steps. Then the
same config runs again in the same folder.
"""

import hashlib
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from mupscale.training import RunConfig, run

STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 600
CONFIG = RunConfig.from_dict(
    {
        "model": {"name": "cpu_32_r2"},
        "base": {"width": 16, "depth": 2},
        "length": {"steps": STEPS, "batch": 4, "accumulate": 2},
        "data": {"sequence": 32},
        "optimizer": {"lr": 0.01, "std": 0.1, "clip": 1.0},
        "record": {"checkpoint_every": 17, "eval_every": 200, "eval_batches": 2},
    }
)


def attempt(folder: Path, steps: int | None, seconds: float = 0.0) -> bool:
    """Run in a child, and kill it `seconds` after `steps` steps. Returns whether it finished."""
    lines = written(folder)
    child = os.fork()
    if child == 0:
        try:
            run(CONFIG, folder)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
    if steps is not None:
        wait_for(folder, lines + steps, child)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("an attempt failed")
    return os.WIFEXITED(status)


def wait_for(folder: Path, lines: int, child: int) -> None:
    """Wait until the metrics have this number of lines, or the child has ended."""
    while written(folder) < lines:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.002)


def written(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def digest(folder: Path) -> dict[str, str]:
    """A hash of what a finished run left behind."""
    files = [
        folder / "metrics.jsonl",
        folder / "record.json",
        *sorted((folder / "checkpoint").glob("*.safetensors")),
    ]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}


def main() -> int:
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    torch.set_num_threads(1)
    wanted, chance = int(sys.argv[1]) if len(sys.argv) > 1 else 20, random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        undisturbed, disturbed = Path(scratch, "undisturbed"), Path(scratch, "disturbed")
        assert attempt(undisturbed, None)
        kills, reached = 0, [0]
        while kills < wanted and not attempt(
            disturbed, chance.randint(1, 40), chance.uniform(0, 0.03)
        ):
            kills += 1
            reached.append(written(disturbed))
        while not attempt(disturbed, None):
            pass
        expected, found = digest(undisturbed), digest(disturbed)
        lines = (disturbed / "metrics.jsonl").read_text().count("\n")
    print(f"{kills} kills −9 over a run of {STEPS} steps; {lines} lines of metrics")
    print(f"lines at each kill: {', '.join(str(count) for count in reached[1:])}\n")
    for name in expected | found:
        same = expected.get(name) == found.get(name)
        print(
            f"{name:<32}{expected.get(name)}  {found.get(name)}  {'same' if same else 'DIFFERENT'}"
        )
    return 0 if expected == found and kills == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
