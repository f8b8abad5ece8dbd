"""`mupscale check`."""

import hashlib
import json
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mupscale.cli.numbers import Whole
from mupscale.cli.progress import bar
from mupscale.cli.reading import ReadingFlags
from mupscale.cli.theory import Choices, Json
from mupscale.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    from mupscale.checks import CheckResult, Setup


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Steps:
    """What the steps are taken with; what is left out is `mupscale.checks.Setup`'s."""

    optimizer: str | None = None
    "adamw, adam, sgd, momentum, lion, muon, muon-match-rms or muon-spectral; adamw unless given."
    lr: float | None = None
    "Base rate: 2^-16 unless given, so small that a few steps stay near the start."
    base_eps: float | None = None
    "Base epsilon: 1e-12 unless given, so small that it plays no part."
    std: float | None = None
    "Base standard deviation: 0.02 unless given."
    batch: Whole | None = None
    "Sequences in the one batch of a seed: 4 unless given."
    sequence: Whole | None = None
    "Tokens in a sequence: 128 unless given."
    tokenizer: str | None = None
    "As for training: bytes unless given."
    device: str | None = None
    "Where to train: cuda if there is one, unless given."

    def setup(self) -> "Setup":
        from mupscale.checks import Setup

        names = {"base_eps": "eps"}
        given = {names.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}
        return Setup(**{name: value for name, value in given.items() if value is not None})


def check(
    target: str = "gpt:check",
    /,
    *,
    vary: str = "n_kv_heads=12,6,4,3,2,1",
    choices: Choices = Choices(),  # noqa: B008
    depth: str | None = None,
    seeds: Whole = 5,
    steps: Whole = 4,
    data: str = "python-stdlib",
    with_steps: Steps = Steps(),  # noqa: B008
    base: Whole | None = None,
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    tolerance: float = 0.1,
    confidence: float = 0.95,
    workers: Whole | None = None,
    output: Path | None = None,
    everything: Annotated[bool, Parameter(name="--all", negative=())] = False,
    as_json: Json = False,
) -> int:
    """Train a model for a few steps at several sizes, and say whether weights and updates keep
    their size.

    Exit status 0: pass, 1: fail, 3: inconclusive, with the number of seeds that would settle it.

    Example: mupscale check --rule mup --vary n_kv_heads=12,6,4,3,2,1

    Example: mupscale check
    hf:llama,hidden_size=256,num_attention_heads=8,num_hidden_layers=2,vocab_size=256 --vary
    n_kv_heads=8,4,2,1

    Example: mupscale check my_package.models:build --vary width=128,256,512 --reading roles.toml

    Parameters
    ----------
    target
        As for plan: gpt:NAME, hf:TYPE with settings, a config.json, or module:function, which is
        called with the varied argument. The reference model of the quick check (width 192, 12 heads
        of 64) unless given.
    vary
        n_kv_heads, r, width or depth, and its values.
    depth
        Factor on residual branches: none, 1/L, 1/sqrt(L), or a formula in L; the rule's own unless
        said.
    seeds
        Runs for each value: 1 to this.
    steps
        Optimizer steps of each run.
    data
        A corpus by name, as for training.
    base
        The value that counts as tuned: most key/value heads, least width, a depth of 1, unless
        given.
    tolerance
        A slope within this of zero is flat.
    confidence
        With which all intervals hold together.
    workers
        Processes with one thread each; one a core unless given.
    output
        Folder for the runs (JSON lines), findings (JSON lines, CSV) and figures (PNG, SVG, PDF);
        the same command goes on with a check that was interrupted, and one with more seeds adds
        them. Below runs/check unless given.
    everything
        Print all statistics, also those that are not judged.
    """
    from mupscale.checks import Criteria, coordinate_check
    from mupscale.engines import Local
    from mupscale.targets import Family

    name, values = varied(vary)
    rule, setup, said = choices.build(depth), with_steps.setup(), reading.of_target(target)
    settings = [target, name, rule, steps, data, setup, base or (min(values), max(values))]
    if said:  # a check without one keeps the folder that it had before there were readings
        settings.append(json.dumps(said.to_dict(), sort_keys=True))
    folder = output or Path("runs/check") / folder_name(rule.name, name, settings)
    with bar("checking", total=len(values) * max(seeds, 1)) as report:
        result = coordinate_check(
            Family(target),
            {name: values},
            rule=rule,
            seeds=seeds,
            steps=steps,
            data=data,
            setup=setup,
            base=base,
            reading=said,
            criteria=Criteria(tolerance, confidence),
            engine=Local(workers),
            folder=folder,
            report=lambda done, _: report(done, ""),
            remark=lambda text: print(text, file=sys.stderr),
        )
    files, remark = _saved(result, folder)
    if as_json:
        print(json.dumps(result.to_dict() | {"files": files}, ensure_ascii=False, indent=2))
        return result.exit_status
    print(result.to_text(everything=everything))
    print(f"\nwritten: {len(files)} files in {folder}" + (f"\n{remark}" if remark else ""))
    return result.exit_status


def varied(text: str) -> tuple[str, list[int]]:
    """A name and its values.

    >>> varied("n_kv_heads=4,2,1")
    ('n_kv_heads', [4, 2, 1])
    """
    name, equals, rest = (part.strip() for part in text.partition("="))
    try:
        values = [int(value) for value in rest.split(",")] if equals else []
    except ValueError:
        values = []
    if not name or not values:
        raise OptionError(
            f"--vary {text!r} is not a name and whole numbers. Write it like n_kv_heads=4,2,1."
        )
    return name, values


def folder_name(rule: str, name: str, settings: list[Any]) -> str:
    """A folder for each set of settings, so that a check meets its own runs and no others; seeds
    may be added.
    """
    plain = re.sub(r"[^A-Za-z0-9]+", "-", f"{rule}-{name}").strip("-")
    return f"{plain[:48]}-{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"


def _saved(result: "CheckResult", folder: Path) -> tuple[list[str], str]:
    """The files, and what to say where figures could not be drawn."""
    from mupscale import reports

    paths, remark = [folder / "runs.jsonl", *reports.save_findings(result, folder)], ""
    try:
        paths += reports.save_pictures(result, folder)
    except MissingExtraError as error:
        remark = f"no figures: {error}"
    return [str(path) for path in paths], remark
