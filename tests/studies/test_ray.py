"""A study on Ray, on simulated nodes: the same numbers as on local workers, also when a node is
lost.
"""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mupscale.engines import Local, Ray
from mupscale.studies import Snapshot, Study, StudyConfig
from tests.simulated_ray import NODE, two_nodes

ray = pytest.importorskip("ray")
pytestmark = [
    # Ray leaves a few files and processes for the collector when it shuts down.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture(scope="module")
def nodes():
    with two_nodes(cpus=1) as simulated:
        yield simulated


def study(folder: Path, **changes: Any) -> Study:
    """Real training runs of a tiny model."""
    values: dict[str, Any] = {
        "name": "ray",
        "rules": ["mup", "gqa-mup"],
        "vary": {"n_kv_heads": [2, 1]},
        "seeds": [1],
        "space": {"lr": ["2^-8", "2^-6"]},
        "search": {"method": "grid", "step": 1.0},
        "model": {"width": 16, "depth": 1, "n_heads": 2, "vocabulary": 256, "context": 32},
        "data": {"sequence": 32},
        "length": {"steps": 40, "batch": 4},
        "record": {"eval_batches": 1, "checkpoint_every": 5},
    }
    return Study.create(StudyConfig.from_dict(values | changes), folder)


def results(snapshot: Snapshot) -> list[dict[str, Any]]:
    apart = ("began", "seconds", "attempts")
    return [
        {k: v for k, v in trial.to_dict().items() if k not in apart} for trial in snapshot.trials
    ]


def test_it_gives_the_numbers_that_local_workers_give_and_survives_the_loss_of_a_node(
    nodes: Any, tmp_path: Path
) -> None:
    expected = results(study(tmp_path / "local").run(engine=Local(workers=0)))
    assert len(expected) == 12
    extra = nodes.add_node(num_cpus=1, **NODE)
    lost = threading.Event()

    def lose(snapshot: Snapshot) -> None:
        """In the middle, while it has work."""
        if len(snapshot.trials) == 4 and not lost.is_set():
            lost.set()
            nodes.remove_node(extra, allow_graceful=False)

    remarks: list[str] = []
    chosen = study(tmp_path / "ray", engine={"name": "ray", "address": nodes.address})
    began = time.monotonic()
    snapshot = chosen.run(report=lose, remark=remarks.append)
    assert time.monotonic() - began < 300
    assert lost.is_set()
    assert results(snapshot) == expected
    assert not remarks
    assert isinstance(chosen.engine, Ray)  # by name, from the config
