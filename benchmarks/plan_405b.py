"""What planning costs at scale: Llama-3 405B on the meta device, from a base of width 2048 and
depth 8.

    python benchmarks/plan_405b.py

Each repeat is a separate process. It also measures what else such a model needs in that process:
building it on the meta device, and `mup.set_base_shapes` with `MuAdamW`, which need a base of the
same depth and run with the check of the readout's class switched off. Planning includes reading
both models, with a forward pass of each on the meta device that is followed operation by operation.
That pass is also measured by itself, and so is the pass of a small copy with weights on the CPU.
Memory is the growth of the peak since `import transformers`.
"""

import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

REPEATS = 5
LIMIT_SECONDS = 3.0
LIMIT_MEGABYTES = 1000.0

TARGET = {
    "hidden_size": 16384,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "intermediate_size": 53248,
    "vocab_size": 128256,
}
BASE = TARGET | {
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 1,
    "intermediate_size": 6656,
}

SMALL = BASE | {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 416,
    "vocab_size": 1024,
}

STAGES = {
    "transformers": "import transformers and its Llama",
    "build": "build the 405B model on meta",
    "base": "build the base on meta",
    "mupscale": "import mupscale.planning",
    "plan": "mupscale.plan",
    "groups": "plan.param_groups",
    "follow": "in the plan: follow 405B on meta",
    "copy": "follow a small copy on the CPU",
    "mup": "mup: set_base_shapes, MuAdamW",
}


class Stages:
    """Clock time, processor time and peak memory after each stage."""

    def __init__(self) -> None:
        self.measured: dict[str, tuple[float, float, float]] = {}

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        wall, busy = time.perf_counter(), time.process_time()
        result = work()
        self.measured[name] = (
            time.perf_counter() - wall,
            time.process_time() - busy,
            peak_megabytes(),
        )
        return result


def peak_megabytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def one_process() -> None:
    """Run all stages in order, and print the measurements as JSON."""
    stages = Stages()
    stages.run("transformers", import_transformers)
    model = stages.run("build", lambda: llama(TARGET))
    base = stages.run("base", lambda: llama(BASE))
    planning = stages.run("mupscale", import_planning)
    plan = stages.run("plan", lambda: planning.plan(model, base=base))
    groups = stages.run("groups", lambda: plan.param_groups(model, lr=1e-3, weight_decay=0.1))
    running, reading = import_running()
    stages.run("follow", lambda: running.trace(model, reading, "meta"))
    small = llama(SMALL, "cpu")
    stages.run("copy", lambda: running.trace(small, reading, "cpu"))
    import mup

    same_depth = llama(BASE | {"num_hidden_layers": TARGET["num_hidden_layers"]})

    def by_mup() -> None:
        mup.set_base_shapes(model, same_depth, do_assert=False)
        mup.MuAdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    stages.run("mup", by_mup)
    sizes = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tensors": len(plan.parameters),
    }
    print(json.dumps({"stages": stages.measured, **sizes, "groups": len(groups)}))


def import_transformers() -> None:
    from transformers import LlamaForCausalLM  # noqa: F401


def import_planning() -> Any:
    import mupscale.planning

    return mupscale.planning


def import_running() -> tuple[Any, Any]:
    from mupscale.reading import Reading, running

    return running, Reading()


def llama(dimensions: dict[str, int], device: str = "meta") -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device(device):
        return LlamaForCausalLM(LlamaConfig(**dimensions))


def measured() -> dict[str, Any]:
    command = [sys.executable, __file__, "--one-process"]
    return json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )


def main() -> None:
    runs = [measured() for _ in range(REPEATS)]
    stages = [run["stages"] for run in runs]
    print(
        f"Python {platform.python_version()}, torch {version('torch')}, transformers "
        f"{version('transformers')}"
    )
    print(
        f"Llama-3 405B ({runs[0]['parameters'] / 1e9:.1f} · 10⁹ parameters in {runs[0]['tensors']} "
        "tensors, "
        f"{runs[0]['groups']} groups), {REPEATS} processes\n"
    )
    print(f"{'':<36}{'fastest s':>10}{'median s':>10}{'worst s':>10}{'median CPU s':>14}")
    for stage, label in STAGES.items():
        wall, busy = ([run[stage][k] for run in stages] for k in (0, 1))
        by_clock = (min(wall), statistics.median(wall), max(wall))
        print(
            f"{label:<36}"
            + "".join(f"{t:>10.3f}" for t in by_clock)
            + f"{statistics.median(busy):>14.3f}"
        )
    print()
    for other, label in (
        ("build", "building the model on meta"),
        ("mup", "mup.set_base_shapes and MuAdamW"),
    ):
        # CPU seconds: other processes disturb them less.
        ratios = [(run["plan"][1] + run["groups"][1]) / run[other][1] for run in stages]
        print(
            f"plan and groups over {label}: {statistics.median(ratios):.2f}× (worst "
            f"{max(ratios):.2f}×)"
        )
    seconds, busy = ([run["plan"][k] + run["groups"][k] for run in stages] for k in (0, 1))
    growth = [run["groups"][2] - run["transformers"][2] for run in stages]
    verdict("plan and groups, by the clock", seconds, LIMIT_SECONDS, "s")
    verdict("plan and groups, of the processor", busy, LIMIT_SECONDS, "s")
    verdict("peak memory beyond import transformers", growth, LIMIT_MEGABYTES, "MB")


def verdict(what: str, values: list[float], limit: float, unit: str) -> None:
    middle, worst = statistics.median(values), max(values)
    kept = "yes" if worst < limit else "in the median" if middle < limit else "NO"
    print(
        f"{what}: median {middle:.2f} {unit}, worst {worst:.2f} {unit} (limit {limit:g} {unit}): "
        f"{kept}"
    )


if __name__ == "__main__":
    one_process() if "--one-process" in sys.argv else main()
