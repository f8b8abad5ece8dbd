"""`mupscale transfer`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from mupscale.cli.numbers import Whole
from mupscale.cli.reading import ReadingFlags
from mupscale.cli.theory import Json
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.recipes import Recipe


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Run:
    """How long the target is trained."""

    tokens: float | None = None
    "Of the whole run, 1.5e13."
    tokens_per_parameter: float | None = None
    "For each parameter without embeddings, in place of tokens; the study's own unless given."
    sequence: Whole | None = None
    """Tokens of a sequence (default: the target's positions, at most 8192). The batch is the same
    in tokens.
    """
    floor: float | None = None
    "Share of the rate at which the cosine ends (default: the study's)."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Known:
    """Values in place of what the study used, where it did not search them."""

    weight_decay: float | None = None
    "Weight decay of the base."
    eps: float | None = None
    "Adam's epsilon on the base."
    std: float | None = None
    "Standard deviation of the base's weights at the start."
    betas: str | None = None
    "Betas of Adam or Lion, as 0.9,0.95."
    clip: float | None = None
    "Norm to which gradients are clipped; 0 for no clipping."


def transfer(
    study: Path,
    /,
    *,
    to: str,
    rule: str | None = None,
    decay: Literal["wd", "tau"] = "wd",
    run: Run = Run(),  # noqa: B008
    known: Known = Known(),  # noqa: B008
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    export: Literal["pytorch", "transformers", "lightning", "torchtitan", "megatron", "json"]
    | None = None,
    output: Path | None = None,
    markdown: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
) -> int:
    """Say what to train a target with, from what a study found on small models, and how sure that
    is.

    Exit status: 0, or 3 if the study is inconclusive: an optimum at the edge of its range, too
    flat, of too few runs.

    Example: mupscale transfer runs/gqa --to llama-3-8b

    Example: mupscale transfer runs/gqa --to qwen3-32b --tokens 3.6e13 --decay tau --markdown

    Example: mupscale transfer runs/gqa --to llama-3-8b --export pytorch --output recipe.py

    Parameters
    ----------
    study
        Folder of a study, made by mupscale sweep.
    to
        The model to train, named as for mupscale plan: llama-3-8b, hf:TYPE with settings, a
        config.json, or module:function.
    rule
        One that was swept; the one with the lowest loss at the proxy's optimum unless given.
    decay
        Carry weight decay over by its value (wd), or by its time scale in runs (tau). Both are
        printed.
    export
        Print a file for a trainer instead: Python for PyTorch, transformers or Lightning, a config
        for torchtitan, flags and group overrides for Megatron-LM, or JSON with the whole plan.
    output
        Write it to this file instead of printing it.
    markdown
        Print Markdown.
    """
    import mupscale

    if as_json + markdown + (export is not None) > 1:
        raise OptionError("--json, --markdown and --export exclude each other. Choose one.")
    recipe = mupscale.transfer(
        study,
        to=to,
        rule=rule,
        decay=decay,
        tokens=run.tokens,
        tokens_per_parameter=run.tokens_per_parameter,
        sequence=run.sequence,
        weight_decay=known.weight_decay,
        eps=known.eps,
        std=known.std,
        reading=reading.of_target(to),
        betas=_betas(known.betas),
        clip=known.clip,
        floor=run.floor,
    )
    _write(_shown(recipe, export, markdown=markdown, as_json=as_json), output)
    if recipe.doubts and (export is not None or output is not None):
        print(f"inconclusive: {'; '.join(recipe.doubts)}.", file=sys.stderr)
    return recipe.exit_status


def _betas(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--betas {text!r} is not two numbers. Write it like 0.9,0.95.") from None
    return first, second


def _shown(recipe: "Recipe", export: str | None, *, markdown: bool, as_json: bool) -> str:
    if export is not None:
        return recipe.export(export)
    if as_json:
        return recipe.to_json()
    return f"{recipe.to_markdown() if markdown else recipe.to_text()}\n"


def _write(words: str, output: Path | None) -> None:
    if output is None:
        print(words, end="")
        return
    from mupscale.records import write_whole

    write_whole(output, words.encode())
    print(f"written: {output}", file=sys.stderr)
