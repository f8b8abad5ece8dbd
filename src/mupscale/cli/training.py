"""`mupscale train` and `mupscale models`."""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mupscale.cli.numbers import Whole
from mupscale.cli.progress import bar
from mupscale.cli.theory import Json
from mupscale.errors import OptionError


def train(
    config: Path | None = None,
    /,
    *,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    rule: str | None = None,
    seed: Whole | None = None,
    shard: str | None = None,
    output: Path = Path("runs/train"),
    show_config: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
) -> int:
    """Train the reference model once: plan applied, metrics and checkpoints written, resumed if it
    was interrupted.

    Example: mupscale train gqa.toml --model.n-kv-heads 2 --output runs/kv2

    Example: mupscale train --model.name cpu_96_r2 --base.width 32 --length.steps 600 --length.batch
    8

    Example: torchrun --nproc-per-node 2 -m mupscale train gqa.toml --shard fsdp

    Parameters
    ----------
    config
        A TOML file with the tables model, base, rule, data, optimizer, length, machine and record;
        all may be left to the settings.
    settings
        Any setting over the file, dotted: --optimizer.lr 0.01 is short for --set optimizer.lr=0.01.
        See --show-config.
    rule
        sp, mup, complete-p or gqa-mup.
    seed
        Of weights and batches.
    shard
        none, ddp or fsdp; the same as --machine.shard.
    output
        Folder of the run: config.toml, plan.json, metrics.jsonl, checkpoint/, record.json. The same
        command goes on with a run that was interrupted.
    show_config
        Print the whole config as TOML, with everything that was left to defaults, and stop.
    """
    from mupscale.training import RunConfig, lengths, run

    flags = {"rule": rule, "seed": seed, "machine.shard": shard}
    over = overrides(settings) | {name: value for name, value in flags.items() if value is not None}
    chosen = RunConfig.load(config, over)
    if show_config:
        print(chosen.to_toml(), end="")
        return 0
    with bar("steps", lengths(chosen).steps) as show:
        prepared: list[int] = []

        def preparing(documents: int) -> None:
            prepared.append(documents)
            show(0, f"preparing the corpus: {sum(prepared):,} documents")

        record = run(
            chosen,
            output,
            report=lambda p: show(
                p.step, f"loss {p.loss:.3f}, {p.tokens_per_second:,.0f} tokens/s"
            ),
            remark=_remark,
            preparing=preparing,
        )
    if os.environ.get("RANK", "0") != "0":
        return 0
    if as_json:
        print(json.dumps(asdict(record), indent=2))
    elif record.status == "diverged":
        print(f"diverged at step {record.diverged_at} of {record.steps}; {output}")
    else:
        print(
            f"{record.steps} steps, {record.tokens:,} tokens: training loss "
            f"{record.train_loss:.4f}, validation loss "
            f"{record.validation_loss:.4f} nats a token; {output}"
        )
    return 0


def _remark(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr)


def overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Settings by dotted name.

    >>> overrides(["model.n-kv-heads=2", "optimizer.betas=[0.9, 0.99]", "data.corpus=text:notes.md"])
    {'model.n_kv_heads': 2, 'optimizer.betas': [0.9, 0.99], 'data.corpus': 'text:notes.md'}
    """
    found: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or "." not in name:
            raise OptionError(
                f"--set {text!r} is not a setting. Write table.setting=value, as optimizer.lr=0.01."
            )
        found[name.replace("-", "_")] = toml_value(value)
    return found


def toml_value(text: str) -> Any:
    """As TOML would read it; what is not TOML is a string."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def models(*, as_json: Json = False) -> None:
    """List the named configurations, with the columns of the paper's tables for those that have a
    budget.

    Example: mupscale models
    """
    from mupscale.models import CONFIGURATIONS, parameter_counts, table_row

    rows: list[dict[str, Any]] = []
    for name, one in CONFIGURATIONS.items():
        counts, shape = parameter_counts(one.model), one.model
        row: dict[str, Any] = {
            "name": name, "total M": f"{counts.total / 1e6:.2f}", "non-embd "
                                                                  "M": f"{counts.non_embedding / 1e6:.2f}",
            "width": shape.width, "depth": shape.depth, "heads": shape.n_heads, "head_dim": shape.head_size,
            "kv "
            "heads": shape.kv_heads, "r": shape.repetitions, "TPP": "", "tokens": "", "sequences": "", "batch": "",
            "iterations": "", "warmup": "", "source": one.source,
        }  # fmt: skip
        if one.tokens_per_parameter:
            budget = table_row(name).budget
            row |= {
                "TPP": one.tokens_per_parameter, "tokens": budget.tokens, "sequences": budget.sequences,
                "batch": budget.batch_sequences, "iterations": budget.iterations, "warmup": budget.warmup_iterations,
            }  # fmt: skip
        rows.append(row)
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    cells = [[*rows[0]], *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(cells[0]))]
    for line in cells:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
