"""Every example runs as it is, and its model learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAUNCHER = {"fsdp2.py": TORCHRUN}
# inductor's C++ takes longer than all other examples together
OPTIONS = {"compiled_loop.py": ["--backend", "aot_eager"]}
LOSS = re.compile(r"\bloss'?:? '?(\d+\.\d+)")


def run(name: str) -> str:
    """What an example prints."""
    script = [str(EXAMPLES / name), *OPTIONS.get(name, [])]
    command = [sys.executable, *LAUNCHER.get(name, []), *script]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        output, errors = process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        # torchrun then ends its ranks, which would outlive it if it were killed
        process.terminate()
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs_and_its_loss_falls(name):
    first, *_, last = map(float, LOSS.findall(run(name)))
    assert last < first - 1


def test_every_example_is_listed_in_the_readme():
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f"[{path.name}]({path.name})" in readme
