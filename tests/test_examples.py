"""The examples run as they are, and what they train learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
LAUNCHER = {
    "fsdp2.py": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
}  # torchrun
OPTIONS = {
    "compiled_loop.py": ["--backend", "aot_eager"]
}  # inductor's C++ takes longer than all the others together
LOSS = re.compile(r"\bloss'?:? '?(\d+\.\d+)")


def run(name: str) -> str:
    """What an example prints."""
    command = [
        sys.executable,
        *LAUNCHER.get(name, []),
        str(EXAMPLES / name),
        *OPTIONS.get(name, []),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        printed, complaints = process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        # torchrun then ends its ranks, which it would leave behind if it were killed
        process.terminate()
        printed, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    return printed


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs_and_its_loss_falls(name):
    first, *_, last = map(float, LOSS.findall(run(name)))
    assert last < first - 1


def test_every_example_is_listed_in_the_readme():
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f"[{path.name}]({path.name})" in readme
