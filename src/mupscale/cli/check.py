"""`mupscale check`."""

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mupscale.cli.console import bar, print_json, remark
from mupscale.cli.flags import (
    Depth,
    Json,
    ReadingFlags,
    RuleFlags,
    Switch,
    Whole,
    Workers,
    flag_group,
    varied,
)
from mupscale.errors import MissingExtraError
from mupscale.text import show

if TYPE_CHECKING:
    from mupscale.checks import Setup


@flag_group
class StepFlags:
    """How the steps are taken; None leaves the default of `mupscale.checks.Setup`."""

    optimizer: str | None = None
    """The optimizer: adamw, adam, sgd, momentum, lion, muon, muon-match-rms or muon-spectral
    (default: adamw).
    """
    lr: float | None = None
    "Base learning rate, so small that a few steps stay near the start (default: 2^-16)."
    base_eps: float | None = None
    "Base epsilon, so small that it has no effect (default: 1e-12)."
    std: float | None = None
    "Base initial standard deviation (default: 0.02)."
    batch: Whole | None = None
    "Sequences in the one batch of each seed (default: 4)."
    sequence: Whole | None = None
    "Tokens per sequence (default: 128)."
    tokenizer: str | None = None
    "The tokenizer, as for mupscale train (default: bytes)."
    device: str | None = None
    "The device to train on (default: cuda if available, otherwise cpu)."

    def setup(self) -> "Setup":
        from mupscale.checks import Setup

        values = {name: value for name, value in asdict(self).items() if value is not None}
        eps = {"eps": values.pop("base_eps")} if "base_eps" in values else {}
        return Setup(**values, **eps)


def check(
    target: str = "gpt:check",
    /,
    *,
    vary: str = "n_kv_heads=12,6,4,3,2,1",
    rule_flags: RuleFlags = RuleFlags(),  # noqa: B008
    depth: Depth = None,
    seeds: Whole = 5,
    steps: Whole = 4,
    data: str = "python-stdlib",
    step_flags: StepFlags = StepFlags(),  # noqa: B008
    base: Whole | None = None,
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    tolerance: float = 0.1,
    confidence: float = 0.95,
    workers: Workers = None,
    output: Path | None = None,
    everything: Annotated[Switch, Parameter(name="--all")] = False,
    as_json: Json = False,
) -> int:
    """Train a model for a few steps at several sizes, and test whether weights and updates keep
    their size.

    Exit status: 0 pass, 1 fail, 3 inconclusive, with the number of seeds that should settle it. An
    interrupted check continues when you run the same command again.

    Example: mupscale check --rule mup --vary n_kv_heads=12,6,4,3,2,1

    Example: mupscale check
    hf:llama,hidden_size=256,num_attention_heads=8,num_hidden_layers=2,vocab_size=256 --vary
    n_kv_heads=8,4,2,1

    Example: mupscale check my_package.models:build --vary width=128,256,512 --reading roles.toml

    Parameters
    ----------
    target
        The model, named as for mupscale plan. A module:function is called with the varied argument;
        gpt:check is a reference model of width 192 with 12 heads of 64.
    vary
        What varies: n_kv_heads, r, width or depth, and its values.
    seeds
        Number of runs for each value, with seeds from 1.
    steps
        Optimizer steps of each run.
    data
        The corpus, as for mupscale train.
    base
        The value that counts as tuned (default: the most key/value heads, the smallest width, or
        depth 1).
    tolerance
        A slope within this of zero is flat.
    confidence
        Joint confidence of all intervals.
    output
        Folder for runs (JSON lines), findings (JSON lines, CSV) and figures (PNG, SVG, PDF). A call
        with more seeds adds them (default: a folder in runs/check).
    everything
        Print all statistics, including those that do not count for the verdict.
    """
    from mupscale import reports
    from mupscale.checks import Criteria, coordinate_check
    from mupscale.engines import Local
    from mupscale.targets import Family

    name, values = varied(vary)
    rule, setup = rule_flags.build(depth), step_flags.setup()
    model_reading = reading.of_target(target)
    settings = [target, name, rule, steps, data, setup, base or (min(values), max(values))]
    if model_reading:  # without one, keep the folder name of before there were readings
        settings.append(json.dumps(model_reading.to_dict(), sort_keys=True))
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
            reading=model_reading,
            criteria=Criteria(tolerance, confidence),
            engine=Local(workers),
            folder=folder,
            report=report,
            remark=remark,
        )
    paths, missing = [folder / "runs.jsonl", *reports.save_findings(result, folder)], ""
    try:
        paths += reports.save_pictures(result, folder)
    except MissingExtraError as error:
        missing = f"\nno figures: {error}"
    if as_json:
        print_json(result.to_dict() | {"files": [str(path) for path in paths]})
    else:
        show(result.to_text(everything=everything))
        print(f"\nwritten: {len(paths)} files in {folder}{missing}")
    return result.exit_status


def folder_name(rule: str, name: str, settings: list[Any]) -> str:
    """One folder per set of settings, so that a run finds its own records and no others."""
    from mupscale.theory.rules import NEWER

    plain = re.sub(r"[^A-Za-z0-9]+", "-", f"{rule}-{name}").strip("-")
    # Folders of earlier checks are found by this text, in which a rule's evidence was `because`,
    # and newer choices were missing.
    text = repr(settings).replace(", evidence=", ", because=").replace(", run_ranges=()", "")
    for choice, default in NEWER.items():
        text = text.replace(f", {choice}={default!r}", "")
    return f"{plain[:48]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
