"""What the values to start from are worth: the records of results/start-values, paired by seed.

    python benchmarks/start_values.py [FOLDER]

results/start-values/README.md has the design, which was fixed before the runs.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mupscale.analysis.fits import mean_over_seeds
from mupscale.studies import Study, TrialRecord
from mupscale.text import text_table

RESULTS = Path(__file__).resolve().parents[1] / "results" / "start-values"
CHANGES_NATS = 0.01
"""A default changes if the whole interval of a gain lies beyond this."""

_SCORES = {"quarter": 0.25, "half": 0.5, "one": 1.0, "double": 2.0, "four": 4.0}

ONE_AT_A_TIME = {"std": 0.08, "embedding": 1.0, "readout": 1.0, "attention": 1.0}
"""Each study, and the value that the others are compared with."""

BySeed = Mapping[int, float]


def value_of(trial: TrialRecord, study: str) -> float:
    if study == "attention":
        return _SCORES[trial.cell.rpartition("scores-")[2].partition(".")[0]]
    return trial.params["std" if study == "std" else f"std.{study}"]


def losses(folder: Path, study: str, key: str) -> dict[float, dict[int, float]]:
    """By value and seed; `key` is the study that says what the value is, or lr."""
    found: dict[float, dict[int, float]] = {}
    if not (folder / study / "study.toml").exists():
        return found
    for trial in Study.open(folder / study).trials:
        x = trial.params["lr"] if key == "lr" else value_of(trial, key)
        loss = math.nan if trial.loss is None else trial.loss
        found.setdefault(float(f"{x:.6g}"), {})[trial.seed] = loss
    return found


def difference(a: BySeed, b: BySeed) -> str:
    """The mean of a − b with its interval, over the seeds that both have."""
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) < 2:
        return "not run yet"
    one = mean_over_seeds([a[seed] - b[seed] for seed in seeds])
    verdict = "lower" if one.high < 0 else "higher" if one.low > 0 else "no significant difference"
    if one.high < -CHANGES_NATS:
        verdict += ", changes the default"
    return f"{one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}] {verdict} ({len(seeds)} seeds)"


def lowest(by_value: Mapping[float, BySeed]) -> tuple[float, BySeed] | None:
    """The value with the lowest mean loss, and its losses by seed."""
    if not by_value:
        return None
    return min(by_value.items(), key=lambda item: sum(item[1].values()) / len(item[1]))


def proposed_rows(folder: Path) -> Iterator[list[str]]:
    for width in (64, 256):
        best = [lowest(losses(folder, f"{name}-{width}", "lr")) for name in ("proposed", "today")]
        if None in best:
            yield [str(width), "", "", "not run yet"]
            continue
        (new_rate, new), (old_rate, old) = (one for one in best if one is not None)
        rates = [f"2^{math.log2(rate):g}" for rate in (new_rate, old_rate)]
        yield [str(width), *rates, difference(new, old)]


def single_rows(folder: Path) -> Iterator[list[str]]:
    for study, reference in ONE_AT_A_TIME.items():
        by_value = losses(folder, study, study)
        for value, found in sorted(by_value.items()):
            mean = f"{sum(found.values()) / len(found):.4f}"
            same = math.isclose(value, reference)
            text = "reference" if same else difference(found, by_value.get(reference, {}))
            yield [study, f"{value:g}", mean, text]


def main(folder: Path) -> None:
    print("proposed minus today's, each at width 64's best rate, in nats")
    print(
        text_table(
            ["width", "rate, proposed", "rate, today's", "difference"], list(proposed_rows(folder))
        )
    )
    print("\none at a time, from the proposed values at width 64: minus the reference, in nats")
    print(text_table(["what", "value", "loss", "difference"], list(single_rows(folder))))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
