"""What a study costs beyond its trials: empty trials, compared with plain Optuna and Ray Tune, and
many of them.

    python benchmarks/study_overhead.py

The cost per trial is the extra time of many trials over a few, divided by the number of extra
trials, so that starting and ending cancel. Every variant proposes log-uniform learning rates, runs
on two processes of this machine and keeps results on disk: ours in records (fsync) and SQLite,
Optuna in SQLite, Ray Tune in its own files. Ray Tune is skipped where it is not installed (pip
install 'ray[tune]').

The second table is the driver alone: 1,000 simulated workers whose trials take no time. It shows
the cost of a trial after 100, 1,000 and 10,000 others.

    python benchmarks/study_overhead.py --reopen 10000

measures how long a finished study of this many trials takes to open: until its first report, and
until it is closed, with its Optuna database complete and with the database deleted.
"""

import io
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from mupscale.engines import Local, Outcome
from mupscale.studies import Snapshot, Study, StudyConfig

FEW, MANY = 20, 1020
FEW_OF_TUNE, MANY_OF_TUNE = 4, 24
"""Ray Tune starts a process for each trial, and takes more than a second over it."""
REPEATS = 3
WORKERS = 2
AT = (100, 1_000, 10_000)


def config(trials: int) -> StudyConfig:
    return StudyConfig.from_dict(
        {
            "name": "nothing",
            "rules": ["sp"],
            "seeds": [1],
            "space": {"lr": ["2^-8", "2^-4"]},
            "search": {"method": "random", "trials": trials},
            "trainer": {"function": "nothing_trainer:train"},
        }
    )


def ours(trials: int, folder: Path) -> None:
    Study.create(config(trials), folder / "ours").run(engine=Local(workers=WORKERS))


def optuna_alone(trials: int, folder: Path) -> None:
    """In parallel as its documentation recommends: processes that share a database."""
    code = f"""
        import optuna
        from optuna.study import MaxTrialsCallback
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.load_study(study_name="s", storage="sqlite:///{folder}/optuna.db",
                                  sampler=optuna.samplers.RandomSampler())
        def objective(trial):
            return trial.suggest_float("lr", 2**-8, 2**-4, log=True)
        study.optimize(objective, n_trials={trials // WORKERS})
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study(study_name="s", storage=f"sqlite:///{folder}/optuna.db")
    processes = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)]) for _ in range(WORKERS)
    ]
    for process in processes:
        assert process.wait() == 0


def ray_tune(trials: int, folder: Path) -> None:
    from ray import tune

    tuner = tune.Tuner(
        tune.with_resources(lambda settings: {"loss": settings["lr"]}, {"cpu": 1}),
        param_space={"lr": tune.loguniform(2**-8, 2**-4)},
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=WORKERS),
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0),
    )
    tuner.fit()


def cost(run: Callable[[int, Path], None], few: int, many: int, repeats: int) -> float:
    """Milliseconds per trial, from the fastest of several runs of each number."""
    least = dict.fromkeys((few, many), float("inf"))
    for _ in range(repeats):
        for trials in least:
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                run(trials, Path(folder))
                least[trials] = min(least[trials], time.perf_counter() - began)
    return 1000 * (least[many] - least[few]) / (many - few)


class Simulated:
    """An engine whose trials end immediately, in any order."""

    def __init__(self, workers: int) -> None:
        self.capacity = workers
        self._jobs: list[str] = []
        self._random = random.Random(0)

    @contextmanager
    def session(self, function: Callable[[Any], Any]) -> Generator["Simulated"]:
        yield self

    def submit(self, job: str, payload: Any) -> None:
        self._jobs.append(job)

    def finished(self, timeout: float | None = None) -> list[Outcome]:
        count = self._random.randint(1, min(len(self._jobs), self.capacity))
        ended, self._jobs = self._jobs[:count], self._jobs[count:]
        self._random.shuffle(ended)
        curve = [[step, 3.0] for step in range(1, 33)]
        result = {
            "status": "finished",
            "loss": 2.5,
            "step": 32,
            "steps": 32,
            "tokens": 1000,
            "curve": curve,
        }
        return [Outcome(job, dict(result)) for job in ended]


def growth() -> None:
    moments: list[float] = []

    def report(snapshot: Snapshot) -> None:
        moments.append(time.perf_counter())

    around = 50
    with tempfile.TemporaryDirectory() as folder:
        Study.create(config(AT[-1] + around), Path(folder) / "s").run(
            engine=Simulated(1000), report=report
        )
    costs = [1000 * (moments[at + around] - moments[at - around]) / (2 * around) for at in AT]
    print("\ndriver alone, 1,000 simulated workers, random search: milliseconds a trial")
    for at, milliseconds in zip(AT, costs, strict=True):
        print(f"  around trial {at:6,}: {milliseconds:.2f}")
    print(f"  last over first: {costs[-1] / costs[0]:.2f} (aim: at most 1.5); all "
          f"{AT[-1] + around:,}: "
          f"{moments[-1] - moments[0]:.1f} s")  # fmt: skip


def reopening(trials: int) -> None:
    """Wall and CPU seconds, the latter because they do not depend on what else the machine does."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "nothing_trainer.py").write_text("def train(trial): return 1.0\n")
        sys.path.insert(0, home)
        study = Study.create(config(trials), Path(home) / "s")
        for what in ("first run", "reopened, database complete", "reopened, database deleted"):
            if what.endswith("deleted"):
                (study.folder / "study.db").unlink()
            moments = [(time.perf_counter(), time.process_time())]

            def report(_: Snapshot, moments: list[tuple[float, float]] = moments) -> None:
                moments.append((time.perf_counter(), time.process_time()))

            study.run(engine=Simulated(1000), report=report)
            end = (time.perf_counter(), time.process_time())
            first, last = (
                "{:.2f} s ({:.2f} s CPU)".format(
                    *(b - a for a, b in zip(moments[0], at, strict=True))
                )
                for at in (moments[1], end)
            )
            print(f"{what:28s} first report after {first}, closed after {last}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--reopen"]:
        reopening(int(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "nothing_trainer.py").write_text(
            "def train(trial):\n    return 1.0\n", encoding="utf-8"
        )
        os.chdir(home)
        sys.path.insert(0, home)
        os.environ["OMP_NUM_THREADS"] = "1"
        variants: dict[str, tuple[Callable[[int, Path], None], int, int, int]] = {
            "mupscale, two workers": (ours, FEW, MANY, REPEATS),
            "Optuna, two processes": (optuna_alone, FEW, MANY, REPEATS),
        }
        try:
            import ray
            from ray import tune  # noqa: F401
        except ImportError:
            print("Ray Tune is not installed: left out")
        else:
            ray.init(
                num_cpus=WORKERS,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
            )
            variants["Ray Tune, two at once"] = (ray_tune, FEW_OF_TUNE, MANY_OF_TUNE, 1)
        print(
            "milliseconds a trial that does nothing, by runs of few and of many trials, the least "
            "of some"
        )
        for name, (run, few, many, repeats) in variants.items():
            with redirect_stdout(io.StringIO()):
                milliseconds = cost(run, few, many, repeats)
            print(
                f"  {name:24s} {milliseconds:8.1f}   {few} and {many} trials, {repeats} of each",
                flush=True,
            )
        growth()
        os.chdir("/")


if __name__ == "__main__":
    main()
