"""`mupscale derive` and `mupscale table`."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from mupscale.cli.console import print_json
from mupscale.cli.flags import (
    DecayMode,
    Depth,
    Format,
    Json,
    Optimizer,
    RuleFlags,
    Switch,
    Whole,
    dimensions,
    flag_group,
)
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.theory import Rule, RunSize, Scaling, Unit

_EXAMPLE = "n=4096,r=4"


@flag_group
class DimensionFlags:
    """Dimensions to evaluate the formulas at."""

    target: str | None = None
    "Also print numbers, for a model with these dimensions, such as n=4096,r=4."
    base: str | None = None
    """Dimensions of the base, the model you tuned. Those left out equal the target's
    (default: all equal the target's).
    """
    reference_r: Whole | None = None
    """Compare with a base of this many query heads per key/value head, whatever r the base has
    (default: the base's r).
    """

    def evaluate(self, scaling: "Scaling") -> dict[str, float] | None:
        if self.target is None:
            if self.base is not None or self.reference_r is not None:
                raise OptionError(
                    "--base and --reference-r need a --target, such as --target n=4096,r=4."
                )
            return None
        base = None if self.base is None else dimensions("--base", self.base, _EXAMPLE)
        target = dimensions("--target", self.target, _EXAMPLE)
        return asdict(scaling.evaluate(target=target, base=base, reference_r=self.reference_r))


def derive(
    unit: str,
    /,
    *,
    optimizer: Optimizer = "adamw",
    decay: DecayMode = "lr_coupled",
    rule_flags: RuleFlags = RuleFlags(),  # noqa: B008
    depth: Depth = None,
    block: Literal["inside", "output"] | None = None,
    fold: Switch = False,
    dimension_flags: DimensionFlags = DimensionFlags(),  # noqa: B008
    show_steps: Switch = False,
    format: Format = "text",
    as_json: Json = False,
) -> None:
    """Derive the initialization, multiplier, learning rate, weight decay and epsilon of one unit.

    Example: mupscale derive kv --optimizer muon --show-steps

    Example: mupscale derive kv --base n=512,r=1 --target n=4096,r=4

    Example: mupscale derive run --run sde --base B=8192,D=1e8 --target B=65536,D=1e10

    Parameters
    ----------
    unit
        The kind of weight: embedding, readout, dense, kv, kv-inner (heads × head_dim differs from
        n), residual, vector, fused, low-rank-down, low-rank-up, expert, router, adapter-a or
        adapter-b. Common names such as q, o, k, v, unembed, gain and qkv also work. Or run: what
        changes with batch B and tokens D of a run.
    block
        Treat the unit as part of a residual branch: a matrix inside it, or its output matrix
        (default: not in a branch).
    fold
        Fold the multiplier into the parameter.
    show_steps
        Print every step with its reason and source.
    """
    from mupscale import theory

    if unit == "run":
        if block is not None or fold or format != "text" or dimension_flags.reference_r is not None:
            raise OptionError(
                "derive run takes --run, --optimizer, --decay, --base, --target, --show-steps and "
                "--json. Leave out the others."
            )
        _derive_run(rule_flags.build(depth), optimizer, decay, dimension_flags, show_steps, as_json)
        return
    scaling = theory.derive(
        _in_block(theory.unit_named(unit), block),
        optimizer,
        rule=rule_flags.build(depth),
        decay=decay,  # pyright: ignore[reportArgumentType]
    )
    scaling = scaling.fold() if fold else scaling
    factors = dimension_flags.evaluate(scaling)
    if as_json:
        print_json(scaling.to_dict() | ({"factors": factors} if factors else {}))
        return
    formats = {
        "text": scaling.to_text,
        "markdown": scaling.to_markdown,
        "latex": scaling.to_latex,
    }
    print(formats[format](steps=show_steps))
    if factors:
        print("\nfactors on the base values:")
        for name, value in factors.items():
            print(f"  {theory.LABELS[name]:<14} {value:.17g}")


def _derive_run(
    rule: "Rule",
    optimizer: str,
    decay: str,
    sizes: DimensionFlags,
    show_steps: bool,
    as_json: bool,
) -> None:
    """What changes with the batch and the length."""
    from mupscale import theory
    from mupscale.theory.runs import RUN_LABELS

    scaling = theory.derive_run(rule.run, optimizer, decay=decay)  # pyright: ignore[reportArgumentType]
    factors = None
    if (sizes.base is None) != (sizes.target is None):
        raise OptionError(
            "derive run needs both runs for numbers: --base B=8192,D=1e8 --target B=65536,D=1e10."
        )
    if sizes.base is not None and sizes.target is not None:
        base, target = (
            _run_size(*one) for one in (("--base", sizes.base), ("--target", sizes.target))
        )
        factors = asdict(scaling.evaluate(base=base, target=target))
    if as_json:
        print_json(scaling.to_dict() | ({"factors": factors} if factors else {}))
        return
    print(scaling.to_text(steps=show_steps))
    if factors:
        print("\nfactors on the base values:")
        for name, value in factors.items():
            print(f"  {RUN_LABELS[name]:<14} {value:.17g}")


def _run_size(flag: str, text: str) -> "RunSize":
    """B=8192,D=1e8 as a run."""
    from mupscale.theory import RunSize

    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
    if found.keys() != {"B", "D"} or any(map(math.isnan, found.values())):
        raise OptionError(f"{flag} {text!r} must give batch and tokens, such as B=8192,D=1e8.")
    return RunSize(batch=found["B"], tokens=found["D"])


def table(
    *,
    optimizer: Optimizer = "adamw",
    decay: DecayMode = "lr_coupled",
    rule_flags: RuleFlags = RuleFlags(),  # noqa: B008
    depth: str = "none",
    format: Format = "text",
    as_json: Json = False,
) -> None:
    """Derive the paper's parameterization table, for any optimizer.

    With --optimizer all, compare the optimizers by their key/value factor and power of n.

    Example: mupscale table --optimizer muon --depth 1/L

    Parameters
    ----------
    depth
        Factor on residual branches: none (as in the paper's table), 1/L, 1/sqrt(L) or a formula in
        L.
    """
    from mupscale import theory

    if optimizer == "all":
        if (decay, rule_flags, depth, format) != ("lr_coupled", RuleFlags(), "none", "text"):
            raise OptionError(
                "--optimizer all compares the derived rates and accepts no other option but --json."
            )
        rows = theory.compare_optimizers()
        if as_json:
            print_json([row.to_dict() for row in rows])
        else:
            print(theory.optimizers_to_text(rows))
        return
    rule = rule_flags.build(None)
    result = theory.parameterization(optimizer, rule=rule, decay=decay, depth=depth)  # pyright: ignore[reportArgumentType]
    if as_json:
        print_json(result.to_dict())
        return
    formats = {"text": result.to_text, "markdown": result.to_markdown, "latex": result.to_latex}
    print(formats[format]())


def _in_block(unit: "Unit", block: str | None) -> "Unit":
    from mupscale.theory import Residual

    if block is None or (isinstance(unit, Residual) and block == "output"):
        return unit
    return Residual(unit, "L", output=block == "output")
