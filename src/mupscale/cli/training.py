"""`mupscale train` and `mupscale models`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mupscale.cli.console import bar, print_json, remark
from mupscale.cli.flags import Json, Settings, Switch, Whole, overrides
from mupscale.errors import UnknownNameError
from mupscale.text import terminal_columns, text_table, wrapped


def train(
    config: Path | None = None,
    /,
    *,
    settings: Settings = (),
    rule: str | None = None,
    seed: Whole | None = None,
    shard: str | None = None,
    output: Path = Path("runs/train"),
    show_config: Switch = False,
    as_json: Json = False,
) -> int:
    """Train the reference model once, with its plan applied, and write metrics and checkpoints.

    An interrupted run continues when you run the same command again.

    Example: mupscale train gqa.toml --model.n-kv-heads 2 --output runs/kv2

    Example: mupscale train --model.name cpu_96_r2 --length.steps 600 --length.batch 8

    Example: torchrun --nproc-per-node 2 -m mupscale train gqa.toml --shard fsdp

    Parameters
    ----------
    config
        A TOML file with the tables model, base, rule, data, optimizer, length, machine and record
        (default: all values come from --set).
    rule
        The scaling rule: sp, mup, complete-p or gqa-mup (default: the file's, or gqa-mup).
    seed
        Seed for weights and batches (default: the file's, or 0).
    shard
        How to distribute the run: none, ddp or fsdp, the same as --machine.shard (default: none).
    output
        Folder of the run: config.toml, plan.json, metrics.jsonl, checkpoint/ and record.json.
    show_config
        Print the whole config as TOML, including defaults, then exit.
    """
    from mupscale.training import RunConfig, lengths, run

    flags = {"rule": rule, "seed": seed, "machine.shard": shard}
    over = overrides(settings) | {name: value for name, value in flags.items() if value is not None}
    chosen = RunConfig.load(config, over)
    if show_config:
        print(chosen.to_toml(), end="")
        return 0
    first_process = os.environ.get("RANK", "0") == "0"
    with bar("steps", lengths(chosen).steps) as show:
        prepared = 0

        def preparing(documents: int) -> None:
            nonlocal prepared
            prepared += documents
            show(0, f"preparing the corpus: {prepared:,} documents")

        record = run(
            chosen,
            output,
            report=lambda p: show(
                p.step, status=f"loss {p.loss:.3f}, {p.tokens_per_second:,.0f} tokens/s"
            ),
            remark=lambda text: remark(text) if first_process else None,
            preparing=preparing,
        )
    if not first_process:
        return 0
    if as_json:
        print_json(asdict(record))
    elif record.status == "diverged":
        print(f"diverged at step {record.diverged_at} of {record.steps}; {output}")
    else:
        print(
            f"{record.steps} steps, {record.tokens:,} tokens: "
            f"training loss {record.train_loss:.4f}, "
            f"validation loss {record.validation_loss:.4f} nats per token; {output}"
        )
    return 0


def models(*, model: str | None = None, as_json: Json = False) -> None:
    """List the named configurations of the reference model.

    Configurations with a token budget also have the columns of the paper's tables: TPP (tokens per
    non-embedding parameter), tokens, sequences, batch, iterations and warmup.

    Example: mupscale models

    Example: mupscale models --model kvr_12

    Parameters
    ----------
    model
        Print all values of this configuration (default: one line for each configuration).
    """
    from mupscale.models import CONFIGURATIONS

    if model is not None and model not in CONFIGURATIONS:
        raise UnknownNameError("configuration", model, CONFIGURATIONS)
    rows = [_model_row(name) for name in CONFIGURATIONS if model in (None, name)]
    if as_json:
        print_json(rows)
    elif model is not None:
        first, *others = ([key, str(value)] for key, value in rows[0].items())
        print(text_table(first, others))
    else:
        print(_models_text(rows))


def _models_text(rows: list[dict[str, Any]]) -> str:
    """One table per source, with the budgets where they fit."""
    names = [name for name in rows[0] if name != "source"]
    wide = text_table(names, [[str(row[name]) for name in names] for row in rows], columns=1000)
    all_fit = max(map(len, wide.splitlines())) <= terminal_columns()
    if not all_fit:
        names = [name for name in names[: names.index("TPP") + 1] if name != "head_dim"]
    parts: list[str] = []
    for source in dict.fromkeys(row["source"] for row in rows):
        cells = [[str(row[name]) for name in names] for row in rows if row["source"] == source]
        parts += [wrapped(source), text_table(names, cells, right=names[1:]), ""]
    if not all_fit:
        parts.append(wrapped("All values of one: mupscale models --model NAME. Of all: --json."))
    return "\n".join(parts).rstrip()


def _model_row(name: str) -> dict[str, Any]:
    from mupscale.models import CONFIGURATIONS, parameter_counts, table_row

    configuration = CONFIGURATIONS[name]
    counts, shape = parameter_counts(configuration.model), configuration.model
    row: dict[str, Any] = {
        "name": name,
        "total M": f"{counts.total / 1e6:.2f}",
        "non-embd M": f"{counts.non_embedding / 1e6:.2f}",
        "width": shape.width,
        "depth": shape.depth,
        "heads": shape.n_heads,
        "head_dim": shape.head_size,
        "kv heads": shape.kv_heads,
        "r": shape.repetitions,
    }
    names = ("TPP", "tokens", "sequences", "batch", "iterations", "warmup")
    budget: tuple[Any, ...] = ("",) * len(names)
    if configuration.tokens_per_parameter:
        b = table_row(name).budget
        budget = (
            configuration.tokens_per_parameter,
            b.tokens,
            b.sequences,
            b.batch_sequences,
            b.iterations,
            b.warmup_iterations,
        )
    return row | dict(zip(names, budget, strict=True)) | {"source": configuration.source}
