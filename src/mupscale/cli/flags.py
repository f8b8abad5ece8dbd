"""The flags that several commands share, and how their values are read."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, dataclass_transform

from cyclopts import Parameter, Token

from mupscale.cli.console import remark
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.reading import Inputs, Reading
    from mupscale.theory import Rule

T = TypeVar("T")
Number = TypeVar("Number", int, float)


def _whole(_: Any, tokens: Sequence[Token]) -> int:
    """Cyclopts would read 0.5 as 0. It adds the option's name to this message."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number.") from None


Whole = Annotated[int, Parameter(converter=_whole)]
Switch = Annotated[bool, Parameter(negative=(), show_default=False)]
Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]

Json = Annotated[
    bool,
    Parameter(help="Print JSON instead of text.", name="--json", negative=(), show_default=False),
]
Markdown = Annotated[
    bool, Parameter(help="Print Markdown instead of text.", negative=(), show_default=False)
]
Format = Annotated[
    Literal["text", "markdown", "latex"], Parameter(help="The format of the printed result.")
]
Settings = Annotated[
    Repeated,
    Parameter(
        help="Override a setting of the file, such as optimizer.lr=0.01. The short form is "
        "--optimizer.lr 0.01. Can be repeated.",
        name="--set",
    ),
]
Workers = Annotated[
    Whole | None,
    Parameter(help="Number of worker processes, one thread each (default: one per core)."),
]
Optimizer = Annotated[
    str,
    Parameter(
        help="The optimizer: adamw, adam, sgd, momentum, lion, signsgd, adafactor, "
        "adafactor-unscaled, muon, muon-match-rms, muon-spectral, shampoo or shampoo-grafted."
    ),
]
DecayMode = Annotated[
    str,
    Parameter(
        help="How weight decay is applied: lr_coupled (as in torch's AdamW), independent or l2."
    ),
]
Depth = Annotated[
    str | None,
    Parameter(
        help="Factor on residual branches: none, 1/L, 1/sqrt(L) or a formula in L "
        "(default: the rule's own)."
    ),
]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def flag_group(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields are flags of the command that takes it."""
    return Parameter(name="*")(dataclass(frozen=True, kw_only=True)(cls))


@flag_group
class RuleFlags:
    """A scaling rule, by name, with changes to it."""

    rule: str = "gqa-mup"
    "The scaling rule: sp, mup, complete-p, gqa-mup, or a rule.json from mupscale calibrate."
    kv_factor: str | None = None
    """Learning rate of shared key/value heads relative to other hidden matrices: hidden, derived,
    paper, rms, or a formula in r, n and inner (default: the rule's own).
    """
    kv_part: Literal["both", "keys", "values"] | None = None
    "What gets that factor: keys, values or both (default: the rule's own)."
    embedding: str | None = None
    """Learning rate of the token embedding over width n: table (constant), sqrt (1/√n, for a large
    vocabulary) or a formula in n (default: the rule's own).
    """
    run: str | None = None
    """What changes with batch B and tokens D of a run: none, sde, completed-p, delphi, hyperp,
    nanochat, bjorck, or formulas such as 'lr=sqrt(B)/D**0.3' (default: the rule's own).
    """
    width: Literal["scaled", "init", "none"] | None = None
    """What scales with width: everything (scaled), only the initial standard deviation (init), or
    nothing (none) (default: the rule's own).
    """
    decay_scaling: Literal["scaled", "none"] | None = None
    "Whether weight decay scales with width (default: the rule's own)."
    eps: Literal["scaled", "none"] | None = None
    "Whether epsilon scales with width (default: the rule's own)."

    def build(self, depth: str | None) -> "Rule":
        from mupscale.theory import rule_named

        return rule_named(self.rule).with_(
            kv_factor=self.kv_factor,
            kv_part=self.kv_part,
            embedding=self.embedding,
            run=self.run,
            width=self.width,
            decay=self.decay_scaling,
            eps=self.eps,
            depth=depth,
        )


@flag_group
class ReadingFlags:
    """What the user says about a model."""

    role: Repeated = ()
    """The role of the parameters that match a pattern, such as '*.mixer.in_proj.weight=hidden'.
    Can be repeated.
    """
    ignore: Repeated = ()
    """A config key that looks like a multiplier but does not change with width or depth. Can be
    repeated.
    """
    inputs: Repeated = ()
    """An argument of the forward pass: 'pixels=float32[1,3,32,32]' by name, or 'int64[1,16]<256'
    by position. Can be repeated.
    """
    reading: Path | None = None
    """A TOML file with a [reading] table. Flags override its entries (default: mupscale.toml next
    to the model).
    """

    @property
    def given(self) -> bool:
        return bool(self.role or self.ignore or self.inputs or self.reading)

    def of_target(self, name: str) -> "Reading":
        """The flags, on top of --reading or of the file next to the model."""
        from mupscale.reading import Reading
        from mupscale.targets import reading_file

        if self.reading is not None:
            return Reading.load(self.reading) | self._flags()
        path = reading_file(name)
        if path is None:
            return self._flags()
        remark(f"reading: {path}")
        return Reading.load(path) | self._flags()

    def put_into(self, study: dict[str, Any]) -> None:
        """Set the study's [reading] table, which replaces the file next to the model."""
        from mupscale.reading import Reading
        from mupscale.training import settings

        own = settings.table("reading", study.get("reading", {}))
        if own and self.reading is None:
            reading = Reading.from_dict(own) | self._flags()
        else:
            trainer: Any = study.get("trainer")
            target: Any = trainer.get("target") if isinstance(trainer, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            reading = self.of_target(target if isinstance(target, str) else "")
        if reading:
            study["reading"] = reading.to_dict()

    def _flags(self) -> "Reading":
        from mupscale.reading import Reading

        return Reading(_roles(self.role), self.ignore, _inputs(self.inputs))


@flag_group
class SearchFlags:
    """What a study searches; each overrides the file."""

    rule: Repeated = ()
    "A scaling rule: sp, mup, complete-p, gqa-mup, or a rule.json. Can be repeated."
    vary: Repeated = ()
    """Model variants: n_kv_heads, r, width or depth and its values, such as n_kv_heads=12,3,1. Can
    be repeated.
    """
    seeds: str | None = None
    """Seeds for weights and batches, such as 42,43,44. Each optimum is that of the mean over
    seeds.
    """
    lr: str | None = None
    "Range of the base learning rate, such as 2^-8,2^-4."
    weight_decay: str | None = None
    "Range of the base weight decay (default: not searched)."
    tau_epoch: str | None = None
    """Range of the decay's time scale in runs, 1/(lr × decay × steps), instead of --weight-decay
    (default: not searched).
    """
    std: str | None = None
    "Range of the base initial standard deviation (default: not searched)."
    factor: Repeated = ()
    """Range of a factor by kind of weight, such as lr.embedding=2^-2,2^2. It multiplies what the
    rule gives. The name is lr, std, weight_decay or eps, a dot, and embedding, hidden, readout,
    gains or a role. Can be repeated.
    """
    method: Literal["adaptive", "grid", "paired", "random", "tpe"] | None = None
    "How points are chosen (default: adaptive)."
    trials: Whole | None = None
    "Maximum trials per cell."
    tolerance: float | None = None
    """The adaptive search stops when the optimum is known to ± this many octaves, that is, factors
    of two (default: 0.25).
    """


@flag_group
class EngineFlags:
    """Where trials run; it can change from one call to the next."""

    engine: Literal["local", "ray"] | None = None
    "Run trials in local processes, or on Ray (default: local)."
    workers: Workers = None
    address: str | None = None
    "Address of the Ray cluster (default: RAY_ADDRESS, otherwise a local Ray is started)."
    gpus: float | None = None
    "GPUs that Ray reserves for each trial."
    storage: str | None = None
    "Optuna's database, such as postgresql://host/db (default: SQLite in the study's folder)."


def numbers(
    flag: str, text: str, example: str, kind: Callable[[str], Number] = int
) -> list[Number]:
    """Numbers, separated by commas.

    >>> numbers("--seeds", "42, 43,44", "42,43,44")
    [42, 43, 44]
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        noun = "whole numbers" if kind is int else "numbers"
        raise OptionError(
            f"{flag} {text!r} is not a list of {noun}. Write it like {example}."
        ) from None


def dimensions(flag: str, text: str, example: str) -> dict[str, int]:
    """Whole numbers by name.

    >>> dimensions("--target", "n=4096,r=4", "n=4096,r=4")
    {'n': 4096, 'r': 4}
    """
    values: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            number = int(value)
        except ValueError:
            raise OptionError(
                f"{flag} {text!r}: {part.strip()!r} is not name=number. Write it like {example}."
            ) from None
        if name in values:
            raise OptionError(f"{flag} {text!r}: {name} is given twice.")
        values[name] = number
    return values


def varied(text: str) -> tuple[str, list[int]]:
    """A name and its values.

    >>> varied("n_kv_heads=4,2,1")
    ('n_kv_heads', [4, 2, 1])
    """
    match = re.fullmatch(r"\s*(\w+)\s*=((\s*-?\d+\s*,)*\s*-?\d+\s*)", text)
    if match is None:
        raise OptionError(
            f"--vary {text!r} is not a name and whole numbers. Write it like n_kv_heads=4,2,1."
        )
    return match[1], [int(value) for value in match[2].split(",")]


def overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Settings by their dotted names.

    >>> overrides(["model.n-kv-heads=2", "optimizer.betas=[0.9, 0.99]", "data.corpus=text:a.md"])
    {'model.n_kv_heads': 2, 'optimizer.betas': [0.9, 0.99], 'data.corpus': 'text:a.md'}
    """
    values: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or "." not in name:
            raise OptionError(
                f"--set {text!r} is not a setting. "
                "Write table.setting=value, such as optimizer.lr=0.01."
            )
        values[name.replace("-", "_")] = toml_value(value)
    return values


def toml_value(text: str) -> Any:
    """The value that TOML reads; text that is not TOML stays a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _roles(texts: tuple[str, ...]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for text in texts:
        pattern, equals, role = text.rpartition("=")
        if not equals or not pattern:
            raise OptionError(
                f"--role {text!r} is not pattern=role. Write it like '*.in_proj.weight=hidden'."
            )
        roles[pattern] = role
    return roles


def _inputs(texts: tuple[str, ...]) -> "Inputs | None":
    """By name or by position.

    >>> _inputs(("input_ids=int64[1,16]<256", "use_cache=false"))
    {'input_ids': 'int64[1,16]<256', 'use_cache': False}
    >>> _inputs(("float32[1,3,32,32]",))
    ('float32[1,3,32,32]',)
    """
    if not texts:
        return None
    parts = [text.partition("=") for text in texts]
    named = [(name.strip(), value) for name, equals, value in parts if equals]
    if not named:
        return tuple(toml_value(text) for text in texts)
    if len(named) < len(texts):
        raise OptionError(f"--inputs {' '.join(texts)}: name all arguments, or none of them.")
    for name, _ in named:
        if not name.isidentifier():
            raise OptionError(
                f"--inputs: {name!r} is not a name. Write it like 'input_ids=int64[1,16]<256'."
            )
    if len(dict(named)) < len(named):
        raise OptionError(f"--inputs {' '.join(texts)}: an argument is given twice.")
    return {name: toml_value(value) for name, value in named}
