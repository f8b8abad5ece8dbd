"""A study looks up while its trials run."""

from contextlib import contextmanager

from mupscale.engines import Local, Outcome
from mupscale.studies import Study, StudyConfig

TRAINER = "def train(trial): return 2.0 + (trial.lr - 0.01) ** 2"


class Watched:
    """An engine that notes how long a study is willing to wait for a result."""

    capacity = 1

    def __init__(self) -> None:
        self.waited: set[float | None] = set()

    @contextmanager
    def session(self, function):
        with Local(workers=0).session(function) as self.inner:
            yield self

    def submit(self, job, payload) -> None:
        self.inner.submit(job, payload)

    def finished(self, timeout: float | None = None) -> list[Outcome]:
        self.waited.add(timeout)
        return self.inner.finished(timeout)


def test_a_study_waits_for_a_second_before_it_reports_its_status_again(tmp_path, monkeypatch):
    (tmp_path / "status_trainer.py").write_text(TRAINER, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    content = {
        "name": "status",
        "rules": ["sp"],
        "seeds": [1],
        "space": {"lr": ["2^-8", "2^-4"]},
        "search": {"method": "grid", "step": 2.0},
        "trainer": {"function": "status_trainer:train"},
    }
    engine = Watched()
    study = Study.create(StudyConfig.from_dict(content), tmp_path / "s")
    assert len(study.run(engine=engine).trials) == 3
    assert engine.waited == {1.0}
