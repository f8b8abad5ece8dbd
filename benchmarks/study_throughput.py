"""Two workers of a study compared with two bare training processes, on the same trials,
alternating.

    python benchmarks/study_throughput.py [ROUNDS]

The bare processes are what you would write by hand: each calls `mupscale.training.run` on its half
of the trials, one after the other. Both start from scratch, imports included. A bare process does
not search, record or keep anything else.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mupscale.studies import Study, StudyConfig
from mupscale.studies.quick import QUICK

TRIALS = 8
BARE = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from mupscale.training import RunConfig, run
for number, values in enumerate(json.loads(Path(sys.argv[1]).read_text())):
    run(RunConfig.from_dict(values), Path(sys.argv[1]).with_suffix("") / str(number))
"""


def config() -> StudyConfig:
    return StudyConfig.from_dict(
        QUICK | {"seeds": [1], "search": {"method": "random", "trials": TRIALS}}
    )


def study(folder: Path) -> float:
    began = time.perf_counter()
    code = f"""
from pathlib import Path
from mupscale.engines import Local
from mupscale.studies import Study
Study.open({str(folder / "s")!r}).run(engine=Local(workers=2))
"""
    Study.create(config(), folder / "s")
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def bare(folder: Path) -> float:
    import json

    chosen = config()
    cell = chosen.cells()[0]
    from mupscale.studies.searching import proposals

    runs = [
        chosen.run_config(cell, point.params, point.seed).to_dict()
        for point in proposals(chosen, cell.space, [])
    ]
    began = time.perf_counter()
    processes = []
    for half in (0, 1):
        path = folder / f"half{half}.json"
        path.write_text(json.dumps(runs[half::2]), encoding="utf-8")
        processes.append(subprocess.Popen([sys.executable, "-c", BARE, str(path)]))
    for process in processes:
        assert process.wait() == 0
    return time.perf_counter() - began


def main(rounds: str = "3") -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    print(
        f"{TRIALS} trials of the quick study on two cores; seconds\n\nround   bare  study  "
        "throughput of the study"
    )
    ratios = []
    for number in range(int(rounds)):
        seconds = {}
        for name, run in (
            (("bare", bare), ("study", study)) if number % 2 else (("study", study), ("bare", bare))
        ):
            with tempfile.TemporaryDirectory() as folder:
                seconds[name] = run(Path(folder))
        ratios.append(seconds["bare"] / seconds["study"])
        print(
            f"{number + 1:5d} {seconds['bare']:6.1f} {seconds['study']:6.1f} {ratios[-1]:10.3f}",
            flush=True,
        )
    print(f"\nmedian {statistics.median(ratios):.3f} of two bare processes (aim: at least 0.95)")


if __name__ == "__main__":
    main(*sys.argv[1:])
