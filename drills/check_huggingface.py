"""Does the coordinate check of Hugging Face models agree with theory, over r (query heads per
key/value head) and over the width?

    python drills/check_huggingface.py [FOLDER]

Llama, Qwen3 (norms on queries and keys) and Gemma 2 (norms after each branch, tied embeddings times
√width). Over r, only keys and values must fail under `mup`. Over the width, all hidden matrices
must fail under `sp`. Under `gqa-mup` everything must pass. If a folder is given, the runs are kept
there and not repeated. Exits with 1 if a verdict differs, or if a slope of keys or values over r is
further than 0.1 from theory's.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import transformers

from mupscale.analysis import Verdict
from mupscale.checks import CheckResult, Finding, Setup, coordinate_check
from mupscale.targets.families import Family

ARCHITECTURES = {"Llama": "hf:llama", "Qwen3": "hf:qwen3", "Gemma 2": "hf:gemma2"}
# Many small heads: an update of keys is the less coherent the more heads it is of, which levels off
# with their number. With 12 heads of 32 and r = 3 that gives keys of Llama a slope of −0.07 over
# the width, inconclusive at 8 seeds.
SHAPE = (
    "hidden_size=384,intermediate_size=768,num_hidden_layers=2,num_attention_heads=24,head_dim=16,"
    "vocab_size=256"
)
# At 2^-13 a few steps move the weights by a fifth: gradients then turn, the more the larger a rate
# is.
SETUP = Setup(lr=2**-16, batch=1, sequence=256)
STEPS = 3
SHARED = ("key", "value")
HIDDEN = ("query", "key", "value", "attention_output", "mlp_in", "mlp_out")


@dataclass(frozen=True)
class Case:
    """A check and its expected verdict. `fails` are the roles whose update must fail."""

    name: str
    values: tuple[int, ...]
    kv_heads: int
    rule: str
    seeds: int
    verdict: Verdict
    fails: tuple[str, ...] = ()


HEADS, WIDTHS = (24, 12, 6, 3), (192, 384, 768)
CASES = (
    Case("n_kv_heads", HEADS, 24, "mup", 4, "fail", SHARED),
    Case("n_kv_heads", HEADS, 24, "gqa-mup", 8, "pass"),
    Case("width", WIDTHS, 12, "sp", 5, "fail", HIDDEN),
    Case("width", WIDTHS, 12, "gqa-mup", 12, "pass"),
)
COLUMNS = (9, 7, 9, 14, 7, 6, 38, 27, 8, 0)


def check(kind: str, case: Case, folder: Path) -> CheckResult:
    family = Family(f"{kind},{SHAPE},num_key_value_heads={case.kv_heads}")
    place = folder / f"{kind.removeprefix('hf:')}-{case.name}-{case.rule}"
    return coordinate_check(
        family,
        {case.name: case.values},
        rule=case.rule,
        seeds=case.seeds,
        steps=STEPS,
        setup=SETUP,
        folder=place,
    )


def shown(result: CheckResult) -> list[Finding]:
    """Over r the updates of keys and values; over the width the finding furthest from flat."""
    if result.quantity == "r":
        return [result.finding("update", role) for role in SHARED]
    return [max(result.judged, key=lambda one: max(-one.flatness.low, one.flatness.high))]


def faults(result: CheckResult, case: Case) -> Iterator[str]:
    """What differs from theory."""
    if result.verdict != case.verdict:
        yield f"the verdict is {result.verdict}, not {case.verdict}"
    failed = [
        one.role for one in result.judged if one.statistic == "update" and one.verdict == "fail"
    ]
    missing, beyond = set(case.fails) - set(failed), set(failed) - set(case.fails)
    if missing:
        yield f"the update does not fail of {', '.join(sorted(missing))}"
    if result.quantity == "r":
        if beyond:
            yield f"the update fails of {', '.join(sorted(beyond))} too"
        for one in shown(result):
            if one.predicted is None or abs(one.flatness.slope.value - one.predicted) > 0.1:
                yield f"the slope of {one.role} is not theory's"


def line(*cells: object) -> str:
    return "".join(
        f"{cell!s:<{width}}" for cell, width in zip(cells, COLUMNS, strict=True)
    ).rstrip()


def rows(architecture: str, case: Case, result: CheckResult) -> Iterator[str]:
    head = (architecture, result.quantity, case.rule, result.verdict, case.seeds, len(result.runs))
    for one in shown(result):
        flat = one.flatness
        slope = f"{flat.slope.value:+.3f} [{flat.low:+.3f}, {flat.high:+.3f}]"
        theory = "" if one.predicted is None else f"{one.predicted:+.3f}"
        yield line(*head, f"{one.label} of {one.role}", slope, theory, one.verdict)
        head = ("",) * len(head)


def main() -> int:
    transformers.logging.set_verbosity_error()
    began, wrong = time.perf_counter(), 0
    print(f"{SHAPE}\nover r from 24 key/value heads, over the width from {WIDTHS[0]} with r = 2")
    print(
        f"AdamW, lr {SETUP.lr:.3g}, {STEPS} steps on {SETUP.batch} × {SETUP.sequence} bytes; flat "
        "is within ±0.1\n"
    )
    print(
        line(
            "model",
            "over",
            "rule",
            "verdict",
            "seeds",
            "runs",
            "statistic",
            "slope and interval",
            "theory",
            "",
        )
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        kept = ", with runs kept from before" if any(folder.glob("*/runs.jsonl")) else ""
        for architecture, kind in ARCHITECTURES.items():
            for case in CASES:
                result = check(kind, case, folder)
                print("\n".join(rows(architecture, case, result)), flush=True)
                for fault in faults(result, case):
                    wrong += 1
                    print(f"  NOT AS EXPECTED: {fault}", flush=True)
                for warning in result.warnings:
                    print(f"  warning: {warning}", flush=True)
    print(f"\n{wrong} findings are not as theory says ({time.perf_counter() - began:.0f} s{kept})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
