"""`mupscale paper`: the paper's experiments by name."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import cyclopts

from mupscale.cli.progress import bar, progress
from mupscale.cli.theory import Json
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.paper.expected_norms import Point

app = cyclopts.App(name="paper", help="The paper's figures and tables, each a named experiment.")


@app.default
def experiments(*, as_json: Json = False) -> None:
    """List the experiments.

    Example: mupscale paper expected-norms
    """
    from mupscale.paper import EXPERIMENTS

    if as_json:
        print(json.dumps(dict(EXPERIMENTS), indent=2))
        return
    print("\n".join(f"{name:<17} {shows}" for name, shows in EXPERIMENTS.items()))
    print("\nRun one with: mupscale paper NAME")


@app.command
def expected_norms(
    *,
    width: int = 384,
    repetitions: str = "1,2,3,4,6,12",
    draws: int = 1000,
    seed: int = 0,
    output: Path = Path("runs/expected-norms"),
    as_json: Json = False,
) -> None:
    """Draw spectral against expected norm of the repeated key/value matrix, against r.

    Example: mupscale paper expected-norms --draws 200 --output figures

    Parameters
    ----------
    width
        n, a multiple of every r; the paper does not state its own.
    repetitions
        The values of r, separated by commas.
    draws
        Gaussian matrices for each r, with one input each.
    seed
        Of the random numbers.
    output
        Folder for the draws (JSON lines), the points (CSV) and the figure (PNG, SVG, PDF).
    """
    from mupscale.paper import expected_norms as experiment

    config = experiment.Config(width=width, repetitions=_whole_numbers(repetitions), draws=draws, seed=seed)
    with progress("drawing", total=len(config.repetitions) * draws) as advance:
        rows = experiment.run(config, advance)
    paths = experiment.save(config, rows, output)
    points = experiment.summarize(config, rows)
    if as_json:
        data = {"config": asdict(config), "points": [asdict(p) for p in points], "files": [str(p) for p in paths]}
        print(json.dumps(data, indent=2))
        return
    print(_as_text(points))
    print("\nwritten: " + ", ".join(str(path) for path in paths))


@app.command
def coordinate_check(
    *,
    scale: Literal["cpu", "paper"] = "cpu",
    workers: int | None = None,
    output: Path | None = None,
    as_json: Json = False,
) -> None:
    """Check activations and weights over r, under vanilla μP and under GQA-μP with the derived and the printed factor.

    Example: mupscale paper coordinate-check --scale cpu --output figures

    Parameters
    ----------
    scale
        cpu: width 192, 4 blocks, 5 seeds, a minute or two on two cores; paper: the paper's own size and seeds, about
        an hour.
    workers
        Processes with one thread each; one a core unless given.
    output
        Folder for runs (JSON lines), findings, the table (CSV) and figures (PNG, SVG, PDF); the same command goes on
        with what was interrupted. runs/coordinate-check-SCALE unless given.
    """
    from mupscale.engines import Local
    from mupscale.paper import coordinate_check as experiment

    folder = output or Path(f"runs/coordinate-check-{scale}")
    size = experiment.SIZES[scale]
    with bar(f"{size.runs} runs of {size.steps} steps", total=size.runs) as report:
        results = experiment.run(scale, folder, engine=Local(workers), report=lambda done, _: report(done, ""))
    paths = experiment.save(results, folder)
    rows = experiment.table(results)
    if as_json:
        found = {name: result.to_dict() for name, result in results.items()}
        data = {"checks": found, "table": [asdict(row) for row in rows], "files": [str(path) for path in paths]}
        print(json.dumps(data, ensure_ascii=False, indent=2))
        return
    print("\n".join(experiment.to_text(rows, results)))
    print(f"\nwritten: {len(paths)} files in {folder}")


def _as_text(points: "list[Point]") -> str:
    lines = [f"{'norm':<10}{'r':>4}{'mean':>9}{'sd':>9}{'theory':>9}"]
    lines += [f"{p.norm:<10}{p.r:>4}{p.mean:>9.4f}{p.sd:>9.4f}{p.theory:>9.4f}" for p in points]
    return "\n".join([*lines, f"norms over σ√n, {points[0].draws} draws each, sd over draws (ddof 1)"])


def _whole_numbers(text: str) -> tuple[int, ...]:
    """(1, 2, 4) from "1,2,4".

    >>> _whole_numbers("1, 2,4")
    (1, 2, 4)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"--repetitions {text!r} is not a list of whole numbers. Write it like 1,2,4."
        raise OptionError(message) from None
