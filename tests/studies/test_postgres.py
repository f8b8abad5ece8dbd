"""A study whose Optuna database is a real PostgreSQL server."""

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from mupscale.engines import Local
from mupscale.errors import OptionError
from mupscale.studies import Study, StudyConfig
from tests.studies.postgres import PASSWORD, Server

TOY = "def train(trial):\n    return 2 + abs(trial.lr - 0.01)\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.stop()
    server.remove()


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "postgres_toy.py").write_text(TOY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


def config(url: str) -> StudyConfig:
    return StudyConfig.from_dict(
        {
            "name": "team",
            "rules": ["sp"],
            "seeds": [1, 2],
            "space": {"lr": ["2^-8", "2^-4"]},
            "search": {"method": "grid", "step": 1.0},
            "trainer": {"function": "postgres_toy:train"},
            "storage": url,
        }
    )


def test_optuna_reads_the_study_and_another_folder_may_not_write_it(
    server: Server, tmp_path: Path
) -> None:
    url = server.url.replace(f":{PASSWORD}", "")
    study = Study.create(config(url), tmp_path / "a")
    trials = study.run(engine=Local(workers=0)).trials
    found = optuna.load_study(
        study_name="team/sp", storage=url.replace("postgresql:", "postgresql+psycopg2:")
    )
    assert sorted(trial.user_attrs["trial"] for trial in found.trials) == [
        trial.key for trial in trials
    ]
    assert found.best_value == min(trial.loss for trial in trials if trial.loss is not None)
    with pytest.raises(OptionError, match="does not belong to this folder"):
        Study.create(config(url), tmp_path / "b").run(engine=Local(workers=0))
    assert not (tmp_path / "a/study.db").exists()
