"""Two ranks that share a tensor step it as one process steps the whole, and speak only if a matrix
is cut.
"""

import os
import subprocess
import sys
from pathlib import Path


def test_two_ranks_step_as_one_process_and_speak_only_if_a_matrix_is_cut(tmp_path):
    script, store = Path(__file__).with_name("two_ranks.py"), tmp_path / "store"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(store)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
