"""What importing costs: mupscale on top of torch, and the first answer of the command line.

    python benchmarks/imports.py

Each line is a separate process, and the variants alternate. The fastest run of each counts, since
the others were disturbed.
"""

import subprocess
import sys
import time

REPEATS = 9
VARIANTS = {
    "python alone": "pass",
    "import torch": "import torch",
    "import torch, mupscale": "import torch, mupscale",
    "import torch, mupscale and its rooms": "import torch, mupscale.theory, mupscale.norms",
    "mupscale --help": "from mupscale.cli import main; main(['--help'])",
    "mupscale table": "from mupscale.cli import main; main(['table'])",
}


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def loads_torch(code: str) -> bool:
    check = f"{code}\nimport sys; sys.stderr.write(str('torch' in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", check], check=True, capture_output=True, text=True
    )
    return result.stderr.endswith("True")


def main() -> None:
    for code in VARIANTS.values():
        seconds(code)
    times = {name: [] for name in VARIANTS}
    for _ in range(REPEATS):
        for name, code in VARIANTS.items():
            times[name].append(seconds(code))
    print(f"Python {sys.version.split()[0]}, the fastest of {REPEATS} interleaved runs")
    print(f"{'':<38}{'seconds':>8}  loads torch")
    for name, code in VARIANTS.items():
        print(f"{name:<38}{min(times[name]):>8.3f}  {'yes' if loads_torch(code) else 'no'}")
    beyond = min(times["import torch, mupscale"]) - min(times["import torch"])
    print(
        f"\nimport mupscale beyond import torch: {beyond:.3f} s (limit 0.3 s): "
        f"{'yes' if beyond < 0.3 else 'NO'}"
    )
    help_is_light = not loads_torch(VARIANTS["mupscale --help"])
    print(f"mupscale --help does not import torch: {'yes' if help_is_light else 'NO'}")


if __name__ == "__main__":
    main()
