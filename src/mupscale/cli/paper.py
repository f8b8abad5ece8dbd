"""`mupscale paper`: the paper's experiments by name."""

import itertools
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import cyclopts

from mupscale.cli.console import bar, print_json, remark
from mupscale.cli.flags import Json, Switch, Whole, Workers, numbers
from mupscale.errors import UnknownNameError
from mupscale.paper import EXPERIMENTS, experiment_named
from mupscale.text import show, text_table, wrapped

if TYPE_CHECKING:
    from mupscale.paper.experiment import Claim, Experiment, Findings

app = cyclopts.App(
    name="paper",
    help="""Reproduce the paper's figures, tables and claims, each as a named experiment.

    Example: mupscale paper gqa-ablation --scale cpu""",
)

Scale = Literal["cpu", "paper"]


@app.default
def experiments(name: str | None = None, /, *, as_json: Json = False) -> None:
    """List the experiments.

    Example: mupscale paper gqa-ablation --scale cpu

    Parameters
    ----------
    name
        The experiment to run; each is a command of its own.
    """
    if name is not None:  # the known ones are commands
        raise UnknownNameError("experiment", name, EXPERIMENTS)
    if as_json:
        print_json(dict(EXPERIMENTS))
        return
    print(text_table(["experiment", "what it shows"], [[*row] for row in EXPERIMENTS.items()]))
    print()
    print(
        wrapped(
            "Run one with mupscale paper NAME --scale cpu. Print the results of all of them with "
            "mupscale paper claims."
        )
    )


@app.command
def claims(*, results: Path = Path("results"), as_json: Json = False) -> None:
    """Compare every claim of the paper with the recorded runs, as text on a terminal and as a
    Markdown table elsewhere.

    Example: mupscale paper claims --results results

    Parameters
    ----------
    results
        Folder with one folder for each experiment, as in the repository.
    """
    from mupscale.paper.verdicts import (
        claims_in,
        counts,
        definitions,
        summary,
        table_lines,
    )

    found = claims_in(results)
    if as_json:
        print_json([asdict(claim) for claim in found])
    elif sys.stdout.isatty():
        head, rows = counts(found)
        parts = [wrapped(summary(found)), "", text_table(head, rows, right=head[1:]), ""]
        parts += [wrapped(one, "- ", "  ") for one in definitions()]
        groups = itertools.groupby(found, key=lambda claim: (claim.experiment, claim.kind))
        for (name, kind), group in groups:
            parts += ["", f"{name} ({kind})", *map(_sentence, group)]
        show("\n".join(parts))
    else:
        print("\n".join(table_lines(found)))


@app.command
def expected_norms(
    *,
    scale: Scale = "cpu",
    width: Whole | None = None,
    repetitions: str = "1,2,3,4,6,12",
    draws: Whole = 1000,
    seed: Whole = 0,
    dry_run: Switch = False,
    output: Path | None = None,
    as_json: Json = False,
) -> int:
    """Plot the spectral and the expected norm of the repeated key/value matrix against r, the
    number of query heads per key/value head.

    Example: mupscale paper expected-norms --draws 200 --output figures

    Parameters
    ----------
    scale
        The size: width 384 (cpu), or 768, the width of the paper's models (paper).
    width
        The width n, a multiple of every r. The paper does not state its own (default: from
        --scale).
    repetitions
        The values of r, separated by commas.
    draws
        Gaussian matrices for each r, with one input each.
    seed
        Seed of the random numbers.
    dry_run
        Print what would be drawn, then exit.
    output
        Folder for the draws (JSON lines), the points (CSV) and the figure (PNG, SVG, PDF)
        (default: runs/paper/NAME-SCALE).
    """
    from mupscale.paper.expected_norms import EXPERIMENT, SIZES, Config

    if dry_run:
        return _print_dry_run(EXPERIMENT, scale, as_json)
    config = Config(
        width=SIZES[scale].width if width is None else width,
        repetitions=tuple(numbers("--repetitions", repetitions, "1,2,4")),
        draws=draws,
        seed=seed,
    )
    folder = output or EXPERIMENT.folder(scale)
    with bar("drawing", total=len(config.repetitions) * draws) as report:
        EXPERIMENT.run_with(config, folder, report)
    findings = EXPERIMENT.findings_with(config, folder)
    return _print_findings(EXPERIMENT, scale, folder, findings, as_json)


def _command(name: str, shows: str) -> Callable[..., int]:
    """The command of an experiment. All of them take the same options."""

    def command(
        *,
        scale: Scale = "cpu",
        dry_run: Switch = False,
        workers: Workers = None,
        output: Path | None = None,
        as_json: Json = False,
    ) -> int:
        from mupscale.engines import Local
        from mupscale.engines.local import usable_cores
        from mupscale.paper.experiment import Execution

        chosen = experiment_named(name)
        if dry_run:
            return _print_dry_run(chosen, scale, as_json)
        workers = chosen.workers(scale) if workers is None else workers
        engine = None if workers is None else Local(workers)
        folder = output or chosen.folder(scale)

        @cache
        def announce() -> None:
            """Once, and only if there is something to run: steps are timed for it."""
            cost = chosen.cost(scale, workers or usable_cores())
            if cost is not None:
                remark(f"{name} at scale {scale}: {cost}, in {folder}")

        with bar(name) as report:
            chosen.run(scale, folder, Execution(engine, report, remark, announce))
        findings = chosen.findings(scale, folder)
        return _print_findings(chosen, scale, folder, findings, as_json)

    command.__doc__ = f"""{shows[0].upper()}{shows[1:]}{"" if shows.endswith("?") else "."}

    The experiment prints its cost first, and ends with figures, a table and what they mean for the
    paper's claims. If you interrupt it, run the same command again to continue.

    Example: mupscale paper {name} --scale cpu

    Example: mupscale paper {name} --scale paper --dry-run

    Parameters
    ----------
    scale
        The size: what two cores can run (cpu), or the paper's own, for a cluster (paper).
    dry_run
        Build every model on the meta device with its plan and schedule, print them, then exit.
    output
        Folder for records, figures and tables (default: a folder in runs/paper).
    """
    return command


for _name, _shows in EXPERIMENTS.items():
    if _name != "expected-norms":
        app.command(_command(_name, _shows), name=_name)


def _print_dry_run(chosen: "Experiment", scale: Scale, as_json: bool) -> int:
    lines = list(chosen.dry_run(scale))
    if as_json:
        print_json({"experiment": chosen.name, "scale": scale, "lines": lines})
        return 0
    print("\n".join(lines))
    print(f"\n{chosen.name} at scale {scale}: all checks that need no run passed")
    return 0


def _print_findings(
    chosen: "Experiment", scale: Scale, folder: Path, findings: "Findings", as_json: bool
) -> int:
    if as_json:
        print_json(
            {
                "experiment": chosen.name,
                "scale": scale,
                "claims": [asdict(claim) for claim in findings.claims],
                "files": [str(path) for path in findings.paths],
                **findings.data,
            }
        )
        return 0
    show("\n".join([*findings.lines, "", *map(_sentence, findings.claims)]))
    print(f"\nwritten: {len(findings.paths)} files in {folder}")
    return 0


def _sentence(claim: "Claim") -> str:
    head = claim.says if claim.verdict == "ours" else f"{claim.says}: {claim.verdict}"
    runs = f" ({claim.runs} runs)" if claim.runs else ""
    return f"{wrapped(head, '- ', '  ')}\n{wrapped(claim.seen + runs, '  ')}"
