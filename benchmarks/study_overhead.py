"""What a study costs beyond its trials: trials that do nothing, beside plain Optuna and Ray Tune, and many of them.

    python benchmarks/study_overhead.py

The cost of a trial is what many trials take beyond a few, divided by how many more they are, so that starting and
ending cancel. Every variant proposes log-uniform rates, runs on two processes of this machine and keeps results on
disk: ours in records (fsync) and SQLite, Optuna in SQLite, Ray Tune in its own files. Ray Tune is left out unless it is
installed (pip install 'ray[tune]').

The second table is the driver alone: 1,000 simulated workers, whose trials take no time. What does a trial cost when
there are 100, 1,000 and 10,000 before it?
"""

import os
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mupscale.engines import Local, Outcome
from mupscale.studies import Snapshot, Study, StudyConfig

FEW, MANY = 20, 220
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
    """As its documentation does it in parallel: processes that share a database."""
    code = f"""
        import optuna
        from optuna.study import MaxTrialsCallback
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.load_study(study_name="s", storage="sqlite:///{folder}/optuna.db",
                                  sampler=optuna.samplers.RandomSampler())
        study.optimize(lambda trial: trial.suggest_float("lr", 2**-8, 2**-4, log=True), n_trials={trials // WORKERS})
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study(study_name="s", storage=f"sqlite:///{folder}/optuna.db")
    processes = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)]) for _ in range(WORKERS)]
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


def cost(run: Callable[[int, Path], None]) -> float:
    """Milliseconds a trial; the least of several."""
    best = float("inf")
    for _ in range(REPEATS):
        seconds = []
        for trials in (FEW, MANY):
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                run(trials, Path(folder))
                seconds.append(time.perf_counter() - began)
        best = min(best, (seconds[1] - seconds[0]) / (MANY - FEW))
    return 1000 * best


class Simulated:
    """An engine whose trials are over at once, in any order."""

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
        result = {"status": "finished", "loss": 2.5, "step": 32, "steps": 32, "tokens": 1000, "curve": curve}
        return [Outcome(job, dict(result)) for job in ended]


def growth() -> None:
    moments: list[float] = []

    def report(snapshot: Snapshot) -> None:
        moments.append(time.perf_counter())

    around = 50
    with tempfile.TemporaryDirectory() as folder:
        Study.create(config(AT[-1] + around), Path(folder) / "s").run(engine=Simulated(1000), report=report)
    costs = [1000 * (moments[at + around] - moments[at - around]) / (2 * around) for at in AT]
    print("\ndriver alone, 1,000 simulated workers, random search: milliseconds a trial")
    for at, milliseconds in zip(AT, costs, strict=True):
        print(f"  around trial {at:6,}: {milliseconds:.2f}")
    print(f"  last over first: {costs[-1] / costs[0]:.2f} (aim: at most 1.5); all {AT[-1] + around:,}: "
          f"{moments[-1] - moments[0]:.1f} s")  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "nothing_trainer.py").write_text("def train(trial):\n    return 1.0\n", encoding="utf-8")
        os.chdir(home)
        sys.path.insert(0, home)
        os.environ["OMP_NUM_THREADS"] = "1"
        variants: dict[str, Callable[[int, Path], None]] = {"mupscale, two workers": ours}
        variants["Optuna, two processes"] = optuna_alone
        try:
            import ray
            from ray import tune  # noqa: F401
        except ImportError:
            print("Ray Tune is not installed: left out")
        else:
            ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
            variants["Ray Tune, two at once"] = ray_tune
        print(f"milliseconds a trial that does nothing ({FEW} and {MANY} trials, the least of {REPEATS})")
        for name, run in variants.items():
            print(f"  {name:24s} {cost(run):8.1f}", flush=True)
        growth()
        os.chdir("/")


if __name__ == "__main__":
    main()
