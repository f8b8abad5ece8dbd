"""`mupscale paper`: the paper's experiments by name."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts
from cyclopts import Parameter

from mupscale.cli.numbers import Whole, whole_numbers
from mupscale.cli.progress import bar
from mupscale.cli.theory import Json
from mupscale.errors import UnknownNameError
from mupscale.paper import EXPERIMENTS, experiment_named

if TYPE_CHECKING:
    from mupscale.paper.experiment import Claim, Experiment, Findings

app = cyclopts.App(
    name="paper", help="The paper's figures, tables and claims, each a named experiment."
)

Scale = Literal["cpu", "paper"]


@app.default
def experiments(name: str | None = None, /, *, as_json: Json = False) -> None:
    """List the experiments.

    Example: mupscale paper gqa-ablation --scale cpu

    Parameters
    ----------
    name
        One of those below: each is a command of its own.
    """
    if name is not None:  # the known ones are commands
        raise UnknownNameError("experiment", name, EXPERIMENTS)
    if as_json:
        print(json.dumps(dict(EXPERIMENTS), ensure_ascii=False, indent=2))
        return
    print("\n".join(f"{name:<17} {shows}" for name, shows in EXPERIMENTS.items()))
    print(
        "\nRun one with: mupscale paper NAME --scale cpu. What came of all of them: mupscale paper "
        "claims"
    )


@app.command
def claims(*, results: Path = Path("results"), as_json: Json = False) -> None:
    """Set every claim of the paper beside what the recorded runs say, as a Markdown table.

    Example: mupscale paper claims --results results

    Parameters
    ----------
    results
        Folder with a folder for each experiment, as in the repository.
    """
    from mupscale.paper.verdicts import claims_in, table_lines

    found = claims_in(results)
    if as_json:
        print(json.dumps([asdict(claim) for claim in found], ensure_ascii=False, indent=2))
        return
    print("\n".join(table_lines(found)))


@app.command
def expected_norms(
    *,
    scale: Scale = "cpu",
    width: Whole | None = None,
    repetitions: str = "1,2,3,4,6,12",
    draws: Whole = 1000,
    seed: Whole = 0,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    output: Path | None = None,
    as_json: Json = False,
) -> int:
    """Draw spectral against expected norm of the repeated key/value matrix, against r.

    Example: mupscale paper expected-norms --draws 200 --output figures

    Parameters
    ----------
    scale
        cpu: width 384; paper: 768, the width of its models.
    width
        n, a multiple of every r; the paper does not state its own.
    repetitions
        The values of r, separated by commas.
    draws
        Gaussian matrices for each r, with one input each.
    seed
        Of the random numbers.
    dry_run
        Say what would be drawn, and stop.
    output
        Folder for the draws (JSON lines), the points (CSV) and the figure (PNG, SVG, PDF);
        runs/paper/NAME-SCALE unless given.
    """
    from mupscale.paper.expected_norms import EXPERIMENT, SIZES, Config

    if dry_run:
        return _checked(EXPERIMENT, scale, as_json)
    chosen = SIZES[scale].width if width is None else width
    given = tuple(whole_numbers("--repetitions", repetitions, "1,2,4"))
    config = Config(width=chosen, repetitions=given, draws=draws, seed=seed)
    folder = output or EXPERIMENT.folder(scale)
    with bar("drawing", total=len(config.repetitions) * draws) as report:
        EXPERIMENT.run_with(config, folder, lambda done, _: report(done, ""))
    return _told(EXPERIMENT, scale, folder, EXPERIMENT.findings_with(config, folder), as_json)


def _command(name: str, shows: str) -> Callable[..., int]:
    """The command of an experiment: all of them take the same options."""

    def command(
        *,
        scale: Scale = "cpu",
        dry_run: Annotated[bool, Parameter(negative=())] = False,
        workers: Whole | None = None,
        output: Path | None = None,
        as_json: Json = False,
    ) -> int:
        return _run(name, scale, dry_run, workers, output, as_json)

    command.__doc__ = f"""Run an experiment. {shows[0].upper()}{shows[1:]}.

    It says what it will cost first, goes on where it was interrupted, and ends with figures, a table and what they mean
    for the paper's claims.

    Example: mupscale paper {name} --scale cpu

    Example: mupscale paper {name} --scale paper --dry-run

    Parameters
    ----------
    scale
        cpu: what two cores can do; paper: the paper's own size, for a cluster.
    dry_run
        Build every model without memory, its plan and its schedule, print them, and stop.
    workers
        Processes with one thread each; one a core unless given.
    output
        Folder for records, figures and tables; the same command goes on with what was interrupted there. Below
        runs/paper unless given.
    """
    return command


for _name, _shows in EXPERIMENTS.items():
    if _name != "expected-norms":
        app.command(_command(_name, _shows), name=_name)


def _run(
    name: str, scale: Scale, dry_run: bool, workers: int | None, output: Path | None, as_json: bool
) -> int:
    from mupscale.engines import Local
    from mupscale.paper.experiment import Running

    chosen = experiment_named(name)
    if dry_run:
        return _checked(chosen, scale, as_json)
    engine = None if workers is None else Local(workers)
    folder = output or chosen.folder(scale)
    cost = chosen.cost(scale, workers or _cores())
    if cost is not None:
        print(f"{name} at scale {scale}: {cost}, in {folder}", file=sys.stderr)
    with bar(name, total=cost.runs if cost else 1) as report:
        remark = partial(print, file=sys.stderr)
        chosen.run(scale, folder, Running(engine, lambda done, _: report(done, ""), remark))
    return _told(chosen, scale, folder, chosen.findings(scale, folder), as_json)


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _checked(chosen: "Experiment", scale: Scale, as_json: bool) -> int:
    lines = list(chosen.dry_run(scale))
    if as_json:
        print(
            json.dumps(
                {"experiment": chosen.name, "scale": scale, "lines": lines},
                ensure_ascii=False,
                indent=2,
            )
        )
        return 0
    print("\n".join(lines))
    print(
        f"\n{chosen.name} at scale {scale}: everything that can be checked without running it is "
        "in order"
    )
    return 0


def _told(
    chosen: "Experiment", scale: Scale, folder: Path, found: "Findings", as_json: bool
) -> int:
    if as_json:
        data = {
            "experiment": chosen.name,
            "scale": scale,
            "claims": [asdict(claim) for claim in found.claims],
            "files": [str(path) for path in found.paths],
            **found.data,
        }
        print(json.dumps(data, ensure_ascii=False, indent=2))
        return 0
    print("\n".join([*found.lines, "", *map(_sentence, found.claims)]))
    print(f"\nwritten: {len(found.paths)} files in {folder}")
    return 0


def _sentence(claim: "Claim") -> str:
    head = claim.says if claim.verdict == "ours" else f"{claim.says}: {claim.verdict}"
    return f"- {head}\n  {claim.seen}" + (f" ({claim.runs} runs)" if claim.runs else "")
