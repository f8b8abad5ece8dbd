"""`Reading`: what a user states about a model, as one value for every command, study and plan."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mupscale.errors import OptionError, UnknownNameError
from mupscale.reading.roles import ROLES

Inputs = Sequence[Any] | Mapping[str, Any]
"""Positional or named arguments of a model's forward pass."""

FILE = "mupscale.toml"
"""The name of a file beside a model that holds its reading."""

_SPEC = re.compile(
    r"(?P<dtype>\w+)\s*\[(?P<shape>(?:\s*\d+\s*,)*\s*\d*\s*)\]\s*(?:<\s*(?P<high>\d+))?"
)
_LIKE_SPEC = re.compile(r"\w+\s*\[")
_NAMES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "bool")
_DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES}


@dataclass(frozen=True)
class TensorSpec:
    """The dtype and shape of a tensor: enough to make one that a forward pass accepts.

    >>> TensorSpec.parse("int64[2, 16] < 256")
    TensorSpec(dtype='int64', shape=(2, 16), high=256)
    >>> str(TensorSpec.parse("float32[1,3,32,32]"))
    'float32[1,3,32,32]'
    """

    dtype: str
    shape: tuple[int, ...]
    high: int | None = None
    """Integers are below this: a token must be in the vocabulary."""

    @staticmethod
    def parse(text: str) -> TensorSpec | None:
        """The specification in a text; None for a text that does not begin like one (`word[`)."""
        if not _LIKE_SPEC.match(text.strip()):
            return None
        match = _SPEC.fullmatch(text.strip())
        if match is None:
            raise OptionError(
                f"inputs: {text!r} is not the type and shape of a tensor. Write it like "
                "float32[1,3,32,32], or int64[1,16]<256 for tokens below 256."
            )
        shape = tuple(int(size) for size in match["shape"].split(",") if size.strip())
        return TensorSpec(match["dtype"], shape, int(match["high"]) if match["high"] else None)

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise UnknownNameError(f"type of a tensor in inputs ({self})", self.dtype, _DTYPES)
        if any(size < 1 for size in self.shape):
            raise OptionError(f"inputs: {self} is an empty tensor. Every size must be at least 1.")
        if self.high is not None and not self.dtype.startswith("int"):
            raise OptionError(
                f"inputs: {self}: only integers take a limit. Leave <{self.high} out, or use int64."
            )
        if self.high is not None and self.high < 1:
            raise OptionError(
                f"inputs: {self}: no token is below {self.high}. The limit must be at least 1."
            )

    @staticmethod
    def of(tensor: Tensor) -> TensorSpec:
        """The specification of a tensor; tokens keep their largest value as a limit."""
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise OptionError(
                f"inputs: a tensor of type {tensor.dtype} is not supported. Use one of "
                f"{', '.join(_DTYPES)}."
            )
        limited = name.startswith("int") and not tensor.is_meta and tensor.numel() > 0
        high = max(2, int(tensor.max()) + 1) if limited else None
        return TensorSpec(name, tuple(tensor.shape), high)

    def __str__(self) -> str:
        limit = "" if self.high is None else f"<{self.high}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{limit}"

    def make(self, device: str, generator: torch.Generator | None = None) -> Tensor:
        """A tensor like this: normal numbers, tokens below `high`, or True everywhere."""
        dtype = _DTYPES[self.dtype]
        if device == "meta":
            return torch.empty(self.shape, dtype=dtype, device="meta")
        if dtype == torch.bool:
            return torch.ones(self.shape, dtype=dtype, device=device)
        if dtype.is_floating_point:
            return torch.randn(self.shape, generator=generator).to(device=device, dtype=dtype)
        tokens = torch.randint(0, self.high or 2, self.shape, generator=generator)
        return tokens.to(device=device, dtype=dtype)


@dataclass(frozen=True)
class Reading:
    """What a model does not show by itself: roles, keys of its config to ignore, and inputs.

    roles   what parameters are, by a pattern on their names: {"*.mixer.in_proj.weight": "hidden"}.
            "hidden!" overrules a forward pass that shows something else.
    ignore  keys of the config that look like multipliers but do not change with width or depth.
    inputs  arguments of the forward pass, positional or by name, for a model that takes more than
            tokens. A tensor is kept as its dtype and shape, and can be written like that:
            {"pixel_values": "float32[1,3,32,32]"}.

    As TOML, in a study, in a file of its own or in `mupscale.toml` beside the model:

        [reading]
        ignore = ["logit_scale"]
        inputs = { input_ids = "int64[1,16] < 256" }
        [reading.roles]
        "*.mixer.in_proj.weight" = "hidden"
    """

    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    ignore: tuple[str, ...] = ()
    inputs: Inputs | None = None

    def __post_init__(self) -> None:
        _check_roles(self.roles)
        object.__setattr__(self, "roles", dict(self.roles))
        object.__setattr__(self, "ignore", tuple(self.ignore))
        object.__setattr__(self, "inputs", _specified(self.inputs))

    def __hash__(self) -> int:
        return hash((frozenset(self.roles.items()), self.ignore))  # inputs are left to ==

    def __bool__(self) -> bool:
        return bool(self.roles or self.ignore or self.inputs is not None)

    def __or__(self, other: Reading) -> Reading:
        """Both together; `other` wins where they differ."""
        return Reading(
            {**self.roles, **other.roles},
            tuple(dict.fromkeys((*self.ignore, *other.ignore))),
            self.inputs if other.inputs is None else other.inputs,
        )

    def fitting(self, names: Collection[str]) -> Reading:
        """Without the patterns that match none of these parameters."""
        kept = {
            pattern: role
            for pattern, role in self.roles.items()
            if any(fnmatch.fnmatchcase(name, pattern) for name in names)
        }
        return replace(self, roles=kept)

    def call(self, device: str, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments of a forward pass, made on a device; None without inputs."""
        if self.inputs is None:
            return None
        generator = torch.Generator().manual_seed(seed)

        def tensor(value: Any) -> Any:
            return value.make(device, generator) if isinstance(value, TensorSpec) else value

        if isinstance(self.inputs, Mapping):
            return (), {name: tensor(value) for name, value in self.inputs.items()}
        return tuple(tensor(value) for value in self.inputs), {}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for TOML and JSON, without what is empty."""
        values = {"roles": dict(self.roles), "ignore": list(self.ignore)}
        values = {name: value for name, value in values.items() if value}
        if isinstance(self.inputs, Mapping):
            values["inputs"] = {name: _plain(value) for name, value in self.inputs.items()}
        elif self.inputs is not None:
            values["inputs"] = [_plain(value) for value in self.inputs]
        return values

    @staticmethod
    def from_dict(values: Mapping[str, Any], where: str = "reading") -> Reading:
        """From a table of TOML or JSON."""
        known = ("roles", "ignore", "inputs")
        for name in values:
            if name not in known:
                raise UnknownNameError(f"setting of {where}", name, known)
        roles: Any = values.get("roles", {})
        ignore: Any = values.get("ignore", [])
        inputs: Any = values.get("inputs")
        if not isinstance(roles, Mapping) or not _all_text(cast(Any, roles).values()):
            raise OptionError(
                f"{where}.roles must be a table of patterns and roles, and is {roles!r}. Put each "
                'pattern in quotes: "blocks.*.mixer.weight" = "hidden".'
            )
        _check_roles(cast(Mapping[str, str], roles), f" in {where}")
        if not isinstance(ignore, list | tuple) or not _all_text(cast(Any, ignore)):
            raise OptionError(
                f"{where}.ignore must be a list of keys, and is {ignore!r}. Write it like "
                '["logit_scale"].'
            )
        if inputs is not None and not isinstance(inputs, list | tuple | Mapping):
            raise OptionError(
                f"{where}.inputs must be a list or a table, and is {inputs!r}. Write it like "
                '{ input_ids = "int64[1,16] < 256" }.'
            )
        return Reading(cast(Any, roles), tuple(cast(Any, ignore)), cast(Any, inputs))

    @staticmethod
    def load(path: str | Path) -> Reading:
        """From the [reading] table of a TOML file."""
        import tomllib

        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OptionError(
                f"{path}: {reason}. It must be TOML with a [reading] table, patterns in quotes."
            ) from error
        table = values.get("reading")
        if not isinstance(table, Mapping):
            raise OptionError(
                f"{path} has no [reading] table. Write [reading] or [reading.roles] above the "
                "settings."
            )
        return Reading.from_dict(cast(Mapping[str, Any], table), f"reading in {path}")


def _check_roles(roles: Mapping[str, str], where: str = "") -> None:
    for pattern, role in roles.items():
        if role.removesuffix("!") not in ROLES:
            raise UnknownNameError(f"role for {pattern}{where}", role, ROLES)


def _all_text(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _specified(inputs: Inputs | None) -> Inputs | None:
    """The inputs with each tensor replaced by its specification."""
    if inputs is None:
        return None
    if isinstance(inputs, Tensor | str):
        raise OptionError(
            "inputs must be a tuple or a mapping of arguments. Put the tensor into a tuple: "
            "inputs=(x,)."
        )
    if isinstance(inputs, Mapping):
        return {name: _value(value, name) for name, value in inputs.items()}
    return tuple(_value(value, str(k)) for k, value in enumerate(inputs))


def _value(value: Any, name: str) -> Any:
    if isinstance(value, Tensor):
        return TensorSpec.of(value)
    if isinstance(value, str):
        return TensorSpec.parse(value) or value
    plain = value is None or isinstance(value, bool | int | TensorSpec)
    if plain or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise OptionError(
        f"inputs: {name} is of type {type(value).__name__}. Use tensors, numbers, texts, True, "
        "False or None."
    )


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, TensorSpec) else value
