"""`mupscale plan`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mupscale.cli.flags import (
    Depth,
    Json,
    Markdown,
    Optimizer,
    ReadingFlags,
    RuleFlags,
    Whole,
    dimensions,
)
from mupscale.errors import OptionError
from mupscale.text import show

if TYPE_CHECKING:
    from mupscale.reading import Reading
    from mupscale.targets import Target


def plan(
    target: str,
    /,
    *,
    base: str,
    optimizer: Optimizer = "adamw",
    decay: str | None = None,
    rule_flags: RuleFlags = RuleFlags(),  # noqa: B008
    depth: Depth = None,
    reference_r: Whole | None = None,
    multipliers: Literal["fold", "hook"] = "fold",
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    explain: str | None = None,
    output: Path | None = None,
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Print what each parameter of a model gets, relative to the base, the model you tuned.

    Nothing is downloaded, and no weights are allocated.

    Example: mupscale plan llama-3-8b --base width=512,depth=8

    Example: mupscale plan hf:qwen3,hidden_size=2048 --base width=256 --optimizer muon

    Example: mupscale plan my_package.models:build --base my_package.models:build,width=256

    Example: mupscale plan my_package.models:build --base width=256 --role '*.in_proj.weight=hidden'

    Parameters
    ----------
    target
        The model to train: llama-3-8b, llama-3-70b, llama-3-405b, qwen3-32b, mistral-7b,
        command-r-plus, gpt:NAME (see mupscale models), hf:TYPE with settings, a local config.json,
        or module:function that returns a model or a config.
    base
        The model you tuned, named like a target, or as dimensions such as width=512,depth=8: a
        small copy of the target that keeps head_dim, r (query heads per key/value head) and the
        feed-forward ratio. The dimensions r, inner, d_ff and head_dim also work.
    decay
        How the optimizer applies weight decay: lr_coupled, independent or l2 (default: as torch's
        optimizer does).
    reference_r
        Compare with a base of this many query heads per key/value head; 1 gives the paper's
        absolute factor (default: the base's r).
    multipliers
        Fold factors of the forward pass into the weights where that is exact, or apply all of them
        with hooks.
    explain
        Print the derivation of this parameter's values, with numbers, instead of the plan.
    output
        Also write the plan to this JSON file, for mupscale.Plan.load.
    """
    import mupscale
    from mupscale.targets import resolve

    if as_json + markdown + (explain is not None) > 1:
        raise OptionError("--json, --markdown and --explain exclude each other. Choose one.")
    named, model_reading = resolve(target), reading.of_target(target)
    result = mupscale.plan(
        named.model,
        base=_base(named, base, model_reading),
        optimizer=optimizer,
        rule=rule_flags.build(depth),
        decay=decay,  # pyright: ignore[reportArgumentType]
        reference_r=reference_r,
        multipliers=multipliers,
        reading=model_reading,
    )
    if output is not None:
        result.save(output)
    if as_json:
        print(result.to_json(), end="")
    elif explain:
        print(result.explain(explain))
    else:
        show(result.to_markdown() if markdown else result.to_text())


def _base(target: "Target", text: str, reading: "Reading") -> Any:
    from mupscale.planning.base import at_dimensions
    from mupscale.reading import read
    from mupscale.targets import build, proxy, resolve

    if not re.match(r"\s*\w+\s*=", text):
        return resolve(text).model
    values = dimensions("--base", text, "width=512,depth=8")
    if target.config is None:
        return values
    sizes = {name: values.pop(name) for name in ("width", "depth") if name in values}
    model = build(proxy(target.config, **sizes)) if sizes else target.model
    return at_dimensions(read(model, reading=reading), values) if values else model
