"""`mupscale plan`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from mupscale.cli.numbers import Whole, dimensions
from mupscale.cli.reading import ReadingFlags
from mupscale.cli.theory import Choices, Json
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.planning import Plan
    from mupscale.reading import Reading
    from mupscale.targets import Target


def plan(
    target: str,
    /,
    *,
    base: str,
    optimizer: str = "adamw",
    decay: str | None = None,
    choices: Choices = Choices(),  # noqa: B008
    depth: str | None = None,
    reference_r: Whole | None = None,
    multipliers: Literal["fold", "hook"] = "fold",
    reading: ReadingFlags = ReadingFlags(),  # noqa: B008
    explain: str | None = None,
    output: Path | None = None,
    markdown: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
) -> None:
    """Say what each parameter of a model gets, relative to the base that was tuned. Nothing is
    downloaded.

    Example: mupscale plan llama-3-8b --base width=512,depth=8

    Example: mupscale plan hf:qwen3,hidden_size=2048 --base hf:qwen3,hidden_size=256 --optimizer
    muon --markdown

    Example: mupscale plan my_package.models:build --base my_package.models:build,width=256 --output
    plan.json

    Example: mupscale plan my_package.models:build --base width=256 --role
    '*.mixer.in_proj.weight=hidden'

    Parameters
    ----------
    target
        llama-3-8b, llama-3-70b, llama-3-405b, qwen3-32b, mistral-7b, command-r-plus; gpt:NAME (see
        mupscale models); hf:TYPE with settings; a local config.json; or module:function that
        returns a model or a config.
    base
        The proxy that was tuned: dimensions such as width=512,depth=8 (the thin copy that keeps
        head_dim, r and the ratio of the feed-forward part; also r, inner, d_ff and head_dim), or
        anything that a target may be.
    optimizer
        As for derive: adamw, adam, sgd, momentum, lion, muon and so on.
    decay
        lr_coupled, independent or l2; what torch's optimizer does, unless said.
    depth
        Factor on residual branches: none, 1/L, 1/sqrt(L), or a formula in L; the rule's own unless
        said.
    reference_r
        Read r against this many repetitions instead of the base's; 1 gives the paper's absolute
        factor.
    multipliers
        Fold factors of the forward pass into the weights where that is exact, or leave them to
        hooks.
    explain
        Print the derivation of one parameter's values, with its numbers put in.
    output
        Also write the plan as JSON, for mupscale.Plan.load.
    markdown
        Print a Markdown table.
    """
    import mupscale
    from mupscale.targets import resolve

    named, said = resolve(target), reading.of_target(target)
    made = mupscale.plan(
        named.model,
        base=_base(named, base, said),
        optimizer=optimizer,
        rule=choices.build(depth),
        decay=decay,  # pyright: ignore[reportArgumentType]
        reference_r=reference_r,
        multipliers=multipliers,
        reading=said,
    )
    if output is not None:
        made.save(output)
    print(_shown(made, explain, markdown=markdown, as_json=as_json), end="")


def _shown(made: "Plan", explain: str | None, *, markdown: bool, as_json: bool) -> str:
    if as_json + markdown + (explain is not None) > 1:
        raise OptionError("--json, --markdown and --explain exclude each other. Choose one.")
    if as_json:
        return made.to_json()
    return f"{made.explain(explain) if explain else made.to_markdown() if markdown else made.to_text()}\n"


def _base(target: "Target", text: str, said: "Reading") -> Any:
    from mupscale.planning.base import at_dimensions
    from mupscale.reading import read
    from mupscale.targets import build, proxy, resolve

    if not re.match(r"\s*\w+\s*=", text):
        return resolve(text).model
    asked = dimensions("--base", text, "width=512,depth=8")
    if target.config is None:
        return asked
    sizes = {name: asked.pop(name) for name in ("width", "depth") if name in asked}
    model = build(proxy(target.config, **sizes)) if sizes else target.model
    return at_dimensions(read(model, reading=said), asked) if asked else model
