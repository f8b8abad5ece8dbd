"""`mupscale transfer`."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from mupscale.cli.console import remark
from mupscale.cli.flags import Json, Markdown, ReadingFlags, Whole, flag_group, numbers
from mupscale.errors import OptionError
from mupscale.text import show


@flag_group
class RunFlags:
    """How long the target is trained."""

    tokens: float | None = None
    "Tokens of the whole run, such as 1.5e13."
    tokens_per_parameter: float | None = None
    "Tokens per non-embedding parameter, instead of --tokens (default: the study's)."
    sequence: Whole | None = None
    """Tokens per sequence. The batch keeps its size in tokens (default: the target's positions, at
    most 8192).
    """
    floor: float | None = None
    "The schedule ends at this fraction of the peak learning rate (default: the study's)."
    schedule: str | None = None
    """How the learning rate falls after warmup: cosine, linear, or wsd (constant, then linear over
    the last steps) (default: the study's).
    """
    decay_share: float | None = None
    "Share of the steps in which wsd decays (default: the study's, or 0.2)."
    batch_rule: Literal["table", "printed", "power-lines"] | None = None
    """How the batch follows from the tokens: the rule of the paper's tables, that of its text, or
    the law of Power Lines (default: the study's).
    """
    batch: float | None = None
    "Tokens per batch, instead of a rule."
    run: str | None = None
    """How the values change from the study's batch and length to the target's: none, sde,
    completed-p, delphi, hyperp, nanochat, bjorck, formulas such as 'lr=sqrt(B)/D**0.3', or the
    rule.json that mupscale calibrate --over batch,tokens writes (default: what the study's rule
    says).
    """


@flag_group
class BaseFlags:
    """Base values that replace those of the study, where the study did not search them."""

    weight_decay: float | None = None
    "Weight decay tuned on the base model (default: the study's)."
    eps: float | None = None
    "Adam's epsilon on the base model (default: the study's)."
    std: float | None = None
    "Initial standard deviation of the base model's weights (default: the study's)."
    betas: str | None = None
    "Betas of Adam or Lion, such as 0.9,0.95 (default: the study's)."
    clip: float | None = None
    "Norm to which gradients are clipped, or 0 for no clipping (default: the study's)."
    noise_scale: float | None = None
    """Gradient noise scale of the study's runs, in tokens: a larger batch of the target gives a
    warning (default: what the study's trials recorded).
    """


def transfer(
    study: Path,
    /,
    *,
    to: str,
    rule: str | None = None,
    decay: Literal["wd", "tau", "power-lines"] = "wd",
    run: RunFlags = RunFlags(),  # noqa: B008
    base: BaseFlags = BaseFlags(),  # noqa: B008
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    export: Literal["pytorch", "transformers", "lightning", "torchtitan", "megatron", "json"]
    | None = None,
    output: Path | None = None,
    markdown: Markdown = False,
    as_json: Json = False,
) -> int:
    """Turn the optimum that a study found on small models into a recipe for a target, with
    intervals.

    Exit status: 0, or 3 if the study is inconclusive: the optimum is at the edge of the range, too
    flat, or rests on too few runs.

    Example: mupscale transfer runs/gqa --to llama-3-8b

    Example: mupscale transfer runs/gqa --to qwen3-32b --tokens 3.6e13 --decay tau --markdown

    Example: mupscale transfer runs/gqa --to llama-3-8b --export pytorch --output recipe.py

    Parameters
    ----------
    study
        Folder of a study, made by mupscale sweep.
    to
        The model to train, named as for mupscale plan.
    rule
        One of the swept rules (default: the one with the lowest loss at the proxy's optimum).
    decay
        Transfer weight decay by its value (wd), by its time scale in runs (tau), or take the time
        scale from the law of Power Lines (power-lines). The recipe prints all three.
    export
        Print a file for a trainer instead of the recipe: Python for PyTorch, transformers or
        Lightning, a config for torchtitan, arguments and group overrides for Megatron-LM, or JSON
        with the whole plan.
    output
        Write the result to this file instead of printing it.
    """
    import mupscale
    from mupscale.records import write_whole

    if as_json + markdown + (export is not None) > 1:
        raise OptionError("--json, --markdown and --export exclude each other. Choose one.")
    recipe = mupscale.transfer(
        study,
        to=to,
        rule=rule,
        decay=decay,
        run=mupscale.TargetRun(**asdict(run)),
        base=replace(mupscale.TunedBase(**asdict(base)), betas=_betas(base.betas)),
        reading=reading.of_target(to),
    )
    if export is not None:
        text = recipe.export(export)
    elif as_json:
        text = recipe.to_json()
    else:
        text = f"{recipe.to_markdown() if markdown else recipe.to_text()}\n"
    if output is None and not (as_json or export):
        show(text.removesuffix("\n"))
    elif output is None:
        print(text, end="")
    else:
        write_whole(output, text.encode())
        remark(f"written: {output}")
    if recipe.doubts and (export is not None or output is not None):
        remark(f"inconclusive: {'; '.join(recipe.doubts)}.")
    return recipe.exit_status


def _betas(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    betas = numbers("--betas", text, "0.9,0.95", float)
    if len(betas) != 2:
        raise OptionError(f"--betas {text!r} is not two numbers. Write it like 0.9,0.95.")
    return betas[0], betas[1]
