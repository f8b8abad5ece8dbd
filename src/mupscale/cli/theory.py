"""`mupscale derive` and `mupscale table`."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from mupscale.cli.numbers import Whole, dimensions
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.theory import Rule, Scaling, Unit

Format = Literal["text", "markdown", "latex"]
Scaled = Literal["scaled", "none"]
Width = Literal["scaled", "init", "none"]
_EXAMPLE = "n=4096,r=4"
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Choices:
    """The rule, and what is set differently."""

    rule: str = "gqa-mup"
    "Preset: sp, mup, complete-p or gqa-mup; or the rule.json that mupscale calibrate wrote."
    kv_factor: str | None = None
    "Key/value rate over the hidden one: hidden, derived, paper, or a formula in r, n, inner."
    width: Width | None = None
    """What scales with width: init, multiplier and rate (scaled), the initial std alone (init), or
    none.
    """
    decay_scaling: Scaled | None = None
    "Whether weight decay is scaled."
    eps: Scaled | None = None
    "Whether epsilon is scaled."

    def build(self, depth: str | None) -> "Rule":
        from mupscale.theory import rule_named

        return rule_named(self.rule).with_(
            kv_factor=self.kv_factor,
            width=self.width,
            decay=self.decay_scaling,
            eps=self.eps,
            depth=depth,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Dimensions to put in."""

    target: str | None = None
    "Put numbers in: dimensions of the model to train, such as n=4096,r=4."
    base: str | None = None
    "Dimensions of the proxy that was tuned; those left out are the target's."
    reference_r: Whole | None = None
    "Read r against this many repetitions, whatever the base has."

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
    optimizer: str = "adamw",
    decay: str = "lr_coupled",
    choices: Choices = Choices(),  # noqa: B008
    depth: str | None = None,
    block: Literal["inside", "output"] | None = None,
    fold: bool = False,
    numbers: Numbers = Numbers(),  # noqa: B008
    show_steps: bool = False,
    format: Format = "text",
    as_json: Json = False,
) -> None:
    """Derive init, multiplier, learning rate, weight decay and epsilon of one unit.

    Example: mupscale derive kv --optimizer muon --show-steps

    Example: mupscale derive kv --base n=512,r=1 --target n=4096,r=4

    Parameters
    ----------
    unit
        embedding, readout, dense, kv, kv-inner (heads × head_dim is not n), residual, vector,
        fused, low-rank-down, low-rank-up, expert, router, adapter-a, adapter-b; also q, o, k, v,
        unembed, gain, qkv and the like.
    optimizer
        adamw, adam, sgd, momentum, lion, signsgd, adafactor, adafactor-unscaled, muon,
        muon-match-rms, muon-spectral, shampoo, shampoo-grafted.
    decay
        How decay enters: lr_coupled (torch's AdamW), independent, or l2.
    depth
        Factor on residual branches: none, 1/L, 1/sqrt(L), or a formula in L; the rule's own unless
        said.
    block
        Take the unit as part of a residual branch: one of the matrices inside, or its output.
    fold
        Fold the multiplier into the parameter.
    show_steps
        Print every step with its reason and source.
    format
        text, markdown or latex.
    """
    import mupscale.theory as theory

    scaling = theory.derive(
        _in_block(theory.unit_named(unit), block),
        optimizer,
        rule=choices.build(depth),
        decay=decay,  # pyright: ignore[reportArgumentType]
    )
    scaling = scaling.fold() if fold else scaling
    factors = numbers.evaluate(scaling)
    if as_json:
        print(
            json.dumps(
                scaling.to_dict() | ({"factors": factors} if factors else {}),
                ensure_ascii=False,
                indent=2,
            )
        )
        return
    show = {"text": scaling.to_text, "markdown": scaling.to_markdown, "latex": scaling.to_latex}[
        format
    ]
    print(show(steps=show_steps))
    if factors:
        print("\nfactors on the base values:")
        print(
            "\n".join(
                f"  {theory.LABELS[name]:<14} {value:.17g}" for name, value in factors.items()
            )
        )


def table(
    *,
    optimizer: str = "adamw",
    decay: str = "lr_coupled",
    choices: Choices = Choices(),  # noqa: B008
    depth: str = "none",
    format: Format = "text",
    as_json: Json = False,
) -> None:
    """Print the paper's parameterization table, derived for any optimizer.

    Example: mupscale table --optimizer muon --depth 1/L

    Parameters
    ----------
    optimizer
        As for derive; "all" compares the optimizers by K/V factor and power of n.
    decay
        How decay enters: lr_coupled (torch's AdamW), independent, or l2.
    depth
        Factor on residual branches: none (the paper's table), 1/L, 1/sqrt(L), or a formula in L.
    format
        text, markdown or latex.
    """
    import mupscale.theory as theory

    if optimizer == "all":
        if (decay, choices, depth, format) != ("lr_coupled", Choices(), "none", "text"):
            raise OptionError(
                "--optimizer all compares rates as derived: it goes with no other option but "
                "--json."
            )
        rows = theory.compare_optimizers()
        print(
            json.dumps([row.to_dict() for row in rows], indent=2)
            if as_json
            else theory.optimizers_to_text(rows)
        )
        return
    rule = choices.build(None)
    result = theory.parameterization(optimizer, rule=rule, decay=decay, depth=depth)  # pyright: ignore[reportArgumentType]
    if as_json:
        print(json.dumps(result.to_dict(), ensure_ascii=False, indent=2))
        return
    print(
        {"text": result.to_text, "markdown": result.to_markdown, "latex": result.to_latex}[format]()
    )


def _in_block(unit: "Unit", block: str | None) -> "Unit":
    from mupscale.theory import Residual

    if block is None or (isinstance(unit, Residual) and block == "output"):
        return unit
    return Residual(unit, "L", output=block == "output")
