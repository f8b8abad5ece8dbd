"""A config at another width: heads keep their size and r, other sizes change in proportion."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mupscale.errors import DimensionError
from mupscale.targets.keys import (
    FIXED_HEAD_DIM,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    STACK_HEADS,
    STATE_HEADS,
    WIDTH,
    grows_with_width,
    is_positive,
    key_among,
)

# Sizes that would not be integers are rounded to a multiple of this, which suits hardware.
_MULTIPLE = 8


@dataclass(frozen=True)
class Heads:
    """The numbers of query and key/value heads of an attention, and their size."""

    heads: int
    kv_heads: int
    head_dim: int
    one_for_all: bool
    """Multi-query attention with head_dim = width / heads keeps its one key/value head, not r."""

    @property
    def repetitions(self) -> int:
        return 1 if self.one_for_all else self.heads // self.kv_heads


def with_width(values: Mapping[str, Any], width: int, *, fixed: bool) -> dict[str, Any]:
    """A config at another width. With `fixed`, head_dim may differ from width / heads.

    >>> llama = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    >>> with_width(llama, 512, fixed=True)
    {'hidden_size': 512, 'num_attention_heads': 4, 'num_key_value_heads': 1}
    """
    key = key_among(values, WIDTH)
    if key is None:
        raise DimensionError(f"the config has no width: none of {', '.join(WIDTH)} is set.")
    old = values[key]
    sizes: dict[str, Any] = {
        name: _in_proportion(size, old, width)
        for name, size in values.items()
        if grows_with_width(name)
    }
    heads = {**_with_heads(values, old, width, fixed), **_with_state_heads(values, old, width)}
    return {**values, key: width, **heads, **sizes}


def _with_heads(values: Mapping[str, Any], old: int, width: int, fixed: bool) -> dict[str, Any]:
    name, kv_name = key_among(values, HEADS), key_among(values, KV_HEADS)
    if name is None:
        return {}
    now = _heads(values, old, fixed)
    heads = scaled_heads(now, old, width) if fixed else exact_heads(now, width)
    kv_heads = 1 if now.one_for_all else heads // now.repetitions
    changed: dict[str, Any] = {name: heads}
    for stack in STACK_HEADS:  # encoder and decoder can have heads of different sizes
        if stack != name and is_positive(values.get(stack)):
            number = values[stack]
            own = Heads(number, number, old // number, one_for_all=False)
            changed[stack] = exact_heads(own, width)
    if kv_name:
        # Falcon's multi-query attention stores the number of query heads here, and uses one.
        changed[kv_name] = heads if values[kv_name] == now.heads else kv_heads
    if values.get("num_attention_heads_per_layer"):
        shared = values["num_attention_heads_per_layer"]
        changed["num_attention_heads_per_layer"] = [n * kv_heads // now.kv_heads for n in shared]
    if heads * now.head_dim != width and not any(values.get(key) for key in FIXED_HEAD_DIM):
        stored = next((key for key in HEAD_DIM if key in values), HEAD_DIM[0])
        changed[stored] = now.head_dim
    return changed


def _with_state_heads(values: Mapping[str, Any], old: int, width: int) -> dict[str, int]:
    """Heads of state-space layers keep their size; their number is proportional to the width."""
    changed: dict[str, int] = {}
    for name in STATE_HEADS:
        if is_positive(values.get(name)):
            if values[name] * width % old:
                raise DimensionError(
                    f"width={width}: {name}={values[name]} at width {old} would not be an integer."
                )
            changed[name] = values[name] * width // old
    return changed


def _heads(values: Mapping[str, Any], width: int, fixed: bool) -> Heads:
    heads = values[key_among(values, HEADS) or ""]
    kv_heads = values[key_among(values, KV_HEADS) or key_among(values, HEADS) or ""]
    if values.get("multi_query") and not values.get("new_decoder_architecture"):
        kv_heads = 1
    own = key_among(values, FIXED_HEAD_DIM)
    one_for_all = kv_heads == 1 < heads and not fixed
    return Heads(heads, kv_heads, values[own] if own else width // heads, one_for_all)


def scaled_heads(now: Heads, old: int, width: int) -> int:
    """Heads in proportion to the width: the nearest multiple of r = heads / kv_heads, at least r.

    >>> scaled_heads(Heads(64, 8, 128, False), old=5120, width=512)
    8
    """
    return now.repetitions * max(1, math.floor(now.heads * width / old / now.repetitions + 0.5))


def exact_heads(now: Heads, width: int) -> int:
    """Heads if head_dim = width / heads: the width must be a multiple of r heads.

    >>> exact_heads(Heads(12, 12, 64, False), width=256)
    4
    """
    unit = now.head_dim * now.repetitions
    if width % unit:
        times = f" × r={now.repetitions}" if now.repetitions > 1 else ""
        raise DimensionError(
            f"width={width} is not a multiple of head_dim={now.head_dim}{times}, and this model's "
            "head_dim is width / heads."
        )
    return width // now.head_dim


def _in_proportion(size: Any, old: int, width: int) -> Any:
    """Sizes at the new width: exact if that is an integer, else the nearest multiple of 8."""
    if isinstance(size, list):
        return [_in_proportion(entry, old, width) for entry in size]
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        return size  # None means a multiple of the width, and 0 means absent
    if size * width % old == 0:
        return size * width // old
    return _MULTIPLE * max(1, round(size * width / old / _MULTIPLE))


def steps(values: Mapping[str, Any]) -> list[int]:
    """Steps between widths that can give whole heads: the width per key/value head, and per head.

    >>> steps({"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8})
    [512, 128]
    """
    width = key_among(values, WIDTH)
    counts = [values[name] for names in (KV_HEADS, HEADS) if (name := key_among(values, names))]
    total = 0 if width is None else values[width]
    return list(dict.fromkeys(total // n for n in counts if total and total % n == 0))
