"""What running a job costs beyond the job itself: empty jobs on two workers, ours and the standard
library's pool.

    python benchmarks/engine_overhead.py

Start-up is the time of a run with one job on one worker. The cost per job is the extra time of many
jobs over a few, divided by the number of extra jobs, so that starting and ending cancel. The
variants alternate, and the fastest run of each counts. The ledger writes every result to disk, with
fsync, before it is announced.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from mupscale.engines import Local, run_jobs

REPEATS = 5
FEW, MANY = 10, 2010
WORKERS = 2


def nothing(payload: int) -> int:
    return payload


def ours(jobs: dict[str, int], workers: int) -> None:
    run_jobs(nothing, jobs, engine=Local(workers=workers))


def ours_with_ledger(jobs: dict[str, int], workers: int) -> None:
    with on_disk() as folder:
        run_jobs(nothing, jobs, engine=Local(workers=workers), ledger=Path(folder) / "jobs.jsonl")


def lines_alone(jobs: dict[str, int], workers: int) -> None:
    """Writing the same lines to disk, without any job."""
    with on_disk() as folder, (Path(folder) / "lines").open("wb", buffering=0) as file:
        for job, payload in jobs.items():
            file.write(f'{{"job": "{job}", "result": {payload}}}\n'.encode())
            os.fsync(file.fileno())


def on_disk() -> tempfile.TemporaryDirectory[str]:
    """Here, because /tmp may be memory."""
    return tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".engine_overhead_")


def ours_here(jobs: dict[str, int], workers: int) -> None:
    run_jobs(nothing, jobs, engine=Local(workers=0))


def pool(start: str) -> Callable[[dict[str, int], int], None]:
    def run(jobs: dict[str, int], workers: int) -> None:
        with ProcessPoolExecutor(workers, mp_context=get_context(start)) as executor:
            futures = {job: executor.submit(nothing, payload) for job, payload in jobs.items()}
            for future in futures.values():
                future.result()

    return run


VARIANTS: dict[str, Callable[[dict[str, int], int], None]] = {
    "Local": ours,
    "Local, with a ledger": ours_with_ledger,
    "the ledger's lines alone, with fsync": lines_alone,
    "Local(workers=0), in this process": ours_here,
    "ProcessPoolExecutor, spawn": pool("spawn"),
    "ProcessPoolExecutor, fork": pool("fork"),
}


def seconds(run: Callable[[dict[str, int], int], None], count: int, workers: int) -> float:
    jobs = {str(n): n for n in range(count)}
    start = time.perf_counter()
    run(jobs, workers)
    return time.perf_counter() - start


def main() -> None:
    sizes = {"start": (1, 1), "few": (FEW, WORKERS), "many": (MANY, WORKERS)}
    times = {name: {size: float("inf") for size in sizes} for name in VARIANTS}
    for _ in range(REPEATS):
        for name, run in VARIANTS.items():
            for size, (count, workers) in sizes.items():
                times[name][size] = min(times[name][size], seconds(run, count, workers))
    cost = {name: (t["many"] - t["few"]) / (MANY - FEW) * 1e6 for name, t in times.items()}
    reference = cost["ProcessPoolExecutor, spawn"]
    print(
        f"Python {sys.version.split()[0]}, {WORKERS} workers, empty jobs, the fastest of {REPEATS} "
        "interleaved runs"
    )
    print(f"{'':<36}{'a job, µs':>10}{'ratio':>8}{'one job from start to end, s':>31}")
    for name in VARIANTS:
        print(
            f"{name:<36}{cost[name]:>10.0f}{cost[name] / reference:>8.2f}"
            f"{times[name]['start']:>31.3f}"
        )
    print(
        "\nratio: to ProcessPoolExecutor with spawn, which like Local starts clean processes; fork "
        "is unsafe with torch"
    )


if __name__ == "__main__":
    main()
