"""Ray's own simulation of a cluster: nodes with their own processes, on this machine."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

NODE = {"object_store_memory": 80 << 20}
# A node that is lost is noticed in seconds, not in a quarter of a minute.
QUICK = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 2,
}


@contextmanager
def two_nodes(cpus: int) -> Generator[Any]:
    """A head with one CPU and a second node with `cpus`."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK, **NODE}
        simulated = Cluster(initialize_head=True, head_node_args=head)
        simulated.add_node(num_cpus=cpus, **NODE)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # starting a node replaces a handler
    try:
        yield simulated
    finally:
        ray.shutdown()
        simulated.shutdown()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
